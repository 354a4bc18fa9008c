"""Runs the backend's kernels under compute-sanitizer, on a GPU, in slices of a time each.

    python -m tools.sanitize_cuda --tool memcheck --slice 1/2 --seconds 120
    python -m tools.sanitize_cuda --tool racecheck --slice 1/4 --seconds 120 [--only attention/]
    python -m tools.sanitize_cuda --list | --tool none        # names, or without a sanitizer

Trials are those of `cuda_trials.py`, those of ops behind all others. With memcheck and initcheck programs run three
times, of which the second is noted as a graph and the third replays it, with racecheck and synccheck once, and only
those with workgroup memory. A process ends with the time, or is ended 15 s later; one that lost its device is followed
by another for the rest. Ends with 1 if the sanitizer found something, or a result was wrong; what was not reached is
counted, and tells nothing.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(ROOT / "tests")]

from tools import cuda_trials  # noqa: E402
from tools.cuda_trials import GROUPS, LeftOut  # noqa: E402

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck", "none")
FOUND = 9
"""What a sanitizer's process ends with that found something."""
GRACE_S, LEAST_S = 15.0, 10.0
"""What a process is given behind its time, and how much must be left for another one."""
MOST_LINES = 14
"""Of a sanitizer's report that are printed for a trial."""
BEGIN, END, ENDED = "@ begin ", "@ end ", "@ ended"


def chosen(only: str, part: str, groups: str) -> list[str]:
    """Names of trials of a slice: ops in an order by chance behind all others, as most of them are alike."""
    number, count = (int(each) for each in part.split("/"))
    wanted = groups.split(",")
    names = [trial.name for trial in cuda_trials.trials() if only in trial.name]
    names = list(dict.fromkeys(name for name in names if name.partition("/")[0] in wanted))
    names.sort(key=lambda name: (GROUPS.index(name.partition("/")[0]), crc32(name.encode())))
    return names[number - 1 :: count]


def child(path: Path, seconds: float, tool: str) -> int:
    """Runs the trials whose names a file has; a line at the beginning and one at the end of each."""
    end = time.monotonic() + seconds
    wanted = path.read_text().splitlines()
    known = {trial.name: trial for trial in cuda_trials.trials()}
    race = tool in ("racecheck", "synccheck")
    for name in wanted:
        if time.monotonic() > end:
            break
        print(f"{BEGIN}{name}", flush=True)
        told = "right"
        try:
            known[name].run(1 if race else 3, race)
        except LeftOut as reason:
            told = f"left out: {reason}"
        except AssertionError as error:
            told = f"wrong: {' '.join(str(error).split())[:300]}"
        except Exception as error:
            refused = type(error).__name__ in ("UnsupportedOp", "Refused")
            place = traceback.extract_tb(error.__traceback__)[-1]
            words = " ".join(str(error).split())[:300]
            told = f"{'left out' if refused else 'error'}: {type(error).__name__}: {words} ({place.name})"
        print(f"{END}{told}", flush=True)
        if "DeviceLost" in told:
            return 3
    print(ENDED, flush=True)
    return 0


