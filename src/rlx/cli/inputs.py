"""Inputs of a model from the command line: files, sizes of named dims, and what is made up in their place."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from rlx.backends.base import QUANTISED
from rlx.cli.console import say
from rlx.cli.sizes import fitting
from rlx.cli.values import made, scalars
from rlx.errors import InputError, did_you_mean
from rlx.ir import dim as dims
from rlx.ir.dim import Poly
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.names import RANDOM_STATE
from rlx.ir.type import TensorType

if TYPE_CHECKING:
    from rlx.runtime.session import Precision

MAX_RANDOM_BYTES = 1 << 34
MOST_TOLD = 6


def parse_dims(options: Sequence[str]) -> dict[str, int]:
    """`batch=2` options. Raises BadParameter."""
    sizes: dict[str, int] = {}
    for text in options:
        name, equals, number = text.partition("=")
        if not equals or not number.isdecimal() or not name.isidentifier():
            raise typer.BadParameter(f"expected NAME=NUMBER, got {text!r}", param_hint="--dim")
        sizes[name] = int(number)
    return sizes


def gather(graph: Graph, input_options: Sequence[str], sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Arrays for all inputs: those of `NAME=FILE` options, and made up ones for the rest.

    Dims are those of --dim, else of arrays from files, else sizes that the graph's type rules admit (`cli.sizes`);
    numbers are what such inputs usually hold (`cli.values`). What was made up is told on stderr.
    Raises BadParameter, InputError.
    """
    types = {v.name: v.type for v in graph.brought}
    check_names(graph, sizes)
    arrays: dict[str, Array] = {}
    for option in input_options:
        arrays |= _option(option, types)
    if types.keys() <= arrays.keys():
        return {name: arrays[name] for name in types}
    given = {**_seen(arrays, types), **sizes}
    found = fitting(graph, given, {**scalars(graph), **{n: a for n, a in arrays.items() if a.size == 1}})
    told = _make_up(graph, arrays, found.of, np.random.default_rng(seed))
    asked = {option.partition("=")[0] for option in input_options}
    _tell(
        {name: size for name, size in found.of.items() if name not in given},
        {name: words for name, words in told.items() if name not in asked and name != RANDOM_STATE},
        found.unmet,
    )
    return {name: arrays[name] for name in types}


def calibration_of(files: Sequence[Path], precision: Precision) -> list[dict[str, Array]] | None:
    """The inputs of typical runs, each from a file; None without files. Raises BadParameter, InputError."""
    if not files:
        return None
    if precision not in QUANTISED:
        expected = " or ".join(QUANTISED)
        raise typer.BadParameter(
            f"expected --precision {expected} with it, got {precision}", param_hint="--calibration"
        )
    runs = []
    for path in files:
        if path.suffix != ".npz":
            raise typer.BadParameter(f"expected .npz files, got {path.name!r}", param_hint="--calibration")
        with _opened(path) as archive:
            runs.append({name: archive[name] for name in archive.files})
    return runs


