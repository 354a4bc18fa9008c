"""Inputs of a model from the command line: files, random numbers, sizes of named dims."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer

from rlx.errors import InputError
from rlx.ir import dim as dims
from rlx.ir.dim import Poly
from rlx.ir.graph import Graph
from rlx.ir.literal import Array
from rlx.ir.type import TensorType

DEFAULT_DIM = 16
MAX_RANDOM_BYTES = 1 << 34


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
    """Arrays for all inputs: those of `NAME=FILE` options, random ones for the rest.

    Dims are those of --dim, else of arrays from files, else the least that is allowed for the first axis, else 16.
    Raises BadParameter, InputError.
    """
    types = {v.name: v.type for v in graph.brought}
    unknown = [name for name in sizes if name not in graph.symbols]
    if unknown:
        known = f"the model has {graph.symbols or 'none'}"
        raise typer.BadParameter(f"expected named dims of the model, got {unknown}; {known}", param_hint="--dim")
    arrays: dict[str, Array] = {}
    for option in input_options:
        arrays |= _option(option, types)
    sizes = {**_seen(arrays, types), **sizes}
    random = np.random.default_rng(seed)
    for name, of in types.items():
        if name not in arrays:
            arrays[name] = _random(name, of, _shape(graph, of, sizes), random)
    return {name: arrays[name] for name in types}


def _option(option: str, types: Mapping[str, TensorType]) -> dict[str, Array]:
    name, equals, where = option.partition("=")
    if not equals and option.endswith(".npz"):
        with _opened(Path(option)) as archive:
            return {key: archive[key] for key in archive.files}
    if not equals or not where:
        raise typer.BadParameter(f"expected NAME=FILE or NAME=random, got {option!r}", param_hint="--input")
    if name not in types:
        raise typer.BadParameter(f"expected one of {list(types)}, got {name!r}", param_hint="--input")
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


def _shape(graph: Graph, of: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    known = dict(sizes)
    for axis, dim in enumerate(of.shape):
        for symbol in dims.symbols(dim):
            low, high = graph.bounds.get(symbol, (1, None))
            default = max(low, 1) if axis == 0 else max(low, DEFAULT_DIM)
            known.setdefault(symbol, default if high is None else min(default, high))
    shape = tuple(dims.evaluate(d, known) for d in of.shape)
    if of.nbytes(known) > MAX_RANDOM_BYTES:
        raise InputError(f"[input] expected inputs of at most {MAX_RANDOM_BYTES} bytes, got the shape {list(shape)}")
    return shape


def _random(name: str, of: TensorType, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Numbers that models take: a normal distribution, small ids, masks of ones."""
    if of.dtype.kind == "bool" or (of.dtype.is_integer and "mask" in name.lower()):
        return np.ones(shape, of.dtype.numpy)
    if of.dtype.is_integer:
        return random.integers(0, 2 if of.dtype.bits == 4 else 100, shape).astype(of.dtype.numpy)
    numbers: Array = random.standard_normal(shape).astype(of.dtype.numpy)
    return numbers
