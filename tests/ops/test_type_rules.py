"""Whatever a type rule accepts, the reference can do, and in the shape that the rule says.

Where it cannot, kernels would read or write beyond their operands: they trust the rule.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ops.cases import Case, cases_of_every_op
from rlx.errors import RlxError
from rlx.ir import dtype as dtypes
from rlx.ir.inference import infer
from rlx.ir.literal import Array
from rlx.ir.op import LEAVES
from rlx.ir.type import TensorType

LARGE = 20_000
"""Elements of operands that are left alone, for time's sake."""
CASES: dict[str, list[Case]] = {}
for case in cases_of_every_op():
    if not isinstance(case.op, LEAVES) and not case.op.regions:
        CASES.setdefault(case.op.name, []).append(case)


def resized(arrays: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    """The arrays with one of them shorter, longer or empty along one axis."""
    for number, array in enumerate(arrays):
        for axis, extent in enumerate(array.shape if array.size <= LARGE else ()):
            for other in sorted({0, 1, max(extent - 1, 0), extent + 1, 2 * extent + 3} - {extent}):
                places = np.arange(other) % max(extent, 1)
                shape = (*array.shape[:axis], other, *array.shape[axis + 1 :])
                changed = np.take(array, places, axis) if extent else np.zeros(shape, array.dtype)
                yield (*arrays[:number], changed, *arrays[number + 1 :])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_reference_takes_what_the_type_rule_takes(name: str) -> None:
    for case in CASES[name]:
        for arrays in resized(tuple(map(np.asarray, case.arrays))):
            types = tuple(TensorType(a.shape, dtypes.of(a.dtype)) for a in arrays)
            try:
                expected = infer(case.op, types)
            except RlxError:
                continue
            try:
                with np.errstate(all="ignore"):
                    results = case.op.reference(*arrays)
            except RlxError:
                continue  # of what is in them, not of their shapes
            outputs = results if isinstance(results, tuple) else (results,)
            shapes = [np.shape(a) for a in outputs]
            of = expected if isinstance(expected, tuple) else (expected,)
            assert shapes == [t.shape for t in of], f"{case.op} of {', '.join(map(str, types))}"
