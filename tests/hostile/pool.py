"""Workers that run hostile cases, each case within limits of time and memory, whatever it does to its process."""

from __future__ import annotations

import json
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
SECONDS = 30.0  # a machine that does other things at once is given time: alone, it is 10
START_SECONDS = 120.0
BYTES = 1 << 30


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `right`, or what is wrong, the words of the error, and how long it took."""

    what: str
    told: str
    seconds: float


class Worker:
    """A process that takes names of cases. It is started anew when one has ended it."""

    def __init__(self, *command: str) -> None:
        self.command = [sys.executable, "-m", *command]
        self.process: subprocess.Popen[str] | None = None

    def run(self, name: str, seconds: float) -> Outcome:
        if self.process is None:
            self._start()
        process = self.process
        assert process is not None and process.stdin is not None
        process.stdin.write(name + "\n")
        process.stdin.flush()
        line = self._line(seconds)
        if line is None:
            return Outcome("hang", f"no answer in {seconds} s", seconds)
        if not line:
            code = process.wait()
            self.process = None
            return Outcome("crash", f"the process ended with {code}", 0.0)
        report = json.loads(line)
        return Outcome(report["outcome"], report["told"], report["seconds"])

    def _start(self) -> None:
        path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "PYTHONPATH": path, "RLX_CACHE": "0"},
        )  # fmt: skip
        if not self._line(START_SECONDS):
            raise RuntimeError(f"expected a worker, got none of {self.command}")

    def _line(self, seconds: float) -> str | None:
        """The next line of the process, empty if it ended, None if none came in time: it is killed then."""
        assert self.process is not None and self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if selector.select(seconds):
                return self.process.stdout.readline()
        self.close()
        return None

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def run_all(
    names: Sequence[str], *command: str, workers: int = 2, seconds: float = SECONDS, until: float = float("inf")
) -> dict[str, Outcome]:
    """What came of each case that began before the clock says `until`; `command` is the workers' module and words."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    outcomes: dict[str, Outcome] = {}

    def work() -> None:
        worker = Worker(*command)
        try:
            while time.monotonic() < until:
                name = waiting.get_nowait()
                outcomes[name] = worker.run(name, seconds)
        except queue.Empty:
            pass
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def memory(device: str) -> str:
    """Bytes that cases may take; others than these devices have libraries that take much by themselves."""
    return str(BYTES if device in ("cpu", "reference") else 0)


def main(device: str, *prefixes: str) -> None:
    """Runs cases by hand: `python -m hostile.pool DEVICE [PREFIX…]`, and tells those that are not right."""
    from hostile.tables import CASES

    names = [n for n in CASES if not prefixes or n.startswith(prefixes)]
    outcomes = run_all(names, "hostile.worker", device, memory(device))
    for name in names:
        each = outcomes[name]
        if each.what != "right" or each.seconds > 3:
            print(f"{each.what:12} {each.seconds:6.1f} s  {name}: {each.told[:400]}")
    print(f"{sum(each.what == 'right' for each in outcomes.values())} of {len(names)} right")


if __name__ == "__main__":
    main(*sys.argv[1:])
