"""What runs cost: predictions (`estimate.py`), counts of work (`counts.py`), fits of measurements (`fit.py`); and for
devices of which nothing else is known small graphs (`microbenchmarks.py`) whose times (`calibrate.py`) price all others
(`generic.py`)."""
