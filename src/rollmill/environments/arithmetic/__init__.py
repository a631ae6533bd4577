from rollmill.environments.arithmetic.environment import Arithmetic as Arithmetic
