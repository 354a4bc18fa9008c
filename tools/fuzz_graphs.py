"""Tries random programs on a device: `python -m tools.fuzz_graphs --device cpu --count 1000 --jobs 2`.

`docs/design/fuzzing.md` tells how to read what it finds.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(ROOT / "tests")]

from tools.fuzz.run import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
