from rollmill.environments.mcqa.environment import MCQA as MCQA
