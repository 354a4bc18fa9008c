"""Models whose program is in the cache on disk start without their graph, and answer as they would with it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rlx
from rlx import disk
from rlx.backends.cpu import tiers
from rlx.backends.stored_weights import LateWeights
from rlx.device import calibration
from rlx.errors import InputError, ModelError
from rlx.model import Model
from rlx.runtime.compiler import CODE

SOURCE = Path(rlx.__file__).parents[1]
X = np.arange(12, dtype="f4").reshape(3, 4)
WEIGHT = np.linspace(-1, 1, 4 * 512, dtype="f4").reshape(4, 512)


def write(path: Path, weight: np.ndarray[Any, Any] = WEIGHT, scale: float = 1.0, external: str = "") -> Path:
    """x[n, 4] · weight · scale + y[m, 512], where n and m may broadcast; and rows of x by an index."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Mul", ["product", "scale"], ["scaled"]),
            helper.make_node("Add", ["scaled", "y"], ["sum"]),
            helper.make_node("Gather", ["x", "at"], ["rows"]),
        ],
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", 512]),
            helper.make_tensor_value_info("at", TensorProto.INT64, [2]),
        ],
        [
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("rows", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.float32(scale), "scale")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path, save_as_external_data=bool(external), location=external or None, size_threshold=16)
    return path


def inputs(m: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": X, "y": np.ones((m, 512), "f4"), "at": np.array([2, 0])}


def wanted(weight: np.ndarray[Any, Any] = WEIGHT, scale: float = 1.0) -> np.ndarray[Any, Any]:
    return X @ weight * np.float32(scale) + 1


@pytest.fixture(autouse=True)
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    CODE.clear()  # which would spare the folder an entry
    yield
    wait_for_writers()  # or they would write into the folder of the next test


def wait_for_writers() -> None:
    for thread in threading.enumerate():
        if thread.name == "rlx-weights":
            thread.join()


def load(path: Path, **options: Any) -> Model:
    return rlx.load(path, **{"device": "cpu", **options})


def started(model: Model) -> bool:
    """Whether it starts from a record, as long as nobody has asked for its graph."""
    return model._imported is None


def first(path: Path, **options: Any) -> Path:
    """A model that ran once."""
    model = load(path, **options)
    assert not started(model)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
    return path


HEAVY = ("llvmlite", "onnx", "google.protobuf", "rich", "typer", "jax", "wgpu", "mlx", "torch", "rlx.ops", "rlx.passes",
         "rlx.ir.graph", "rlx.codegen.simd.module", "rlx.frontends.onnx.importer", "rlx.device.choice",
         "importlib.metadata", "importlib.resources", "ml_dtypes", "logging", "tempfile", "rlx.frontends", "rlx.models",
         "rlx.tracing", "rlx.kernel", "rlx.cost")  # fmt: skip

SCRIPT = """
import json, sys
import numpy as np
before = set(sys.modules)
import rlx
model = rlx.load(sys.argv[1], device=sys.argv[2])
made = model(x=np.arange(12, dtype="f4").reshape(3, 4), y=np.ones((3, 512), "f4"), at=np.array([2, 0]))
loaded = sorted(set(sys.modules) - before)
print(json.dumps([loaded, model.device, model.compiled.describe()["from_cache"], made["sum"].tolist()]))
"""


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_start_from_the_cache_imports_little(tmp_path: Path, device: str) -> None:
    path = write(tmp_path / "net.onnx")
    reports = []
    for _ in range(2):
        completed = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(path), device], capture_output=True, text=True, check=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "RLX_DEVICES": "cpu"},
        )  # fmt: skip
        assert not completed.stderr, "nothing complains when the process ends"
        reports.append(json.loads(completed.stdout))
    (cold, *_, sums), (warm, on, from_cache, again) = reports
    assert "rlx.ops" in cold and "onnx.onnx_ml_pb2" in cold and "onnx" not in cold, "messages alone"
    assert on == "cpu" and from_cache and sums == again
    assert not [name for name in warm if name in HEAVY or name.startswith(tuple(f"{heavy}." for heavy in HEAVY))]
    assert len(warm) < 100


