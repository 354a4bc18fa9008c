"""Backends, one folder each. `reference` is the oracle for all others."""
