"""Costs of runs: predictions (`estimate.py`), counts of work (`counts.py`), and fits of measurements (`fit.py`). For
devices about which nothing else is known, small graphs (`microbenchmarks.py`) are timed (`calibrate.py`) and price all
others (`generic.py`)."""
