"""The environments that ship: one folder each, with its config, five example tasks, its tests and its README."""
