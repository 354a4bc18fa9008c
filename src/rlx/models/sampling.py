"""The choice of a token: what callers and generation_config.json ask for, and the choice itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from rlx.errors import InputError, did_you_mean
from rlx.ir.literal import Array
from rlx.models.config_keys import Keys
from rlx.records import dataclass

USUAL_NEW_TOKENS = 256
"""At most, where neither a caller nor a file says how many."""
SORTED_FIRST = 512
_NEUTRAL = {
    "num_beams": 1, "num_return_sequences": 1, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "min_length": 0,
    "diversity_penalty": 0.0, "length_penalty": 1.0, "penalty_alpha": None, "guidance_scale": None,
    "bad_words_ids": None, "suppress_tokens": None, "begin_suppress_tokens": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "sequence_bias": None, "exponential_decay_length_penalty": None, "top_h": None,
    "stop_strings": None, "min_new_tokens": None,
}  # fmt: skip


class Choices(TypedDict, total=False):
    """What calls may say of the tokens to come. What they do not say is as generation_config.json has it.

    temperature          0 always takes the likeliest token; other tokens are drawn the more often the higher it is
    top_k                draws among this many tokens, the likeliest; 0 among all
    top_p                draws among the fewest tokens that have this share of the probability together
    min_p                draws among tokens at least this share as likely as the likeliest
    repetition_penalty   makes tokens that the context has less likely, if it is above 1
    seed                 the same seed gives the same tokens; None draws one
    stop                 texts that end what is generated; they are no part of it
    eos_token_id         the token, or tokens, that end it; -1 is none
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    eos_token_id: int | Sequence[int] | None


@dataclass(frozen=True)
class Settings:
    """How tokens are chosen, and when that ends. The names are those of `Choices`."""

    max_new_tokens: int | None = None
    max_length: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    eos_token_id: tuple[int, ...] = ()

    @staticmethod
    def of(generation: Mapping[str, Any], config: Mapping[str, Any]) -> Settings:
        """From the contents of generation_config.json, and of config.json where that says nothing. Raises
        ModelError."""
        keys = Keys(generation, "generate", "generation_config.json")
        for name, value in _NEUTRAL.items():
            keys.neutral(name, value)
        samples = keys.flag("do_sample", False)
        ends = keys.get("eos_token_id", config.get("eos_token_id"))
        ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
        if any(type(end) is not int for end in ends):
            raise keys.wrong("eos_token_id to be an integer, or several", ends)
        has = {name for name in ("max_new_tokens", "max_length") if keys.get(name) is not None}
        return Settings(
            max_new_tokens=keys.whole("max_new_tokens") if "max_new_tokens" in has else None,
            max_length=keys.whole("max_length") if "max_length" in has else None,
            temperature=keys.number("temperature", 1.0, least=0.0) if samples else 0.0,
            top_k=keys.whole("top_k", 0, least=0),
            top_p=min(keys.number("top_p", 1.0), 1.0),
            min_p=keys.number("min_p", 0.0, least=0.0),
            repetition_penalty=keys.number("repetition_penalty", 1.0),
            eos_token_id=tuple(ends),
        )

    def with_choices(self, choices: Mapping[str, Any], max_new_tokens: int | None = None) -> Settings:
        """What a call says beside these. Narrowing what is drawn from asks for drawing. Raises InputError."""
        known = Choices.__annotations__
        unknown = [name for name in choices if name not in known]
        if unknown:
            near = did_you_mean(unknown[0], known)
            raise InputError(f"[generate] expected options among {list(known)}, got {unknown[0]!r}{near}")
        said = {name: value for name, value in choices.items() if value is not None}
        narrows = any(name in said for name in ("top_k", "top_p", "min_p"))
        if narrows and "temperature" not in said and self.temperature == 0:
            said["temperature"] = 1.0
        for name, kind in (("stop", str), ("eos_token_id", int)):
            if name in said:
                said[name] = (said[name],) if isinstance(said[name], kind) else tuple(said[name])
        said["max_new_tokens"] = self.max_new_tokens if max_new_tokens is None else max_new_tokens
        settings = replace(self, max_length=None if max_new_tokens is not None else self.max_length, **said)
        settings.check()
        return settings

    def check(self) -> None:
        """Raises InputError for values out of range."""
        for name, fits, wanted in (
            ("max_new_tokens", self.max_new_tokens is None or _is_whole(self.max_new_tokens, 1), "a positive integer"),
            ("temperature", _is_number(self.temperature, 0, math.inf), "a number of at least 0"),
            ("top_k", _is_whole(self.top_k, 0), "an integer of at least 0"),
            ("top_p", _is_number(self.top_p, 0, 1) and self.top_p > 0, "a number above 0, and at most 1"),
            ("min_p", _is_number(self.min_p, 0, 1), "a number from 0 to 1"),
            ("repetition_penalty", _is_number(self.repetition_penalty, 1e-6, math.inf), "a positive number"),
            ("seed", self.seed is None or _is_whole(self.seed, 0), "an integer of at least 0"),
            ("stop", all(isinstance(text, str) and text for text in self.stop), "texts that are not empty"),
            ("eos_token_id", all(_is_whole(end, -1) for end in self.eos_token_id), "ids of tokens"),
        ):
            if not fits:
                raise InputError(f"[generate] expected {name} to be {wanted}, got {getattr(self, name)!r}")


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is not bool and isinstance(value, (int, np.integer)) and int(value) >= least


