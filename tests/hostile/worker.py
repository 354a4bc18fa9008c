"""Runs hostile cases, one after the other, in a process that may die of them: `python -m hostile.worker DEVICE BYTES`.

Reads names from its input and writes a line of JSON for each: what came of it, and how long it took. `BYTES` of
memory are all that it may take above what the imports and a first run have taken.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from hostile.case import Case, Gives, Refused
from hostile.tables import CASES
from rlx.errors import RlxError


def outcome(case: Case, device: str) -> tuple[str, str]:
    """`right`, or what is wrong, and the message."""
    import re

    try:
        model = rlx.load(case.build(), device=device, **case.options)
        results = model.run(list(case.inputs), **({"timeout": case.timeout} if case.timeout else {}))
    except RlxError as error:
        message = f"{type(error).__name__}: {error}"
        if isinstance(case.want, Gives):
            return "refused", message
        words = case.want.words if isinstance(case.want, Refused) else ""
        return ("right" if re.search(words, message) else "other words"), message
    except Exception as error:
        return "other error", f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    if case.want is None:
        return "right", ""
    if isinstance(case.want, Refused):
        return "accepted", str([(r.shape, str(r.dtype), r.reshape(-1)[:4].tolist()) for r in results])
    same = len(results) == len(case.want.arrays) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(results, case.want.arrays)
    )
    return ("right" if same else "wrong"), "" if same else str([r.tolist() for r in results])


def limit_memory(extra: int) -> None:
    """No more address space than there is now, and `extra`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra,) * 2)


def main(device: str, extra: int) -> None:
    warm = CASES["warm"]
    report: dict[str, Any] = {"name": "ready", "outcome": outcome(warm, device)}
    if extra:
        limit_memory(extra)
    print(json.dumps(report), flush=True)
    for line in sys.stdin:
        name = line.strip()
        start = time.monotonic()
        what, message = outcome(CASES[name], device)
        seconds = time.monotonic() - start
        print(json.dumps({"name": name, "outcome": what, "told": message[:2000], "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
