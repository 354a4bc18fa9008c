"""What runs cost: predictions (`estimate.py`), counts of work (`counts.py`), fits of measurements (`fit.py`)."""
