"""Every test that takes `device` runs on the devices of `--device`; else on those that its mark `devices` names, or on
the reference and the CPU's code for every instruction set of this machine.

`skips.py` says what a device is known to do otherwise.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import pytest

import skips
from backends.coreml import values
from benchmarks.zoo import nets
from kept_code import KeptCode
from rlx.backends.cpu import isa, jit
from rlx.device import registry
from rlx.errors import DeviceUnavailable
from rlx.ir import dtype as dtypes
from support import commit_number, kind_of, why_absent

# programs of tests are compiled once; those that test the cache switch it on
os.environ.setdefault("RLX_CACHE", "0")
# models of Core ML are worked out by NumPy here, in the precision that references have
os.environ.setdefault("RLX_COREML_RUN", "fold")
os.environ.setdefault("RLX_COREML_PRECISION", "f32")
os.environ.setdefault("RLX_TIERS", "0")
# how XLA writes code is its own matter
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

EXPECTED = ("backends/apple_gpu", "backends/cuda", "backends/rocm", "backends/wgpu", "codegen/simt")
"""Where programs of the processor say what those of another device are to give."""
RANDOM_NETS = ("models/test_decoders.py", "models/test_gguf.py")
QUICK = (
    "backends/cpu", "backends/test_", "cli", "frontends", "kernel", "newcomer", "ops", "passes", "runtime",
    *RANDOM_NETS, *EXPECTED,
)  # fmt: skip
"""Where tests have most programs made by LLVM's level 0: in half of the time, of the same text. The level that users
have makes each op's cases on `cpu`, real nets, and one in `FULL` of these, others at each commit; `tests/fuzz` takes
either."""
SIZES = tuple(f"runtime/test_{name}" for name in ("broadcasting", "experts", "quantised", "states"))
ONCE = (*(path for path in QUICK if path != "runtime"), "models", *SIZES)
"""Where LLVM has each text once in a process (`kept_code.py`)."""
COMPILERS = tuple(f"backends/cpu/test_{name}.py" for name in ("ahead", "elf", "jit", "kernel_store", "tiers"))
"""What is not of these: how code is written is their subject."""
RUNS = ("frontends/onnx/test_models.py", "backends/test_measure.py")
"""Where programs run for longer than they are compiled."""
FULL = 8
LEVEL = jit.OPTIMISATION_LEVEL
CODE = KeptCode(jit._emit_object)

HOME = ("reference", "cpu")
"""Where tests with a device run that name none. Kernels on other instruction sets are the business of the op suite, of
epilogues, of byte products and of the fuzzer, which name them."""
BYTES = ("i8", "u8")
NARROWER = 3
"""A narrower instruction set has one case of so many of an op, others at each commit; those of bytes it has all."""
SWEEPS = tuple(f"backends/cpu/test_{name}.py" for name in ("attention", "fourier", "reductions"))
"""Where sizes and attributes are gone through, of which a narrower instruction set has as many."""


def narrower() -> list[str]:
    """`cpu-<name>` for the instruction sets that this machine has, except what `cpu` is already.

    A level's code has no extras. So on a machine whose widest level multiplies bytes by an instruction of its own, that
    level's name is what a machine without it runs: `only_bytes`.
    """
    names = []
    for name in isa.LEVELS:
        try:
            isa.forced(name)
        except DeviceUnavailable:
            continue
        names.append(f"cpu-{name}")
    return [name for name in names if only_bytes(name) or name != f"cpu-{isa.widest().name}"]


@cache
def only_bytes(device: str) -> bool:
    """Whether products of bytes are all in which this device's code differs from that of `cpu`."""
    widest = isa.widest()
    return device == f"cpu-{widest.name}" and isa.forced(widest.name).byte_products != widest.byte_products


def has_bytes(case: object) -> bool:
    """Whether a case has operands of eight bits."""
    return any(str(dtypes.of(array.dtype)) in BYTES for array in getattr(case, "arrays", ()))


def expanded(names: Iterable[str]) -> list[str]:
    """The names with `cpu-*` for the narrower instruction sets."""
    return [name for pattern in names for name in (narrower() if pattern == "cpu-*" else [pattern])]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="", help="comma list of devices that tests with a device run on")
    parser.addoption(
        "--require",
        default="",
        help="comma list of devices and packages that must be here, g++ too; `nets` is all real models",
    )


def asked_devices(config: pytest.Config) -> list[str]:
    """What `--device` names, if anything."""
    return expanded(name for name in str(config.getoption("--device")).split(",") if name)


