"""Where the time goes: wall time by stage, and CPU time by function."""
