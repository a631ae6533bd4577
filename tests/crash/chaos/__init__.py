"""The long crash runs, each promise told from the files alone: `python -m tests.crash.chaos`, see `make chaos`."""
