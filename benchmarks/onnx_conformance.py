"""How much of the ONNX standard's own test suite is right, by category, and why the rest is not.

    python -m benchmarks.onnx_conformance [--device cpu] [--only SUBSTRING] [--jobs 2] [--limit SECONDS]
                                          [--list] [--ratchet FILE]

Every case runs in a worker process with a time limit. A worker that crashes or hangs costs its case alone: it is
replaced. The last line is `conformance: P/N`, N being all cases that the onnx package has for a CPU.
`--ratchet` writes the names of the cases that are right, as `tests/frontends/onnx/right` holds them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.onnx_cases import Outcome, load_cases, run_case

LIMIT_S = 120.0


class Worker:
    """A process that runs cases one at a time, by their number."""

    def __init__(self, cases: Sequence[Any], device: str) -> None:
        # a fork shares the loaded cases; they take seconds to make
        context: Any = multiprocessing.get_context("fork")
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.connection, cases, device), daemon=True)
        self.process.start()
        theirs.close()
        self.number: int | None = None
        self.deadline = 0.0

    def give(self, number: int, limit_s: float) -> None:
        self.connection.send(number)
        self.number = number
        self.deadline = time.monotonic() + limit_s

    def end(self) -> None:
        """Stops the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, other_end: Connection, cases: Sequence[Any], device: str) -> None:
    other_end.close()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # LLVM and NumPy talk; what matters comes back as a reason
        while True:
            try:
                number = connection.recv()
            except EOFError:
                return
            connection.send(run_case(cases[number], device))


Result = tuple[Any, Outcome]


def run_all(cases: Sequence[Any], device: str, jobs: int = 2, limit_s: float = LIMIT_S) -> Iterator[Result]:
    """Cases with their outcomes, as they come."""
    waiting = iter(range(len(cases)))
    workers = [Worker(cases, device) for _ in range(min(jobs, max(len(cases), 1)))]
    try:
        busy = [worker for worker in workers if _next(worker, waiting, limit_s)]
        while busy:
            first = min(worker.deadline for worker in busy)
            wait([worker.connection for worker in busy], timeout=max(0.0, first - time.monotonic()))
            for worker in list(busy):
                outcome = _outcome(worker, limit_s)
                if outcome is None:
                    continue
                assert worker.number is not None  # it is busy
                yield cases[worker.number], outcome
                busy.remove(worker)
                if outcome.status in ("crash", "hang"):
                    worker.end()
                    workers.remove(worker)
                    worker = Worker(cases, device)
                    workers.append(worker)
                if _next(worker, waiting, limit_s):
                    busy.append(worker)
    finally:
        for worker in workers:
            worker.end()


def _next(worker: Worker, waiting: Iterator[int], limit_s: float) -> bool:
    number = next(waiting, None)
    if number is None:
        return False
    worker.give(number, limit_s)
    return True


def _outcome(worker: Worker, limit_s: float) -> Outcome | None:
    """What a worker has to say; None if it is still at it."""
    if worker.connection.poll():
        try:
            outcome: Outcome = worker.connection.recv()
            return outcome
        except EOFError:
            worker.process.join(5)
            return Outcome("crash", f"the process ended with code {worker.process.exitcode}")
    if time.monotonic() > worker.deadline:
        return Outcome("hang", f"no answer in {limit_s:g} s")
    return None


def _kind_of_reason(outcome: Outcome) -> str:
    """A reason without names and numbers, so that equal troubles count together."""
    text = re.sub(r"node '[^']*' ", "", outcome.reason)
    text = re.sub(r"input \d+ \([^)]*\)", "an input", text)
    text = re.sub(r", opset \d+", "", text)
    return f"{outcome.status}: {re.sub(r'at node .*', '', text)[:140]}"


def report(results: Sequence[Result], total: int, listing: bool) -> None:
    """Passes by category, failures by reason, and the sum."""
    kinds = list(dict.fromkeys(case.kind for case, _ in results))
    for kind in kinds:
        mine = [outcome for case, outcome in results if case.kind == kind]
        right = sum(outcome.status == "right" for outcome in mine)
        print(f"{kind:20} {right:5} of {len(mine)}")
    reasons: dict[str, list[str]] = {}
    for case, outcome in results:
        if outcome.status != "right":
            reasons.setdefault(_kind_of_reason(outcome), []).append(case.name)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        shown = names if listing else names[:3]
        print(f"{len(names):4} {reason}\n       {', '.join(shown)}{' …' if len(names) > len(shown) else ''}")
    counts = Counter(outcome.status for _, outcome in results)
    print(", ".join(f"{status} {count}" for status, count in sorted(counts.items())))
    fixed = sum(bool(outcome.fixed) for _, outcome in results if outcome.status == "right")
    print(f"of those that are right, {fixed} have inputs whose values were given at the import")
    print(f"conformance: {counts['right']}/{total}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="cases whose names hold this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that a case may take")
    parser.add_argument("--list", action="store_true", help="all names by reason, not just three")
    parser.add_argument("--ratchet", metavar="FILE", help="writes the names of cases that are right")
    args = parser.parse_args()
    cases = load_cases(args.only)
    results = []
    for count, (case, outcome) in enumerate(run_all(cases, args.device, args.jobs, args.limit), 1):
        results.append((case, outcome))
        if sys.stderr.isatty():
            print(f"\r{count}/{len(cases)}", end="", file=sys.stderr)
    results.sort(key=lambda pair: (pair[0].kind, pair[0].name))
    if args.ratchet:
        names = sorted(case.name for case, outcome in results if outcome.status == "right")
        with open(args.ratchet, "w") as file:
            file.write("\n".join(names) + "\n")
    report(results, len(cases), args.list)


if __name__ == "__main__":
    main()
