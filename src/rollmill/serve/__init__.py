"""Components behind HTTP: services, and the stand-ins that speak to them."""
