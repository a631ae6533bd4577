from rollmill.environments.shop.environment import Shop as Shop
