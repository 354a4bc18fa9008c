"""What targets share about single numbers: elementary functions, small floats, integer ranges, emulated dtypes."""
