"""Readers of model files, one per format."""