def check_names(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raises BadParameter for sizes of dims that the graph has not."""
    unknown = [name for name in sizes if name not in graph.symbols]
    if unknown:
        names = ", ".join(graph.symbols) or "none"
        raise typer.BadParameter(
            f"expected named dims of the model ({names}), got {unknown[0]!r}{did_you_mean(unknown[0], graph.symbols)}",
            param_hint="--dim",
        )


def _make_up(
    graph: Graph, arrays: dict[str, Array], sizes: Mapping[str, int], random: np.random.Generator
) -> dict[str, str]:
    """Adds the arrays that are missing; gives a word on each."""
    told = {}
    for value in graph.brought:
        if value.name not in arrays:
            others = [v for v in graph.brought if v.name != value.name]
            longest = max((n for v in others for n in _lengths(v.type, sizes)), default=1)
            if value.type.nbytes(sizes) > MAX_RANDOM_BYTES:
                shape = [dims.evaluate(d, sizes) for d in value.shape]
                raise InputError(f"[input] expected inputs of at most {MAX_RANDOM_BYTES} bytes, got the shape {shape}")
            arrays[value.name], told[value.name] = made(graph, value, sizes, longest, random)
    return told


def _lengths(of: TensorType, sizes: Mapping[str, int]) -> list[int]:
    """Sizes along axes that are no batch, of dims that are open."""
    return [dims.evaluate(d, sizes) for d in of.shape[min(1, of.rank - 1) :] if isinstance(d, Poly)] if of.rank else []


def _tell(sizes: Mapping[str, int], numbers: Mapping[str, str], unmet: str) -> None:
    """Says on stderr what was made up, and how to bring something else."""
    if sizes:
        listed = [f"{name} = {size}" for name, size in sizes.items()]
        say(f"sizes made up: {_some(listed)} (--dim {next(iter(sizes))}=N sets one)")
    if numbers:
        listed = [f"{name} {words}" for name, words in numbers.items()]
        say(f"inputs made up: {_some(listed)} (--input {next(iter(numbers))}=FILE brings one)")
    if unmet:
        say(f"no sizes were found that fit (--dim sets them): {unmet}")


def _some(listed: Sequence[str]) -> str:
    rest = len(listed) - MOST_TOLD
    return ", ".join(listed[:MOST_TOLD]) + (f" and {rest} more" if rest > 0 else "")


def _option(option: str, types: Mapping[str, TensorType]) -> dict[str, Array]:
    name, equals, where = option.partition("=")
    if not equals and option.endswith(".npz"):
        with _opened(Path(option)) as archive:
            unknown = [key for key in archive.files if key not in types]
            if unknown:
                near = did_you_mean(unknown[0], types)
                raise InputError(f"[input] expected arrays among {list(types)} in {option!r}, got {unknown[0]!r}{near}")
            return {key: archive[key] for key in archive.files}
    if not equals or not where:
        raise typer.BadParameter(f"expected NAME=FILE or NAME=random, got {option!r}", param_hint="--input")
    if name not in types:
        near = did_you_mean(name, types)
        raise typer.BadParameter(f"expected one of {list(types)}, got {name!r}{near}", param_hint="--input")
    return {} if where == "random" else {name: _file(Path(where), name, types[name])}


def _opened(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"[input] expected an array in {str(path)!r}, got {error}") from None


def _file(path: Path, name: str, of: TensorType) -> Array:
    if path.suffix == ".json":
        return _json(path, name, of)
    if path.suffix not in (".npy", ".npz"):
        raise typer.BadParameter(f"expected a .npy, .npz or .json file, got {path.name!r}", param_hint="--input")
    loaded = _opened(path)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded as archive:
        key = name if name in archive.files else archive.files[0] if len(archive.files) == 1 else None
        if key is None:
            raise InputError(f"[input] expected an array {name!r} in {path.name!r}, got {archive.files}")
        array: Array = archive[key]
        return array


def _json(path: Path, name: str, of: TensorType) -> Array:
    """Nested lists; they take the dtype that the model declares, if it can hold them."""
    try:
        array = np.array(json.loads(path.read_text("utf-8")))
        converted = array.astype(of.dtype.numpy)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"[input] expected numbers for {name!r} ({of}) in {path.name!r}, got {error}") from None
    if of.dtype.is_integer and array.size and not np.array_equal(converted, array):
        raise InputError(f"[input] expected numbers that {of.dtype} holds for {name!r}, got others in {path.name!r}")
    return converted


def _seen(arrays: Mapping[str, Array], types: Mapping[str, TensorType]) -> dict[str, int]:
    """Sizes of named dims that given arrays have."""
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        if name in types and array.ndim == types[name].rank:
            for dim, size in zip(types[name].shape, array.shape):
                if isinstance(dim, Poly) and str(dim).isidentifier():
                    sizes.setdefault(str(dim), size)
    return sizes