@dataclass
class Campaign:
    """Processes for the trials of a slice, one behind the other.

    ends    what became of each trial
    found   lines of the sanitizer by the trial that was run when they came
    """

    tool: str
    sanitizer: str
    end: float
    ends: dict[str, str] = field(default_factory=dict)
    found: dict[str, list[str]] = field(default_factory=lambda: collections.defaultdict(list))
    codes: list[int] = field(default_factory=list)

    def run(self, names: list[str]) -> None:
        rest = names
        while rest and self.end - time.monotonic() > LEAST_S:
            before = len(self.ends)
            if self._process(rest) or len(self.ends) == before:
                return  # it came to its end, or does not begin
            rest = [name for name in names if name not in self.ends]

    def _process(self, names: list[str]) -> bool:
        """Whether it came to its end by itself."""
        seconds = self.end - time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "names"
            path.write_text("\n".join(names))
            command = [sys.executable, "-m", "tools.sanitize_cuda", "--child", str(path)]
            command += ["--seconds", str(seconds), "--tool", self.tool]
            if self.tool != "none":
                options = ["--tool", self.tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
                command = [self.sanitizer, *options, *command]
            environment = {**os.environ, "RLX_CUDA_BLAS": "off", "OMP_NUM_THREADS": "4"}
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
            limit = threading.Timer(seconds + GRACE_S, os.killpg, (process.pid, signal.SIGKILL))
            limit.start()
            try:
                ended = self._listen(process)
            finally:
                limit.cancel()
            self.codes.append(process.wait())
        return ended

    def _listen(self, process: subprocess.Popen[str]) -> bool:
        name, ended, tail, started = "(before the first)", False, collections.deque[str](maxlen=8), time.monotonic()
        assert process.stdout is not None
        for line in map(str.rstrip, process.stdout):
            tail.append(line)
            if line.startswith(BEGIN):
                name, started = line.removeprefix(BEGIN), time.monotonic()
                self.ends[name] = "did not end"
            elif line.startswith(END):
                self._told(name, line.removeprefix(END), time.monotonic() - started)
            elif line == ENDED:
                ended = True
            elif "SUMMARY:" in line:
                print(line, flush=True)
            elif line.startswith("=========") and not _is_harmless(line):
                self.found[name].append(line)
                if len(self.found[name]) <= MOST_LINES:
                    print(f"{name}: {line}", flush=True)
        if self.ends.get(name, "did not end") == "did not end":
            print(f"{name} did not end; the last lines:", *tail, sep="\n  ", flush=True)
        return ended

    def _told(self, name: str, told: str, seconds: float) -> None:
        self.ends[name] = told
        if not told.startswith(("right", "left out")) or seconds > 10:
            print(f"{name}: {told} ({seconds:.1f} s)", flush=True)
        if len(self.ends) % 20 == 0:
            print(f"{len(self.ends)} trials, {self.end - time.monotonic():.0f} s left", flush=True)


def _is_harmless(line: str) -> bool:
    """Whether a sanitizer says who it is."""
    return line.removeprefix("=========").strip() in ("", "COMPUTE-SANITIZER")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", choices=TOOLS, default="memcheck")
    parser.add_argument("--slice", default="1/1", help="I/N: one trial of N, beginning with the I-th")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", default="", help="trials whose names hold this")
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--sanitizer", default="compute-sanitizer")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        return child(given.child, given.seconds, given.tool)
    start = time.monotonic()
    names = chosen(given.only, given.slice, given.groups)
    if given.list:
        print("\n".join(names))
        return 0
    campaign = Campaign(given.tool, given.sanitizer, start + given.seconds)
    campaign.run(names)
    kinds = collections.Counter(told.partition(":")[0] for told in campaign.ends.values())
    by_group = collections.Counter(name.partition("/")[0] for name, told in campaign.ends.items() if told == "right")
    print(
        f"{given.tool}, slice {given.slice}: of {len(names)} trials {kinds['right']} right "
        f"({', '.join(f'{count} {group}' for group, count in by_group.items())}), {kinds['left out']} left out, "
        f"{kinds['wrong']} wrong, {kinds['error']} with an error, {kinds['did not end']} did not end, "
        f"{len(names) - len(campaign.ends)} not reached; the sanitizer found something in {len(campaign.found)}; "
        f"{time.monotonic() - start:.0f} s, processes ended with {campaign.codes}"
    )
    for name, told in campaign.ends.items():
        if told.startswith(("wrong", "error", "did")) or name in campaign.found:
            print(f"  {name}: {told}{', found something' * (name in campaign.found)}")
    failed = kinds["wrong"] + kinds["error"] + kinds["did not end"] + len(campaign.found)
    return 1 if failed or FOUND in campaign.codes or not kinds["right"] else 0


if __name__ == "__main__":
    sys.exit(main())
