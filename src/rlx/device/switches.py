"""What can be switched off by name (`RLX_DISABLE`, `disable=`): passes over graphs and kernels, their rewrites, and
steps of lowering. An unknown name is an error, because it would silently switch off nothing."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache

from rlx import flags
from rlx.backends.base import Options
from rlx.device import registry
from rlx.errors import FlagError, OptionError, RlxError, did_you_mean

STEPS = ("fuse/epilogue", "fuse/row", "memory-reuse")
"""Steps that are no passes."""


def check(disable: Iterable[str]) -> None:
    """Raises OptionError for a name that nothing has, FlagError where it is RLX_DISABLE's."""
    for name in sorted(set(disable)):
        if not _is_known(name):
            message = f"expected passes or rewrites to switch off, got {name!r}{did_you_mean(name, _common())}"
            if name in flags.disable():
                raise FlagError(f"RLX_DISABLE: {message}")
            raise OptionError(f"[session] {message}")


def _is_known(name: str) -> bool:
    return _among(name, _common()) or _among(name, _of_backends())


def _among(name: str, known: Iterable[str]) -> bool:
    """Whether it is known itself, or is a rewrite of a pass that does not list its rewrites."""
    names = set(known)
    owner = name.partition("/")[0]
    return name in names or (owner in names and not any(each.startswith(f"{owner}/") for each in names))


@cache
def _common() -> frozenset[str]:
    """What all targets choose among."""
    from rlx.kernel import passes
    from rlx.kernel.passes.driver import KernelPass
    from rlx.passes import pipeline

    files = [each.name for each in pkgutil.iter_modules(passes.__path__)]
    modules = [importlib.import_module(f"{passes.__name__}.{file}") for file in files]
    kinds = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    kernel = [each.name for each in kinds if issubclass(each, KernelPass) and hasattr(each, "name")]
    graph = pipeline.switches([*pipeline.standard(), *pipeline.layout()])
    return frozenset((*STEPS, *pipeline.names(), *graph, *kernel))


def _of_backends() -> set[str]:
    """What single backends have beside them: asked when nothing else has a name."""
    from rlx.passes import pipeline

    names: set[str] = set()
    for kind in registry.names():
        try:
            names.update(pipeline.switches(registry.load(kind).passes(Options())))
        except (RlxError, ImportError):  # its package is not here
            continue
    return names
