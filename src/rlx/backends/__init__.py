"""One folder a backend; `reference` is the oracle."""
