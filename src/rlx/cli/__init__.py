"""The command `rlx`. Exit codes: 0 done, 1 rlx says no (one line on stderr), 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code. RLX_DEBUG=1 shows where an error came from."""
    with warnings.catch_warnings():
        warnings.showwarning = _tell
        return _main(argv)


def _tell(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    """A warning in one line, without the place in rlx that it comes from."""
    from rlx.cli.console import say

    say(f"rlx: {message}")


def _main(argv: Sequence[str] | None) -> int:
    from rlx import flags
    from rlx.cli.app import app
    from rlx.errors import RlxError

    loud = 0
    try:
        loud = flags.debug()
        app(args=None if argv is None else list(argv), prog_name="rlx")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        print("rlx: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RlxError, OSError, MemoryError) as error:
        if loud:
            raise
        from rlx.cli.console import say  # brings NumPy, which `--version` does without

        code = f" ({error.code})" if isinstance(error, RlxError) else ""
        say(f"rlx: {type(error).__name__}: {error}{code}")
        return 1
    return 0
