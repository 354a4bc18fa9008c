"""Running programs: sessions, compiled graphs, the checks between a caller's arrays and compiled code."""
