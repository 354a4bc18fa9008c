"""Opens and runs damaged files by number: `python -m hostile.damaging BYTES`. Answers as `hostile.worker` does."""

from __future__ import annotations

import json
import sys
import time
import traceback

import rlx
from hostile import corpus
from hostile.worker import limit_memory
from rlx.errors import RlxError

SECONDS = 3.0


def outcome(number: int) -> tuple[str, str]:
    """`right`, or what came in place of an error of ours."""
    try:
        corpus.attempt(number, SECONDS)
    except RlxError as error:
        return "right", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "other error", f"{type(error).__name__}: {error}\n{traceback.format_exc()[-2500:]}"
    return "right", ""


def main(extra: int) -> None:
    corpus.saved(), corpus.compiled(), corpus.models(), corpus.parsed_models()
    rlx.load(corpus.model_bytes()[0], device="cpu", cache=False).run(list(corpus.models()[0][1]))
    if extra:
        limit_memory(extra)
    print(json.dumps({"name": "ready"}), flush=True)
    for line in sys.stdin:
        start = time.monotonic()
        what, message = outcome(int(line))
        report = {"outcome": what, "told": message[:3000], "seconds": time.monotonic() - start}
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
