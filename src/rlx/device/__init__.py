"""Which backends there are, and what each finds on this machine."""
