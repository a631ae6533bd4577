"""Model backends, one a file. Each module has `Fields`, what a configuration may say of it, and `make`."""
