"""Damages files for a time, opens and runs them, and tells those that end in anything but a result or rlx's own errors.

    python tools/fuzz_files.py --seconds 600 [--seed 0] [--workers 2]

`python tools/fuzz_files.py --file 17` tells more of file 17.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]


def main() -> int:
    from hostile.pool import BYTES, run_all

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--file", type=int)
    args = parser.parse_args()
    if args.file is not None:
        from hostile.corpus import attempt

        attempt(args.file, 10.0)
        return 0
    end = time.monotonic() + args.seconds
    tried, wrong = 0, 0
    for batch in count():
        if time.monotonic() > end:
            break
        numbers = [str(args.seed + 1000 * batch + i) for i in range(1000)]
        outcomes = run_all(numbers, "hostile.damaging", str(BYTES), workers=args.workers, until=end)
        for number, each in outcomes.items():
            if each.what != "right":
                wrong += 1
                print(f"file {number}: {each.what}: {each.told}", flush=True)
        tried += len(outcomes)
    print(f"{tried} files, {wrong} of them wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
