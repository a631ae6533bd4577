"""Collecting: slots are planned, played a bounded number at a time, recorded, and watched."""
