"""HTTP/1.1 for JSON between services and models: connections, and what a call over them costs."""
