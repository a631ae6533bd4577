"""Running services: which process serves what, starting them, watching over them, and the head server."""
