"""The data side's ground: rollouts as rows of a JSONL file, and what a run keeps beside it."""
