"""Many programs in many processes. A worker writes the seed that it is at into a file before it starts on it, so that
the seed of one that dies or hangs is known."""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tools.fuzz import asked, isolated

HANG_SECONDS = 150
CHUNK = 300
SHRUNK_BY_A_WORKER = 12
SAID_SECONDS = 5
"""Between counts that a worker gives; a campaign prints where it is four times as rarely."""


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_graphs", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help="how many seeds")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for failures, a JSON object a line")
    parser.add_argument("--seed", type=int, help="run this one alone, print it, and shrink it if it fails")
    parser.add_argument("--replay", type=Path, help="run the program in this file")
    parser.add_argument("--shrink-seconds", type=float, default=40.0)
    parser.add_argument("--hang-seconds", type=float, default=HANG_SECONDS, help="of one program, which then hangs")
    parser.add_argument("--force-tiles", action="store_true", help="small products are tiles of every layout, on GPUs")
    parser.add_argument("--family", help="modules, of which each program has one: control, windows, nets, ...")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    # by the environment: processes that a campaign starts have it too
    if options.force_tiles:
        from tools.fuzz import tiles

        os.environ[tiles.VARIABLE] = "1"
    if options.family:
        os.environ[asked.VARIABLE] = options.family
    if options.worker is not None:
        return _worker(options)
    if options.replay is not None:
        return _replay(options)
    if options.seed is not None:
        return _one(options)
    return 1 if Campaign(options).run() else 0


def _replay(options: argparse.Namespace) -> int:
    from tools.fuzz import check, found

    failure = check.check(found.read(options.replay.read_text()), options.device)
    print(failure or "as it should be")
    return 1 if failure else 0


def _one(options: argparse.Namespace) -> int:
    from tools.fuzz import generate

    program = generate.generate(options.seed, options.device)
    print(program.graph, program.bindings, program.how, sep="\n", flush=True)
    failure = isolated.Isolated(options.device, 150.0).check(program)
    print(failure or "as it should be", flush=True)
    if failure:
        print(isolated.shrunk(program, failure, options.device, options.shrink_seconds))
    return 1 if failure else 0


def _worker(options: argparse.Namespace) -> int:
    """Seeds start, …, start + count - 1; a line of JSON for each failure, and one at the end."""
    import faulthandler
    import warnings

    from tools.fuzz import check, generate

    faulthandler.enable()
    warnings.simplefilter("ignore")
    tally, said = collections.Counter[str](), time.monotonic()
    failed, end = 0, said + (options.seconds or 1e9)
    for seed in range(options.start, options.start + options.count):
        if time.monotonic() > end:
            break
        options.worker.write_text(str(seed))
        program = generate.generate(seed, options.device)
        try:
            failure = check.check(program, options.device)
        except check.Refused as why:
            tally["refused"] += 1
            if os.environ.get("RLX_FUZZ_REFUSED"):
                print(seed, why, file=sys.stderr)
            continue
        tally["done"] += 1
        tally["nodes"] += len(program.graph.nodes)
        if time.monotonic() > said + SAID_SECONDS:
            _say({"so_far": dict(tally)})
            tally, said = collections.Counter(), time.monotonic()
        if failure is None:
            continue
        failed += 1
        few = failed <= SHRUNK_BY_A_WORKER
        text = isolated.shrunk(program, failure, options.device, options.shrink_seconds if few else 0.0)
        _say({"seed": seed, "kind": failure.kind, "message": failure.message, "text": text})
        if isolated.spoils(failure):
            break
    _say({"tally": dict(tally), "at": seed + 1})
    return 0


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


