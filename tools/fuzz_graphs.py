"""Tries random programs on a device: `python -m tools.fuzz_graphs --device cpu --count 1000 --jobs 2`.

`docs/design/fuzzing.md` tells how to read what it finds.
"""

import sys

from tools.fuzz.run import main

if __name__ == "__main__":
    sys.exit(main())
