"""Lengths in buckets: the same results as without, few compiles, and the reason of each."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.base import Options
from rlx.backends.executable import Capabilities, Executable
from rlx.backends.reference import ReferenceBackend, ReferenceExecutable
from rlx.device import registry
from rlx.errors import InputError
from rlx.ir.graph import Graph
from rlx.runtime.buckets import BucketedCache, power_of_two_ladder

W = np.random.default_rng(0).standard_normal((4, 4)).astype("f4")
LADDERS = {"batch": (1, 4), "seq": power_of_two_ladder(2, 16)}


def masked() -> rlx.Graph:
    """A softmax along seq under a mask: padded entries must be masked away."""
    graph = rlx.Graph("masked")
    x, mask = graph.input("x", ("batch", "seq", 4)), graph.input("mask", ("batch", "seq"))
    scores = (x @ graph.param("w", (4, 4))) + mask.reshape(("batch", "seq", 1))
    graph.output(rlx.softmax(scores, axis=1), name="y")
    graph.output(rlx.reduce_max(mask, axes=(1,)), name="most")
    return graph


def inputs_of(batch: int, seq: int) -> dict[str, Any]:
    random = np.random.default_rng(batch * 100 + seq)
    return {
        "x": random.standard_normal((batch, seq, 4)).astype("f4"),
        "mask": random.standard_normal((batch, seq)).astype("f4"),
    }


def made_of(device: str = "cpu", **options: Any) -> BucketedCache:
    program = BucketedCache(masked(), rlx.Session(device), LADDERS, {"mask": float("-inf")}, **options)
    program.set_params({"w": W})
    return program


SIZES = [(1, 1), (1, 2), (1, 3), (2, 5), (4, 16), (3, 16), (1, 3), (2, 5)]


@pytest.mark.parametrize("static", [None, True])
def test_results_are_those_of_the_lengths_themselves(static: bool | None) -> None:
    cache = made_of(static=static)
    exact = rlx.Session("cpu").compile(masked())
    exact.set_params({"w": W})
    for sizes in SIZES:
        inputs = inputs_of(*sizes)
        for actual, expected in zip(cache.run_padded(inputs), exact.run(inputs)):
            assert actual.shape == expected.shape
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert cache.compiles == len(cache) == (4 if static else 1)
    assert cache.hits == len(SIZES) - cache.compiles
    cache.set_params({"w": W * 0})
    assert np.allclose(cache.run_padded(inputs_of(1, 4))[0].sum(1), 1)


def test_compiles_are_explained() -> None:
    cache = made_of("reference", static=True)
    for sizes in ((1, 2), (1, 3), (4, 3), (4, 2), (1, 4)):
        cache.run_padded(inputs_of(*sizes))
    reasons = [str(each) for each in cache.explain_recompiles()]
    assert reasons[0] == "batch=1, seq=2: the first run"
    assert reasons[1] == "batch=1, seq=4: a new size of seq=4 (there were 2)"
    assert reasons[2] == "batch=4, seq=4: a new size of batch=4 (there were 1)"
    assert reasons[3] == "batch=4, seq=2: known sizes in a new combination"
    assert len(reasons) == 4 and cache.hits == 1
    assert cache.bucket_of(inputs_of(2, 9)) == {"batch": 4, "seq": 16}


def test_programs_are_dropped_by_bytes() -> None:
    cache = made_of(static=True, max_bytes=1)
    cache.run_padded(inputs_of(1, 2))
    cache.run_padded(inputs_of(1, 4))
    cache.run_padded(inputs_of(1, 2))
    assert len(cache) == 1 and cache.evictions == 2 and cache.compiles == 3 and cache.nbytes > 1
    assert "dropped to keep all within 1 bytes" in str(cache.explain_recompiles()[-1])


def test_what_does_not_fit_is_refused() -> None:
    cache = made_of("reference")
    with pytest.raises(InputError, match=r"'seq' to be at most 16, got 17"):
        cache.run_padded(inputs_of(1, 17))
    with pytest.raises(InputError):
        cache.run_padded({"x": inputs_of(1, 2)["x"]})
    session = rlx.Session("reference")
    for ladders, pads in (
        ({"nope": (1,)}, {}), ({"seq": ()}, {}), ({"seq": (4, 2)}, {}), ({"seq": (0, 2)}, {}), ({"seq": (1.5,)}, {}),
        ({"seq": (2,)}, {"nope": 0}), ({"seq": (2,)}, {"mask": "0"}),
    ):  # fmt: skip
        with pytest.raises(InputError):
            BucketedCache(masked(), session, ladders, pads)  # type: ignore[arg-type]
    for pad in (300, -1, 1.5, float("nan"), 10**30, None):
        graph = rlx.Graph()
        graph.output(graph.input("x", ("n",), "u8"), name="y")
        with pytest.raises(InputError, match="pad value"):
            BucketedCache(graph, session, {"n": (2,)}, {"x": pad})
    graph = rlx.Graph()
    graph.output(graph.input("x", ("n", "m")).reshape(("n*m",)), name="y")
    with pytest.raises(InputError, match=r"m\*n|n\*m"):
        BucketedCache(graph, session, {"n": (2,)})
    with pytest.raises(InputError):
        power_of_two_ladder(0, 4)
    assert power_of_two_ladder(3, 17) == (4, 8, 16, 32) and power_of_two_ladder(1, 1) == (1,)


class _Static(ReferenceExecutable):
    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(dynamic_dims=False, active_extent=False)


class StaticBackend(ReferenceBackend):
    """The reference, if it could run at one size only."""

    seen: list[list[str]]

    def compile(self, graph: Graph, options: Options, ordinal: int = 0) -> Executable:
        self.seen = [*getattr(self, "seen", []), graph.symbols]
        return _Static(graph)


def test_a_device_of_static_shapes_gets_a_program_for_each_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = StaticBackend()
    monkeypatch.setattr(registry, "backend", lambda device: (backend, 0))
    cache = made_of("reference")
    exact = inputs_of(2, 5)
    assert cache.run_padded(exact)[0].shape == (2, 5, 4)
    assert backend.seen[-1] == [] and cache.compiles == 1 and len(cache) == 1
    with pytest.raises(rlx.CapabilityError, match="active_extent"):
        rlx.Session("reference").compile(masked()).set_active_extent("seq", 2)


def test_many_threads_compile_each_bucket_once() -> None:
    cache = made_of("reference", static=True)
    failures: list[str] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(20):
            batch, seq = int(random.integers(1, 5)), int(random.integers(1, 17))
            if cache.run_padded(inputs_of(batch, seq))[0].shape != (batch, seq, 4):
                failures.append(f"{batch} {seq}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and cache.compiles == len(cache) <= 8
