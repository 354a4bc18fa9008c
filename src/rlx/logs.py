"""What rlx reports about its work, through `logging` with the loggers `rlx.*`. RLX_DEBUG sets their level, and shows
their messages on stderr in programs that have not set up logging."""

from __future__ import annotations

import logging
import sys

from rlx import flags

LEVELS = (logging.NOTSET, logging.INFO, logging.DEBUG, logging.DEBUG - 2, logging.DEBUG - 4)
"""By the number of RLX_DEBUG that shows it."""
COMPILES, PASSES, REWRITES = 1, 2, 4


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if flags.debug() and not logging.getLogger().handlers:
            print(f"rlx: {record.getMessage()}", file=sys.stderr)


_all = logging.getLogger("rlx")
_all.addHandler(_Stderr())
_followed = 0


def wanted(level: int, room: str) -> bool:
    """Whether anybody hears what is told at a level, by the number of RLX_DEBUG."""
    global _followed
    debug = min(flags.debug(), len(LEVELS) - 1)
    if debug != _followed:
        _all.setLevel(LEVELS[debug])
        _followed = debug
    return logging.getLogger(f"rlx.{room}").isEnabledFor(LEVELS[level])


def tell(level: int, room: str, text: str) -> None:
    """Tells something by the logger `rlx.<room>`."""
    if wanted(level, room):
        logging.getLogger(f"rlx.{room}").log(LEVELS[level], text)


def warn(room: str, text: str) -> None:
    """Tells what somebody should look at, though it went on."""
    logging.getLogger(f"rlx.{room}").warning(text)
