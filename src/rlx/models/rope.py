"""Rotary positions as configurations describe them: the angle a pair of elements turns by from a token to the next.

Sources: Su et al. 2021, arXiv:2104.09864; `linear` scaling: Chen et al. 2023, arXiv:2306.15595; `yarn`: Peng et al.
2023, arXiv:2309.00071; `llama3`: as published with Llama 3.1.
"""

from __future__ import annotations

import math

import numpy as np

from rlx.ir.literal import Array
from rlx.models.config_keys import Keys
from rlx.records import dataclass

TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """How queries and keys of a layer turn.

    angles     radians a token, one for each pair of elements of a head
    magnitude  factor of the turned pairs
    """

    angles: tuple[float, ...]
    magnitude: float = 1.0


def rope_of(keys: Keys, theta: float, head_size: int, max_positions: int) -> Rope:
    """From the parameters of a kind of layers. Raises ModelError for a type that is not known."""
    kind = keys.one_of("rope_type", TYPES, "default", also="type")
    theta = keys.number("rope_theta", theta)
    keys.neutral("partial_rotary_factor", 1.0)
    keys.skip("rope_type", "type")
    plain = theta ** -(np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    magnitude = 1.0
    angles = plain
    if kind == "dynamic":
        # it changes nothing up to max_position_embeddings, and contexts end there
        keys.number("factor")
        keys.skip("original_max_position_embeddings")
    elif kind == "linear":
        angles = plain / keys.number("factor")
    elif kind == "llama3":
        angles = _llama3(keys, plain, max_positions)
    elif kind == "yarn":
        angles, magnitude = _yarn(keys, plain, theta, max_positions)
    keys.finish()
    return Rope(tuple(angles.astype(np.float32).tolist()), magnitude)


def _llama3(keys: Keys, plain: Array, max_positions: int) -> Array:
    """Slow turns are slowed by the factor, quick ones are not, and those between are blended."""
    factor = keys.number("factor")
    low, high = keys.number("low_freq_factor"), keys.number("high_freq_factor")
    old = keys.whole("original_max_position_embeddings", max_positions)
    if not low < high:
        raise keys.wrong("a low_freq_factor below the high_freq_factor", [low, high])
    wavelengths = 2 * math.pi / plain
    share = np.clip((old / wavelengths - low) / (high - low), 0.0, 1.0)
    return np.asarray((1 - share) * plain / factor + share * plain)


def _yarn(keys: Keys, plain: Array, theta: float, max_positions: int) -> tuple[Array, float]:
    """Pairs below a ramp keep their turns, pairs above are slowed by the factor."""
    old = keys.whole("original_max_position_embeddings", max_positions)
    factor = keys.number("factor", max_positions / old)
    fast, slow = keys.number("beta_fast", 32.0), keys.number("beta_slow", 1.0)
    truncates = keys.flag("truncate", True)
    size = 2 * len(plain)
    low, high = (size * math.log(old / (beta * 2 * math.pi)) / (2 * math.log(theta)) for beta in (fast, slow))
    if truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low or 0.001), 0.0, 1.0)
    return plain * (1 - ramp) + plain / factor * ramp, _magnitude(keys, factor)


def _magnitude(keys: Keys, factor: float) -> float:
    wide, all_wide = keys.number("mscale", 0.0, least=0.0), keys.number("mscale_all_dim", 0.0, least=0.0)
    usual = _growth(factor, wide) / _growth(factor, all_wide) if wide and all_wide else _growth(factor, 1.0)
    return keys.number("attention_factor", usual)


def _growth(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
