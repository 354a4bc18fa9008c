"""What rlx reports about its work, through `logging` with the loggers `rlx.*`. RLX_DEBUG sets their level, and shows
their messages on stderr in programs that have not set up logging."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from rlx import flags

if TYPE_CHECKING:
    from logging import Logger

LEVELS = (0, 20, 10, 8, 6)
"""By the number of RLX_DEBUG that shows it: none, INFO, DEBUG, and two below."""
COMPILES, PASSES, REWRITES = 1, 2, 4
_followed = 0


@cache
def _all() -> Logger:
    """The logger above all of ours. `logging` is imported with the first message, or if somebody else has done so:
    who has not listens to none."""
    import logging

    class Stderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if flags.debug() and not logging.getLogger().handlers:
                print(f"rlx: {record.getMessage()}", file=sys.stderr)

    logger = logging.getLogger("rlx")
    logger.addHandler(Stderr())
    return logger


def wanted(level: int, room: str) -> bool:
    """Whether anybody hears what is told at a level, by the number of RLX_DEBUG."""
    global _followed
    debug = min(flags.debug(), len(LEVELS) - 1)
    if not debug and "logging" not in sys.modules:
        return False
    if debug != _followed:
        _all().setLevel(LEVELS[debug])
        _followed = debug
    return _all().getChild(room).isEnabledFor(LEVELS[level])


def tell(level: int, room: str, text: str) -> None:
    """Tells something by the logger `rlx.<room>`."""
    if wanted(level, room):
        _all().getChild(room).log(LEVELS[level], text)


def warn(room: str, text: str) -> None:
    """Tells what somebody should look at, though it went on."""
    _all().getChild(room).warning(text)
