"""Python functions of arrays as programs: `jit`, and control flow whose branches and bodies are functions."""
