"""Graphs of runs that read arrays of the device where they lie, and put results where they stay.

A graph has the places of what it reads and writes in it. Callers that run in a row give the same arrays, or arrays at
a few places by turns, and results get the memory of results that nobody has any more (`spares.py`). So a set of places
that comes for the second time gets a graph of its own, which is all that such a run gives a stream.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from rlx.backends.cuda.device import Device
from rlx.backends.cuda.launches import Given
from rlx.backends.cuda.replay import Noted

MOST_GRAPHS = 8
"""Of a program at one size."""
MOST_SEEN = 64
"""Sets of places that are remembered."""
RUNS_A_GRAPH = 256
"""Of runs at other places there are at least so many between two graphs that take another's place: to note one takes
as long as some ten runs."""


class DirectGraphs:
    """The graphs of a program at one size by forms of runs and places."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._graphs: OrderedDict[Hashable, Noted] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._others = RUNS_A_GRAPH

    def get(self, key: Hashable) -> Noted | None:
        """The graph for a form and places, if there is one."""
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
        return graph

    def is_worth_one(self, key: Hashable) -> bool:
        """Whether a graph is to be noted for a form and places that have none."""
        self._others += 1
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > MOST_SEEN:
                self._seen.popitem(last=False)
            return False
        self._seen.move_to_end(key)
        return len(self._graphs) < MOST_GRAPHS or self._others >= RUNS_A_GRAPH

    def note(self, key: Hashable, launches: list[Given], run: Callable[[Any], None]) -> Noted:
        """A graph of what `run` gives a stream; the one that was not used for longest becomes it where there are too
        many. Call it within `Device.work`."""
        graph = Noted(self.device)
        if len(self._graphs) >= MOST_GRAPHS:
            graph = self._graphs.popitem(last=False)[1]
            self._others = 0
        graph.note(launches, run)
        self._graphs[key] = graph
        return graph

    def clear(self) -> None:
        """Drops all of them: weights have moved."""
        self._graphs.clear()
        self._seen.clear()