def rewritten(path: Path, change: Callable[[], object]) -> None:
    """What a change writes keeps size and time."""
    before = path.stat()
    change()
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_of_the_same_size_and_time_is_looked_into(tmp_path: Path) -> None:
    path = first(write(tmp_path / "net.onnx"))
    assert started(load(path))
    rewritten(path, lambda: write(path, -2 * WEIGHT))
    np.testing.assert_allclose(load(path)(**inputs())["sum"], wanted(-2 * WEIGHT), rtol=1e-4, atol=1e-5)
    rewritten(path, lambda: write(path, WEIGHT, scale=3.0))
    np.testing.assert_allclose(load(path)(**inputs())["sum"], wanted(scale=3.0), rtol=1e-4, atol=1e-5)


def test_external_data_are_looked_into(tmp_path: Path) -> None:
    path = first(write(tmp_path / "net.onnx", external="net.bin"))
    model = load(path)
    assert started(model)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
    negated = (tmp_path / "net.bin").read_bytes().replace(WEIGHT.tobytes(), (-WEIGHT).tobytes())
    rewritten(tmp_path / "net.bin", lambda: (tmp_path / "net.bin").write_bytes(negated))
    np.testing.assert_allclose(load(path)(**inputs())["sum"], wanted(-WEIGHT), rtol=1e-4, atol=1e-5)
    (tmp_path / "net.bin").unlink()
    with pytest.raises(ModelError, match=r"net\.bin"):
        load(path)