def _is_number(value: Any, least: float, most: float) -> bool:
    is_number = type(value) is not bool and isinstance(value, (int, float, np.integer, np.floating))
    return bool(is_number and least <= value <= most and math.isfinite(value))


class Sampler:
    """Chooses the tokens of one row after another, from its own random numbers.

    row   number of the row in its batch: rows of the same prompt differ
    """

    def __init__(self, settings: Settings, seen: Iterable[int], vocab_size: int, row: int = 0) -> None:
        self.settings = settings
        seed = settings.seed
        self._random = np.random.default_rng(None if seed is None else [int(seed), row])
        self._seen: Array | None = None
        if settings.repetition_penalty != 1:
            self._seen = np.zeros(vocab_size, np.bool_)
            self._seen[list(seen)] = True

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is chosen, whatever came before."""
        return self.settings.temperature == 0 and self._seen is None

    def choose(self, logits: Array) -> int:
        """The next token, by its logits, f32[vocab]."""
        settings = self.settings
        if self._seen is not None:
            penalty = np.float32(settings.repetition_penalty)
            penalised = np.where(logits > 0, logits / penalty, logits * penalty)
            logits = np.where(self._seen, penalised, logits)
        token = int(np.argmax(logits)) if settings.temperature == 0 else self._drawn(logits)
        if self._seen is not None:
            self._seen[token] = True
        return token

    def _drawn(self, logits: Array) -> int:
        """A token by its probability, among those that `top_k`, `top_p` and `min_p` leave, in this order."""
        settings = self.settings
        ids = np.arange(logits.size)
        if 0 < settings.top_k < logits.size:
            ids = np.argpartition(logits, -settings.top_k)[-settings.top_k :]
        scores = logits[ids].astype(np.float64)
        shares = np.exp((scores - scores.max()) / settings.temperature)
        shares /= shares.sum()
        kept = _likeliest(shares, settings.top_p) if settings.top_p < 1 else np.arange(ids.size)
        kept = kept[shares[kept] >= settings.min_p * shares.max()]
        ends = np.cumsum(shares[kept])
        at = np.searchsorted(ends, self._random.random() * ends[-1], side="right")
        return int(ids[kept[min(at, kept.size - 1)]])


def _likeliest(shares: Array, share: float) -> Array:
    """Where the fewest numbers stand that come to this share together. Of many, few are sorted if these are enough."""
    few = np.arange(shares.size)
    if shares.size > SORTED_FIRST:
        first = np.argpartition(shares, -SORTED_FIRST)[-SORTED_FIRST:]
        few = first if shares[first].sum() >= share else few
    few = few[np.argsort(-shares[few], kind="stable")]
    before = np.cumsum(shares[few]) - shares[few]
    return np.asarray(few[before < share])
