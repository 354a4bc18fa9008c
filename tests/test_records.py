"""The dataclasses of `rlx.records` are those of the standard library in all that shows."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from rlx import records


def classes(dataclass: Any) -> dict[str, type]:
    """Classes of every form, made by a decorator."""

    @dataclass(frozen=True)
    class Frozen:
        """What it is."""

        first: int
        second: str = "two"
        third: list[int] = field(default_factory=list)
        ours: ClassVar[int] = 3

        @cached_property
        def double(self) -> int:
            return 2 * self.first

    @dataclass(frozen=True)
    class Derived(Frozen):
        fourth: float = 4.0
        first: int = 10

    @dataclass
    class Plain:
        a1: int
        a0: int = 7
        hidden: int = field(default=1, repr=False, compare=False)
        made: dict[str, int] = field(init=False, default_factory=dict)
        unset: int = field(init=False, default=5)
        later: int = field(init=False)

        def __post_init__(self) -> None:
            self.later = self.a1 + self.a0

    @dataclass
    class Own:
        """Defines what others are given."""

        x: int

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 5

    @dataclass(frozen=True, eq=False)
    class Identity:
        x: int

    @dataclass(frozen=True)
    class One:
        x: Any

    @dataclass(frozen=True)
    class Empty:
        pass

    return {cls.__name__: cls for cls in (Frozen, Derived, Plain, Own, Identity, One, Empty)}


OURS, THEIRS = classes(records.dataclass), classes(dataclasses.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Frozen", (1,), {}), ("Frozen", (1, "b", [2]), {}), ("Frozen", (), {"third": [1], "first": 2}),
    ("Derived", (), {}), ("Derived", (1, "c"), {"fourth": 2.5}), ("Plain", (1,), {}), ("Plain", (1, 2, 3), {}),
    ("Own", (1,), {}),
    ("Identity", (1,), {}), ("One", (float("nan"),), {}), ("One", ((1, 2),), {}), ("Empty", (), {}),
    ("Frozen", (), {}), ("Frozen", (1, 2, 3, 4), {}), ("Plain", (1,), {"later": 3}), ("Empty", (1,), {}),
    ("Own", (1,), {"x": 2}),
]  # fmt: skip


def outcome(act: Callable[[], Any]) -> Any:
    """What an act gives, or raises."""
    try:
        return act()
    except (TypeError, AttributeError) as error:
        return type(error), str(error).replace("<locals>.", "")


@pytest.mark.parametrize(("name", "positional", "named"), CALLS, ids=str)
def test_instances_are_those_of_the_standard_library(
    name: str, positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    def facts(cls: type) -> Any:
        one, two = cls(*positional, **copy.deepcopy(named)), cls(*positional, **copy.deepcopy(named))
        shown = repr(one).replace("classes.<locals>.", "")
        return [
            shown, dataclasses.asdict(one), one == two, one == one, one != two, one == 5, outcome(lambda: hash(one)),
            outcome(lambda: setattr(one, "x", 1)), outcome(lambda: delattr(one, "first")), vars(one),
            outcome(lambda: dataclasses.asdict(dataclasses.replace(one))),
        ][: 6 if name == "Identity" else None]  # fmt: skip

    assert outcome(lambda: facts(OURS[name])) == outcome(lambda: facts(THEIRS[name]))


@pytest.mark.parametrize("name", OURS)
def test_classes_are_those_of_the_standard_library(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    mine, standard = ([(f.name, f.type, f.default) for f in dataclasses.fields(c)] for c in (ours, theirs))  # type: ignore[arg-type]
    assert mine == standard
    assert ours.__match_args__ == theirs.__match_args__  # type: ignore[attr-defined]
    assert ours.__init__.__qualname__ == theirs.__init__.__qualname__  # type: ignore[misc]


def test_factories_are_called_for_each_instance() -> None:
    cls = OURS["Frozen"]
    assert cls(1).third is not cls(1).third  # type: ignore[attr-defined]


def test_a_cached_property_of_a_frozen_class_is_kept() -> None:
    one = OURS["Frozen"](4)  # type: ignore[call-arg]
    assert one.double == 8 and vars(one)["double"] == 8  # type: ignore[attr-defined]


def test_a_class_derived_without_the_decorator_may_have_more_attributes() -> None:
    class Child(OURS["Frozen"]):  # type: ignore[misc]
        pass

    child = Child(1)
    child.other = 5
    with pytest.raises(dataclasses.FrozenInstanceError, match="'first'"):
        child.first = 2


@records.dataclass(frozen=True)
class Pickled:
    """At the top of a module, where pickle finds it."""

    x: int


def test_they_can_be_pickled_and_copied() -> None:
    assert pickle.loads(pickle.dumps(Pickled(3))) == Pickled(3) == copy.deepcopy(Pickled(3))


def test_something_that_contains_itself_can_be_shown() -> None:
    items: list[Any] = []
    one = OURS["One"](items)  # type: ignore[call-arg]
    items.append(one)
    assert "..." in repr(one)


def test_a_field_without_a_default_after_one_with_is_refused() -> None:
    with pytest.raises(TypeError, match="default"):

        @records.dataclass
        class Wrong:
            first: int = 1
            second: int  # type: ignore[misc]
