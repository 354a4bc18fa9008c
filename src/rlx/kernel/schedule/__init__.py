"""Schedules: how kernels are spread over a machine, as data.

`schedule.py` has the type, `overrides.py` what `RLX_SCHEDULE` sets by hand. Code generators choose a schedule for each
kernel from their target and write the kernel that it says.
"""
