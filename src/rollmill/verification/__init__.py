"""What rewards may use: processes of their own, and later sandboxes, judges and caches."""
