"""rlx: an ML compiler and runtime."""