def absent(name: str) -> str:
    """Why what `--require` names is not here; empty if it is."""
    if name == "nets":
        return "; ".join(why for net in nets().values() if (why := net.why_absent()) and not net.npm)
    if name == "g++":
        from tools import emulate_cuda  # imports code generators

        return emulate_cuda.why_absent()
    if kind_of(name) in registry.names():
        return why_absent(name)
    return "" if find_spec(name) else f"neither a device nor a package that is installed: pip install {name}"


def require(config: pytest.Config) -> None:
    """What is absent would be skipped: whoever says that it must be here is told."""
    if hasattr(config, "workerinput"):
        return  # the process that started this one has looked
    required = [name for name in str(config.getoption("--require")).split(",") if name]
    missing = [f"{name}: {why}" for name in required if (why := absent(name))]
    if missing:
        raise pytest.UsageError("--require " + "\n--require ".join(missing))


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is imported and collected
    require(config)
    jit._emit_object = CODE
    config.addinivalue_line("markers", "devices(*names): where a test with a device runs if --device names none")
    for name in asked_devices(config):
        try:
            reason = registry.why_unavailable(kind_of(name))
        except DeviceUnavailable as error:
            reason = str(error)
        if reason:
            raise pytest.UsageError(f"--device {name}: {reason}")


def has_own_devices(item: pytest.Item) -> bool:
    """Whether a test says itself which devices it is for."""
    listed = [mark.args[0] for mark in item.iter_markers("parametrize")]
    return any("device" in (names.split(",") if isinstance(names, str) else names) for names in listed)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames and not has_own_devices(metafunc.definition):
        mark = metafunc.definition.get_closest_marker("devices")
        names = asked_devices(metafunc.config) or expanded(mark.args if mark else HOME)
        metafunc.parametrize("device", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Name of a device that is here."""
    name = str(request.param)
    reason = why_absent(name)
    if reason and request.config.getoption("--device"):
        pytest.fail(f"--device {name}: {reason}")
    if reason:
        pytest.skip(f"{name}: {reason}")
    if kind_of(name) == "ane":
        values.install()
    return name


def path_of(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).as_posix()


def level(item: pytest.Item) -> int:
    """LLVM's level for the programs of a test."""
    path = path_of(item)
    if (
        not path.startswith(QUICK)
        or path.startswith(RUNS)
        or (crc32(item.nodeid.encode()) + commit_number()) % FULL == 0
    ):
        return LEVEL
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    is_case = path == "ops/test_reference.py" and parameters.get("device") == "cpu"
    return LEVEL if is_case else 0


def is_swept(item: pytest.Function) -> bool:
    """Whether the widest instruction set alone has an element of a sweep at this commit."""
    parameters = item.callspec.params
    name = str(parameters.get("device", parameters.get("level", ""))).removeprefix("cpu-")
    narrow = name in isa.LEVELS and name != isa.widest().name
    return narrow and path_of(item) in SWEEPS and (crc32(item.nodeid.encode()) + commit_number()) % NARROWER != 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    jit.OPTIMISATION_LEVEL = level(item)
    path = path_of(item)
    CODE.active = path.startswith(ONCE) and path not in COMPILERS


def pytest_collection_finish() -> None:
    """What was imported and collected lives until the end: what collects garbage from now on need not look at it."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is known to be wrong, and leaves out what a device need not repeat unless it was asked for."""
    repeated = []
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        parameters = item.callspec.params
        if is_swept(item) and not config.getoption("--device"):
            repeated.append(item)
            continue
        if not isinstance(parameters.get("device"), str):
            continue
        device, requested = parameters["device"], config.getoption("--device")
        rules, case = skips.of(device), parameters.get("case")
        reason = rules.wrong.get(item.originalname if case is None else str(case))
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError))
        if item.originalname in rules.beyond:
            item.add_marker(pytest.mark.skip(reason=f"{device}: {rules.beyond[item.originalname]}"))
        every = NARROWER if device.startswith("cpu-") and not has_bytes(case) else rules.every
        beside = case is not None and (
            rules.sample not in ("", case.what) or (crc32(str(case).encode()) + commit_number()) % every != 0
        )
        same = only_bytes(device) and not has_bytes(case) and not has_own_devices(item)
        if (beside or same) and not requested:
            repeated.append(item)
    if repeated:
        config.hook.pytest_deselected(items=repeated)
        left_out = set(repeated)
        items[:] = [item for item in items if item not in left_out]