class Campaign:
    """Workers, one a job, each on a chunk of seeds at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.next = options.start
        self.last = options.start + options.count if options.count is not None else 1 << 62
        self.start = time.monotonic()
        self.end = self.start + options.seconds if options.seconds is not None else float("inf")
        self.tally, self.told = collections.Counter[str](), 0.0
        self.failures: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def run(self) -> int:
        """How many failed."""
        threads = [threading.Thread(target=self._job) for _ in range(self.options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - self.start
        count = self.tally["done"]
        print(
            f"{count} graphs ({self.tally['nodes'] / max(count, 1):.1f} nodes each) on {self.options.device} in "
            f"{seconds:.0f} s, {count / seconds:.1f} a second; {self.tally['refused']} refused, "
            f"{len(self.failures)} failed; seeds {self.options.start} to {self.next - 1}"
        )
        return len(self.failures)

    def _take(self) -> tuple[int, int]:
        with self.lock:
            if time.monotonic() >= self.end:
                return self.next, 0
            count = min(CHUNK, self.last - self.next)
            self.next += count
            return self.next - count, count

    def _job(self) -> None:
        while True:
            first, count = self._take()
            if count == 0:
                return
            while count > 0:
                reached = self._chunk(first, count)
                count -= reached - first
                first = reached
                if time.monotonic() >= self.end:
                    break

    def _chunk(self, first: int, count: int) -> int:
        """Runs a worker; the seed behind the last one that it did."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "seed"
            place.write_text(str(first))
            options = self.options
            command = [sys.executable, "-m", "tools.fuzz_graphs", "--worker", str(place), "--device", options.device]
            command += ["--start", str(first), "--count", str(count), "--shrink-seconds", str(options.shrink_seconds)]
            if self.end != float("inf"):
                command += ["--seconds", str(max(self.end - time.monotonic(), 0.1))]
            environment = {"RLX_CACHE_DIR": str(Path(folder) / "cache"), **isolated.environment()}
            environment["RLX_CACHE_DIR"] = str(Path(folder) / "cache")
            errors = Path(folder) / "errors"
            with errors.open("w") as stderr:
                worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
                watch = threading.Thread(target=self._watch, args=(worker, place), daemon=True)
                watch.start()
                reached = self._listen(worker)
                code = worker.wait()
            if os.environ.get("RLX_FUZZ_REFUSED"):
                sys.stderr.write(errors.read_text())
            if reached is not None:
                return reached
            seed = int(place.read_text())
            self._dead(seed, code, errors.read_text()[-2000:])
            return seed + 1

    def _watch(self, worker: subprocess.Popen[str], place: Path) -> None:
        """Ends a worker that stays at one seed for too long."""
        while worker.poll() is None:
            time.sleep(2)
            try:
                age = time.time() - place.stat().st_mtime
            except OSError:
                return
            if age > self.options.hang_seconds:
                worker.kill()
                return

    def _listen(self, worker: subprocess.Popen[str]) -> int | None:
        reached = None
        assert worker.stdout is not None
        for line in worker.stdout:
            report = json.loads(line)
            with self.lock:
                if "tally" in report or "so_far" in report:
                    self.tally.update(report.get("tally") or report.get("so_far") or {})
                    reached = report.get("at")
                    self._tell()
                else:
                    self._report(report)
        return reached

    def _tell(self) -> None:
        seconds = time.monotonic() - self.start
        if seconds > self.told + 4 * SAID_SECONDS:
            self.told = seconds
            print(f"{seconds:.0f} s: {self.tally['done']} graphs, {len(self.failures)} failed", flush=True)

    def _dead(self, seed: int, code: int, errors: str) -> None:
        from tools.fuzz import check, generate

        kind = "hang" if code == -9 else "crash"
        failure = check.Failure(kind, f"exit {code}: {errors}")
        text = isolated.shrunk(
            generate.generate(seed, self.options.device), failure, self.options.device, self.options.shrink_seconds
        )
        with self.lock:
            self._report({"seed": seed, "kind": kind, "message": failure.message, "text": text})

    def _report(self, report: dict[str, Any]) -> None:
        self.failures.append(report)
        print(report["text"], flush=True)
        if self.options.out is not None:
            with self.options.out.open("a") as file:
                file.write(json.dumps({**report, "device": self.options.device}) + "\n")
