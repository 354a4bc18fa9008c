"""Which devices may run a graph, which are preferred, and how the fastest is found: one set of rules for hint,
environment and chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from rlx import flags
from rlx.arguments import methods_checked
from rlx.device import registry
from rlx.device.device import Device
from rlx.errors import DeviceUnavailable, FlagError
from rlx.records import dataclass

Strategy = Literal["cost_model", "benchmark", "auto"]
HIDDEN = {
    "reference": "it is there to compare with",
    "null": "nothing runs on it",
    "apple-gpu": "its kernels have run on no GPU yet",
    "gpu": "its adapters have names of their own",
    "webgpu": "its adapters have names of their own",
}
"""Kinds that are never chosen by themselves, and why."""
USUAL = Device("cpu")
"""The device that is taken where no other is clearly quicker: it is always there, and answers soonest at first."""
CONVERTER = "converter"
UNASKED = "never chosen automatically"
HELPING = {"software": "its driver is software", CONVERTER: "it converts models, and runs none on this system"}
"""How the names of devices begin that are never chosen by themselves either, and why."""


@methods_checked()
@dataclass(frozen=True)
class DevicePolicy:
    """What may be chosen.

    allow      devices that may be used, None for all; a kind without a number is its first device
    deny       devices that may not; a kind without a number is all its devices
    prefer     taken first, in this order, where predictions differ by no more than they may be wrong
    strategy   `auto` keeps to the usual device, the first that is preferred or else the processor, unless another is
               clearly faster by predictions or by earlier measurements; `cost_model` takes the fastest by predictions;
               `benchmark` measures every device in turns with `runs` runs, once per shape
    force      the one device to use, whatever else is said
    hint       the device to use, which must be viable
    chain      devices to try in order
    """

    allow: tuple[Device, ...] | None = None
    deny: tuple[Device, ...] = ()
    prefer: tuple[Device, ...] = ()
    strategy: Strategy = "auto"
    runs: int = 5
    force: Device | None = None
    hint: Device | None = None
    chain: tuple[Device, ...] = ()

    def only(self, *devices: str | Device) -> DevicePolicy:
        """The policy with no devices but these."""
        return replace(self, allow=_parsed(devices))

    def without(self, *devices: str | Device) -> DevicePolicy:
        """The policy with these devices denied as well."""
        return replace(self, deny=(*self.deny, *_parsed(devices)))

    def preferring(self, *devices: str | Device) -> DevicePolicy:
        """The policy with these devices preferred, after those that already are."""
        return replace(self, prefer=(*self.prefer, *_parsed(devices)))

    def with_strategy(self, strategy: Strategy, runs: int | None = None) -> DevicePolicy:
        return replace(self, strategy=strategy, runs=max(1, self.runs if runs is None else runs))

    @staticmethod
    def from_env(prefix: str = "RLX") -> DevicePolicy:
        """The policy of `<prefix>_DEVICES` and similar variables. Raises FlagError that names what does not parse."""
        table = flags.device_flags(prefix)

        def one(name: str) -> Device | None:
            devices = listed(name)
            if len(devices) > 1:
                raise FlagError(f"{prefix}_{name}: expected one device, got {table[name]()!r}")
            return devices[0] if devices else None

        def listed(name: str) -> tuple[Device, ...]:
            text = table[name]()
            try:
                return registry.parse_list(text) if text is not None else ()
            except DeviceUnavailable as error:
                raise FlagError(f"{prefix}_{name}={text!r}: {str(error).removeprefix('[device] ')}") from None

        runs = table["BENCHMARK_PICK"]()
        return DevicePolicy(
            allow=listed("DEVICES") or None,
            deny=listed("DENY_DEVICES"),
            prefer=listed("PREFER_DEVICES"),
            strategy="benchmark" if runs else "auto" if runs is None else "cost_model",
            runs=runs or 5,
            force=one("FORCE_DEVICE"),
            hint=one("DEVICE"),
            chain=listed("DEVICE_CHAIN"),
        )

    def why_refused(self, device: Device, named: bool = False) -> str:
        """Why the policy does not admit a device; empty if it does.

        named   the caller asked for this very device, which is consent to those that are never chosen automatically
        """
        if self.force is not None:
            return "" if device == self.force else f"{self.force} is forced"
        if _names(self.deny, device):
            return "denied by the policy"
        if self.allow is not None:
            return "" if device in self.allow else "not among the devices that the policy allows"
        if named or device in (self.hint, *self.chain, *self.prefer):
            return ""
        why = HIDDEN.get(device.kind, "")
        names = registry.probe(device.kind).devices
        if not why and device.ordinal < len(names):
            why = next((hint for word, hint in HELPING.items() if names[device.ordinal].startswith(word)), "")
        return f"{UNASKED} ({why}): name it to use it" if why else ""

    def preference(self, device: Device) -> int:
        """The place among the preferred; those that are not named come behind."""
        return next((i for i, d in enumerate(self.prefer) if d == device), len(self.prefer))

    def candidates(self) -> list[Device]:
        """Every device that is available or named: first the preferred, then the strongest kinds."""
        named = [d for d in (self.force, self.hint, *(self.allow or ()), *self.chain) if d is not None]
        known = list(dict.fromkeys([*registry.available_devices(), *named]))
        return sorted(known, key=lambda d: (self.preference(d), d.rank, d.ordinal))


def converts_only(device: Device) -> bool:
    """Whether a device that is available converts models and runs none."""
    names = registry.probe(device.kind).devices
    return device.ordinal < len(names) and names[device.ordinal].startswith(CONVERTER)


def _parsed(devices: Sequence[str | Device]) -> tuple[Device, ...]:
    return tuple(dict.fromkeys(registry.parse(d) for d in devices))


def _names(devices: Iterable[Device], device: Device) -> bool:
    """Whether a list names the device: itself, or by its kind's first device if written without a number."""
    return any(d == device or (d.ordinal == 0 and d.kind == device.kind) for d in devices)


def at_once(policy: DevicePolicy) -> Device | None:
    """The device that will be chosen whatever predictions say, before a graph is looked at; None if the choice depends
    on more. A compile for it may still find ops that it does not support."""
    if policy.strategy != "auto" or policy.force or policy.hint or policy.chain or policy.prefer:
        return None
    here = [d for d in policy.candidates() if not (registry.why_unavailable(d) or policy.why_refused(d))]
    if USUAL not in here:
        return here[0] if len(here) == 1 else None
    return USUAL if all(d == USUAL or outdone(d) for d in here) else None


def outdone(device: Device) -> bool:
    """Whether a device cannot be the choice by itself, before a graph is looked at and without opening it: nothing was
    measured on it, and it is the processor under another name, or no similar machine was measured either."""
    from rlx.device import calibration

    backend, ordinal = registry.backend(device)
    if calibration.is_measured(device) and not (backend.on_processor(ordinal) and calibration.known(device) is None):
        return False
    return backend.on_processor(ordinal) or not backend.may_have_prior