def test_a_model_starts_in_another_folder_and_under_another_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container that has a copy of the cache."""
    first(write(tmp_path / "net.onnx", external="net.bin"))
    there = tmp_path / "there"
    there.mkdir()
    for name in ("net.onnx", "net.bin"):
        (tmp_path / name).rename(there / name)
    here = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((here[0], "another", *here[2:])))
    model = load(there / "net.onnx")
    assert started(model)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
    write(tmp_path / "net.onnx", -WEIGHT, external="net.bin")  # of the same name and size
    np.testing.assert_allclose(load(tmp_path / "net.onnx")(**inputs())["sum"], wanted(-WEIGHT), rtol=1e-4, atol=1e-5)


def test_weights_that_are_not_in_the_file_as_they_are(tmp_path: Path) -> None:
    weight = WEIGHT.copy()
    weight[0, :5] = 1e-42
    path = write(tmp_path / "net.onnx", weight)
    whole = load(path)(**inputs())["sum"]
    model = load(path)
    assert started(model)
    np.testing.assert_array_equal(model(**inputs())["sum"], whole)
    assert not model.compiled.params["w"][0, :5].any()
    assert load(path, keep_subnormals=True).compiled.params["w"][0, :5].all()


@pytest.mark.parametrize(
    "other",
    [{"check_indices": False}, {"threads": 1}, {"disable": ["pack"]}, {"shapes": {"x": [3, 4]}}, {"mmap": True}],
    ids=lambda other: next(iter(other)),
)  # fmt: skip
def test_other_options_go_the_usual_way(tmp_path: Path, other: dict[str, Any]) -> None:
    first(write(tmp_path / "net.onnx"))
    assert not started(load(tmp_path / "net.onnx", **other))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLX_DISABLE", "pack"), ("RLX_MAX_NODES", "100"), ("RLX_CHECK_INDICES", "0"), ("RLX_DEBUG", "3"),
        ("RLX_CACHE", "0"),
    ],
)  # fmt: skip
def test_another_environment_goes_the_usual_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    first(write(tmp_path / "net.onnx"))
    monkeypatch.setenv(name, value)
    assert not started(load(tmp_path / "net.onnx"))


def test_another_processor_goes_the_usual_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first(write(tmp_path / "net.onnx"))
    monkeypatch.setattr("rlx.runtime.stored._processor", lambda: "another")
    assert not started(load(tmp_path / "net.onnx"))
    monkeypatch.setattr("rlx.runtime.stored._processor", lambda: "")
    assert not started(load(tmp_path / "net.onnx"))


def test_a_choice_that_hangs_on_more_goes_the_usual_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import rlx.device.choice  # noqa: F401  # this process has looked at devices

    monkeypatch.setenv("RLX_DEVICES", "cpu,xla")
    first(write(tmp_path / "net.onnx"), device="auto")
    assert started(load(tmp_path / "net.onnx", device="auto"))
    monkeypatch.setattr(calibration, "is_measured", lambda device: True)
    monkeypatch.setattr(calibration, "known", lambda device: True)  # xla was measured, which no longer makes it plain
    assert not started(load(tmp_path / "net.onnx", device="auto"))


def test_a_damaged_entry_is_no_entry(tmp_path: Path) -> None:
    path = first(write(tmp_path / "net.onnx"))
    (record,) = (tmp_path / "cache").glob("start-*")
    whole = record.read_bytes()
    record.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    first(path)
    assert started(load(path)), "it was written anew"
    disk.write(record.name.removesuffix(disk.SUFFIX), b"of another version")
    first(path)


def packed_entries(tmp_path: Path) -> list[Path]:
    """Entries of packed weights, when nobody writes them any more."""
    wait_for_writers()
    return list((tmp_path / "cache").glob("packed-*"))


def weights_of(model: Model) -> Any:
    executable: Any = model.compiled.executable
    return executable.equal.weights


def test_packed_weights_are_mapped(tmp_path: Path) -> None:
    path = first(write(tmp_path / "net.onnx"))
    (entry,) = packed_entries(tmp_path)
    model = load(path)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
    packed, params = weights_of(model).packed.arrays.values(), model.compiled.program.params
    assert all(not array.flags.owndata and not array.flags.writeable for array in packed)
    assert isinstance(params, LateWeights) and params._arrays is None, "the files were not read into memory"
    np.testing.assert_array_equal(model.compiled.params["w"], WEIGHT)
    assert packed_entries(tmp_path) == [entry]


def test_packed_weights_that_are_gone_or_damaged_are_packed_again(tmp_path: Path) -> None:
    path = first(write(tmp_path / "net.onnx"))
    (entry,) = packed_entries(tmp_path)
    whole = entry.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-64], whole[:10], b"", None):
        if damaged is None:
            entry.unlink()
        else:
            entry.write_bytes(damaged)
        model = load(path)
        np.testing.assert_allclose(model(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
        assert started(model) and packed_entries(tmp_path) == [entry] and entry.read_bytes() == whole


def test_packed_weights_of_another_program_are_not_taken(tmp_path: Path) -> None:
    path = first(write(tmp_path / "net.onnx"))
    (entry,) = packed_entries(tmp_path)
    disk.write_mapped(entry.name.removesuffix(disk.SUFFIX), {"0": np.zeros(64, np.uint8)})
    np.testing.assert_allclose(load(path)(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)


def test_weights_as_they_are_come_from_unchanged_files_alone(tmp_path: Path) -> None:
    path = first(write(tmp_path / "net.onnx"))
    packed_entries(tmp_path)
    model = load(path)
    model(**inputs())
    write(path, -WEIGHT)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match="written to since"):
        _ = model.compiled.params["w"]
    write(path)
    np.testing.assert_array_equal(model.compiled.params["w"], WEIGHT)


def test_other_weights_are_not_kept_for_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx")
    model = load(path)
    model.compiled.set_param("w", -WEIGHT)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(-WEIGHT), rtol=1e-4, atol=1e-5)
    packed_entries(tmp_path)
    model = load(path)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
    model.compiled.set_param("w", 2 * WEIGHT)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(2 * WEIGHT), rtol=1e-4, atol=1e-5)
    packed_entries(tmp_path)
    np.testing.assert_allclose(load(path)(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)


def test_code_that_is_gone_is_made_again(tmp_path: Path) -> None:
    path = first(write(tmp_path / "net.onnx"))
    for entry in (tmp_path / "cache").glob("*"):
        if not entry.name.startswith(("start-", "pool-")):
            entry.unlink()
    np.testing.assert_allclose(load(path)(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)


def test_the_graph_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    whole = load(write(tmp_path / "net.onnx"))
    whole(**inputs())
    model = load(tmp_path / "net.onnx")
    assert model.input_names == whole.input_names and model.output_names == whole.output_names
    assert model.format == "onnx" and model.notes == whole.notes and "net" in repr(model)
    assert repr(model.compiled) == repr(whole.compiled) and started(model)
    assert model.graph.same_as(whole.graph) and not started(model)
    assert model.compiled.graph is model.graph
    part = load(tmp_path / "net.onnx").compiled.select(["rows"])
    np.testing.assert_array_equal(part.run(inputs())[0], X[[2, 0]])
    ours, theirs = (each.describe() for each in (load(tmp_path / "net.onnx"), whole))
    assert {n: ours[n] for n in ("nodes", "params", "inputs")} == {n: theirs[n] for n in ("nodes", "params", "inputs")}


def test_the_graph_of_a_file_that_was_written_to_is_refused(tmp_path: Path) -> None:
    path = first(write(tmp_path / "net.onnx"))
    model = load(path)
    write(path, -WEIGHT)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match="written to since"):
        _ = model.graph
    write(path)
    assert [value.name for value in model.graph.params] == ["w"], "the content is what it was"


def test_it_refuses_what_the_usual_way_refuses(tmp_path: Path) -> None:
    whole = load(write(tmp_path / "net.onnx"))
    whole(**inputs())
    model = load(tmp_path / "net.onnx")
    wrong: list[dict[str, Any]] = [
        {"x": X.astype("f8")}, {"x": X[:, :3]}, {"x": X[0]}, {"z": X}, {"at": np.array([3, 0])},
        {"y": np.ones((2, 512), "f4")},
    ]  # fmt: skip
    for change in wrong:
        assert started(model)
        messages = []
        for program in (whole, model):
            with pytest.raises(InputError) as error:
                program.run({**inputs(), **change})
            messages.append(str(error.value))
        assert messages[0] == messages[1]
    assert not started(model), "the node at which sizes do not go together is in the graph"


def test_a_dim_that_proves_to_be_1_gets_its_program(tmp_path: Path) -> None:
    model = load(first(write(tmp_path / "net.onnx")))
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
    assert started(model)
    np.testing.assert_allclose(model(**inputs(m=1))["sum"], wanted(), rtol=1e-4, atol=1e-5)


def test_it_goes_to_other_processes(tmp_path: Path) -> None:
    model = load(first(write(tmp_path / "net.onnx")))
    model(**inputs())
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(again(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)


def test_other_weights_and_closing(tmp_path: Path) -> None:
    model = load(first(write(tmp_path / "net.onnx")))
    model.compiled.set_param("w", -WEIGHT)
    np.testing.assert_allclose(model(**inputs())["sum"], wanted(-WEIGHT), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(load(tmp_path / "net.onnx")(**inputs())["sum"], wanted(), rtol=1e-4, atol=1e-5)
    model.close()
    with pytest.raises(rlx.ClosedError, match="'net'"):
        model(**inputs())


def test_quick_code_is_taken_until_better_code_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tiers, "LEAST_CHARACTERS", 0)
    monkeypatch.setattr(tiers.Promotion, "_work", lambda self: None)  # the process ends before its better code is there
    whole = load(write(tmp_path / "net.onnx"), compile="meanwhile")
    expected = whole(**inputs())["sum"]
    promotion = whole.compiled.executable.equal.loaded.promotion  # type: ignore[attr-defined]
    key = tiers.quick_key(promotion._key)
    disk.write(key, tiers.pack(promotion._artifact, promotion._pieces, promotion._isa))
    model = load(tmp_path / "net.onnx", compile="meanwhile")
    np.testing.assert_array_equal(model(**inputs())["sum"], expected)
    assert started(model) and model.compiled.executable.equal.loaded.promotion  # type: ignore[attr-defined]
