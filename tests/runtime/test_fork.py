"""Forks: a child works whatever other threads of its parent were at, and knows what it cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


def run(text: str, seconds: float = 120) -> str:
    """What a script prints."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "RLX_CACHE": "0"}
    command = [sys.executable, "-c", textwrap.dedent(text)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_children_of_a_process_that_compiles() -> None:
    output = run(
        """
        import os, threading, time
        import numpy as np
        import rlx

        def graph(links, k):
            g = rlx.Graph()
            x = g.input("x", (16, 16))
            for i in range(links):
                x = rlx.tanh(x @ x * (k + i * 0.01))
            g.output(x, name="y")
            return g

        def compile_on(stop, model):
            k = 0
            while not stop.is_set():
                k += 1
                rlx.Session("cpu").compile(graph(30, k)).run([np.zeros((16, 16), "f4")])

        shared = rlx.Session("cpu").compile(graph(1, 0))
        stop = threading.Event()
        thread = threading.Thread(target=compile_on, args=(stop, shared))
        thread.start()
        for i in range(6):
            time.sleep(0.15)
            child = os.fork()
            if child == 0:
                made = rlx.Session("cpu").compile(graph(2, 1000 + i))
                made.run([np.zeros((16, 16), "f4")])
                shared.run([np.zeros((16, 16), "f4")])
                os._exit(7)
            until = time.monotonic() + 60
            while time.monotonic() < until:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    break
                time.sleep(0.02)
            else:
                os.kill(child, 9)
                stop.set()
                raise SystemExit("a child hung")
            assert os.waitstatus_to_exitcode(status) == 7
        stop.set()
        thread.join()
        print("done")
        """
    )
    assert output == "done\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_runs_that_were_queued_before_a_fork() -> None:
    """The child is told that they are its parent's; its own go on. The parent's are done."""
    output = run(
        """
        import os
        import numpy as np
        import rlx

        g = rlx.Graph()
        x = g.input("x", (400, 400))
        y = x
        for _ in range(20):
            y = rlx.tanh(y @ x)
        g.output(y, name="y")
        made = rlx.Session("cpu").compile(g)
        data = np.full((400, 400), 0.01, "f4")
        right = made.run([data])[0]
        queued = [made.run_pipelined([data]) for _ in range(8)]
        child = os.fork()
        if child == 0:
            made.sync()
            try:
                queued[-1].result(10)
                os._exit(1)
            except rlx.RlxError as error:
                assert "before it was forked" in str(error), error
            again = made.run_pipelined([data]).result(60)[0]
            os._exit(7 if np.array_equal(again, right) else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert all(np.array_equal(pending.result(60)[0], right) for pending in queued)
        print("done")
        """
    )
    assert output == "done\n"
