"""Rates of a device that was never measured, by regression over machines that were.

Profiles lie as JSON beside a backend (`backends/*/profiles`). Each holds what probing found out about its machine
(`sort` and `traits`) and what calibration measured (`rates`). Among profiles of one sort the logarithm of each rate is
linear in those of the traits, by ridge regression: with few machines a slope is held near 0, so that the rate stays
near the mean of those recorded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from rlx.cost.estimate import Rates

Reals = npt.NDArray[np.float64]

RIDGE = 0.1
"""For each profile: what holds slopes near 0, in the square of logarithms of amounts."""
BEYOND = 0.7
"""How far beyond the amounts recorded the line is followed: twice as much, or half."""
SHARE = 0.5
"""Of all profiles that must have a rate for it to be predicted."""


@dataclass(frozen=True)
class Traits:
    """What probing knows of a device.

    sort      what must be the same for rates to be comparable at all: an instruction set, a kind of adapter
    amounts   what rates go with, by ratio: threads, memory bandwidth; all above 0
    """

    sort: str
    amounts: Mapping[str, float]


@dataclass(frozen=True)
class Profile:
    """A machine whose rates were recorded."""

    machine: str
    traits: Traits
    rates: Rates


@cache
def recorded(package: str) -> tuple[Profile, ...]:
    """The profiles that lie in the folder `profiles` of a package, by name of file."""
    folder = resources.files(package) / "profiles"
    if not folder.is_dir():
        return ()
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    profiles = [json.loads(f.read_text(encoding="utf-8")) for f in files]
    return tuple(Profile(t["machine"], Traits(t["sort"], t["amounts"]), t["rates"]) for t in profiles)


def predict(profiles: Sequence[Profile], traits: Traits) -> Rates:
    """Rates of a device with these traits; none where no profile is of its sort.

    Profiles must have the amounts asked for; what they have beside them does not count.
    """
    alike = [p for p in profiles if p.traits.sort == traits.sort and traits.amounts.keys() <= p.traits.amounts.keys()]
    if not alike:
        return {}
    return _line(alike, traits.amounts)


def predict_any(profiles: Sequence[Profile], traits: Traits) -> Rates:
    """As `predict`, by profiles of all sorts."""
    alike = [p for p in profiles if traits.amounts.keys() <= p.traits.amounts.keys()]
    return _line(alike, traits.amounts) if alike else {}


def _line(alike: Sequence[Profile], amounts: Mapping[str, float]) -> Rates:
    names = sorted(amounts)
    amounts_of = np.array([[math.log(p.traits.amounts[name]) for name in names] for p in alike])
    at = np.array([math.log(amounts[name]) for name in names])
    at = np.clip(at, amounts_of.min(0) - BEYOND, amounts_of.max(0) + BEYOND)
    line: Rates = {}
    for name in dict.fromkeys(name for p in alike for name in p.rates):
        having = [i for i, p in enumerate(alike) if p.rates.get(name, 0.0) > 0]
        if len(having) >= SHARE * len(alike):
            line[name] = _rate([alike[i].rates[name] for i in having], amounts_of[having], at)
    return line


def _rate(rates: Sequence[float], known: Reals, target: Reals) -> float:
    """The rate at the amounts wanted, by those at known ones; all amounts as logarithms."""
    logs = np.log(rates)
    mean, centre = logs.mean(), known.mean(0)
    x = known - centre
    slopes = np.linalg.solve(x.T @ x + RIDGE * len(rates) * np.eye(x.shape[1]), x.T @ (logs - mean))
    return float(np.exp(mean + (target - centre) @ slopes))
