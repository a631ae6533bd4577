"""Where workers run besides the command's own process. They are told everything by messages, and share nothing."""
