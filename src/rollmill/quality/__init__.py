"""What the numbers say: statistics of rollouts, in one pass."""
