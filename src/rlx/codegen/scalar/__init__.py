"""Code that all targets share for single numbers: elementary functions, small floats, integer ranges, emulated
dtypes."""
