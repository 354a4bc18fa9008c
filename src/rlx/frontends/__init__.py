"""Model files in, programs out: one reader a format."""
