"""WGSL: `language.py` is the language, `instructions.py` one instruction on registers, `types.py` how elements lie in
memory and registers; `library.py` and `small_floats.py` hold functions, `shader.py` makes the whole text."""
