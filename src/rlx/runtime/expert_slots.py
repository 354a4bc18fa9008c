"""Products by experts of which a device holds only some: a weight of as many matrices as there are slots, and which
expert is in each.

The host knows the choice before a product runs. It brings the chosen experts that are missing, in place of those that
were not chosen for longest, and tells each row its slot. If more experts were chosen than there are slots, the product
runs several times, with other experts each time, and every row takes its result from the run in which its expert was
there. Results are therefore those of a device that holds all experts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlx import locks
from rlx.backends.executable import Bound, Executable, KernelTime
from rlx.backends.memory import DeviceArray
from rlx.errors import InputError
from rlx.ir import dim as dims
from rlx.ir.check import Violation
from rlx.ir.graph import Graph, Node
from rlx.ir.literal import Array
from rlx.passes.held_experts import BEFORE, WEIGHT
from rlx.runtime.bind_cache import BindCache

NOWHERE = -1
MOST_ZEROS = 8


class Slots:
    """Which expert is in each slot.

    preferred   experts that leave only if all others that were not chosen have left
    fetched     experts that were brought so far
    """

    def __init__(self, experts: int, slots: int) -> None:
        self.count = slots
        self.preferred = np.zeros(experts, np.bool_)
        self.fetched = 0
        self._expert_of = np.full(slots, NOWHERE)
        self._slot_of = np.full(experts, NOWHERE, np.int32)
        self._used = np.zeros(slots, np.int64)
        self._turn = 0

    def forget(self) -> None:
        """No slot has an expert: the weight has other numbers now."""
        self._expert_of[:] = NOWHERE
        self._slot_of[:] = NOWHERE

    def passes(self, chosen: Array, bring: Callable[[int, int], None]) -> Iterator[Array]:
        """The slots of all rows in each of the runs that serve them, after `bring(expert, slot)` has brought the
        experts of that run. At least one run, even of no rows."""
        left = np.unique(chosen)
        while True:
            self._make_room(left, bring)
            served = left[self._slot_of[left] != NOWHERE]
            self._turn += 1
            self._used[self._slot_of[served]] = self._turn
            yield np.where(np.isin(chosen, served), self._slot_of[chosen], np.int32(NOWHERE))
            left = np.setdiff1d(left, served, assume_unique=True)
            if not len(left):
                return

    def _make_room(self, wanted: Array, bring: Callable[[int, int], None]) -> None:
        """Brings as many of the experts as have room beside those of them that are there."""
        missing = wanted[self._slot_of[wanted] == NOWHERE]
        held = self._expert_of != NOWHERE
        kept = held & np.isin(self._expert_of, wanted)
        liked = held & self.preferred[self._expert_of]
        free = np.lexsort((self._used, liked, held))  # empty ones first, then by the time of their last use
        for expert, slot in zip(missing.tolist(), [s for s in free.tolist() if not kept[s]]):
            before = self._expert_of[slot]
            if before != NOWHERE:
                self._slot_of[before] = NOWHERE
            self._expert_of[slot] = NOWHERE  # while nobody knows what is in it
            bring(expert, slot)
            self._expert_of[slot], self._slot_of[expert] = expert, slot
            self.fetched += 1


def add_times(times: list[KernelTime], more: Iterable[KernelTime]) -> None:
    """Adds times of what began where all before it had ended."""
    start = max((time.first_ns + time.total_ns for time in times), default=0.0)
    times += [replace(time, first_ns=time.first_ns + start) for time in more]


class SharedMemory:
    """What the products of a program have in common, as they run one after the other: buffers of the sizes that were
    used last, RLX_PLAN_BYTES of all products together, and results to begin with."""

    def __init__(self) -> None:
        self.plans = BindCache()
        self._zeros: OrderedDict[Any, DeviceArray | Array] = OrderedDict()
        self._lock = locks.lock()

    def zeros(self, program: Executable, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray | Array:
        """An array of zeros in the memory of a program, which nobody writes to."""
        key = (shape, dtype)
        with self._lock:
            found = self._zeros.pop(key, None)
            self._zeros[key] = array = program.put(BEFORE, np.zeros(shape, dtype)) if found is None else found
            if len(self._zeros) > MOST_ZEROS:
                self._zeros.popitem(last=False)
            return array

    def give_back(self) -> None:
        with self._lock:
            self._zeros.clear()
        self.plans.clear()


class HeldProduct:
    """A grouped product of a graph on a weight in slots. Its calls from many threads take turns.

    program   the executable of `passes.held_experts.product_on_slots`
    """

    def __init__(
        self, node: Node, graph: Graph, program: Executable, slots: int, checked: bool, shared: SharedMemory
    ) -> None:
        self.rows, weight, self.experts = node.inputs
        self.node, self.graph, self.program, self.checked = node, graph, program, checked
        self.weight = weight.name
        (self.count,) = (n for n in weight.shape[:1] if isinstance(n, int))  # `held_weights` takes no others
        self.slots = Slots(self.count, slots)
        self.words = Violation(node.op.name, "indices", node.source or node.name)
        self._matrices: Array | None = None
        self._shared = shared
        self._lock = locks.lock()

    def set_weight(self, array: Array) -> None:
        """The matrices of all experts, which stay on the host."""
        with self._lock:
            self._matrices = array
            self.slots.forget()

    def prefer(self, mask: Array) -> None:
        """From now on the experts of the mask stay on the device if there is a choice."""
        with self._lock:
            self.slots.preferred = mask.copy()

    def give_back(self) -> None:
        """Gives back the memory on the device."""
        with self._lock:
            self.slots.forget()
            self.program.give_back()
        self._shared.give_back()

    def clone(self, weights: bool, shared: SharedMemory) -> HeldProduct:
        """The product with slots of its own, which are empty."""
        program = self.program.clone(weights=False)
        clone = HeldProduct(self.node, self.graph, program, self.slots.count, self.checked, shared)
        clone._matrices = self._matrices if weights else None
        clone.slots.preferred = self.slots.preferred
        return clone

    def run(self, rows: Any, experts: Array, binding: Mapping[str, int], times: list[KernelTime] | None = None) -> Any:
        """The rows times the matrices of their experts, on the device; if `times` are asked for, each run of the
        product is done twice, and adds those of its kernels. Raises InputError for an expert that there is not."""
        chosen = self._numbers(experts)
        with self._lock:
            bound, zeros = self._plan(binding)
            results: Any = zeros
            for at in self.slots.passes(chosen, self._bring):
                if times is not None:
                    add_times(times, bound.profile([rows, results, at]))
                (results,) = bound.deliver_to(["device"], [rows, results, at])
        return results

    def _numbers(self, experts: Array) -> Array:
        wide = experts.astype(np.int64)
        inside = (wide >= -self.count) & (wide < self.count)
        if self.checked and not inside.all():
            raise self.words.error(-self.count, self.count, int(wide[~inside][0]))
        return np.clip(np.where(wide < 0, wide + self.count, wide), 0, self.count - 1)

    def _bring(self, expert: int, slot: int) -> None:
        if self._matrices is None:
            raise InputError(f"[run] expected data of every param, got none for {self.weight!r}: set_param gives it")
        self.program.write_part(WEIGHT, slot, self._matrices[expert])

    def _plan(self, binding: Mapping[str, int]) -> tuple[Bound, DeviceArray | Array]:
        """The program at these sizes, and zeros of its results' shape."""
        known = {name: binding[name] for name in self.graph.symbols}
        key = (id(self), *known.items())
        bound = self._shared.plans.get(key)
        if bound is None:
            bound = self.program.bind(known)
            self._shared.plans.put(key, bound)
        of = self.node.types[0]
        shape = tuple(dims.evaluate(d, known) for d in of.shape)
        return bound, self._shared.zeros(self.program, shape, of.dtype.numpy)

    def describe(self) -> dict[str, Any]:
        return {"experts": self.count, "slots": self.slots.count, "fetched": self.slots.fetched}
