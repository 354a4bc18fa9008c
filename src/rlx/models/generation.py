"""Decoders that go on with texts: `generate`, token by token, from what was seen before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlx import interrupt, locks
from rlx.backends.memory import DeviceArray
from rlx.errors import InputError, MissingExtra, RunTimeout
from rlx.frontends import safetensors
from rlx.frontends.files import read_json
from rlx.frontends.registry import Imported
from rlx.interrupt import CancelToken
from rlx.ir.literal import Array
from rlx.models.context import Context
from rlx.models.llama import TOKEN, decoder
from rlx.models.llama_config import Config
from rlx.models.sampling import USUAL_NEW_TOKENS, Sampler, Settings
from rlx.models.text import Messages, Text, TextStream
from rlx.records import dataclass

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph
    from rlx.runtime.session import Session

Prompt = str | Sequence[int] | Array | Messages
"""A text, ids of tokens, or the messages of a chat."""


@dataclass(frozen=True)
class Piece:
    """What a step adds: a token, and the text that is certain since it came ("" without a tokenizer)."""

    token: int
    text: str


@dataclass(frozen=True)
class Generation:
    """What was generated for one prompt. As a string it is its text.

    ids             of the new tokens, one that ended it among them
    text            of them, without one that ended it; "" for prompts of ids in a model without a tokenizer
    ended           "stop" by a token or text that ends it, "length" by the number of tokens
    prompt_tokens   tokens of the context before the first
    prefill_s, decode_s   seconds until the first token, and from the first to the last
    """

    ids: list[int]
    text: str
    ended: str
    prompt_tokens: int
    prefill_s: float
    decode_s: float

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Limit:
    """What may end a call: a token, and the end of its time."""

    cancel: CancelToken | None = None
    seconds: float | None = None
    end: float = field(default=0.0)

    @staticmethod
    def of(timeout: float | None, cancel: CancelToken | None) -> Limit:
        with interrupt.limited(timeout, cancel):  # which checks both
            return Limit(cancel, timeout, time.monotonic() + (timeout or 0.0))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """What runs in here ends with the limit."""
        if self.seconds is None and self.cancel is None:
            yield
            return
        left = None if self.seconds is None else max(self.end - time.monotonic(), 1e-9)
        try:
            with interrupt.limited(left, self.cancel):
                yield
        except RunTimeout:
            expected = f"tokens within {self.seconds} s (timeout)"
            raise RunTimeout(f"[generate] expected {expected}, got some that took longer") from None


def read(folder: Path, keep_dtype: bool = True) -> Imported:
    """The decoder in a folder, its weights mapped.

    keep_dtype    False computes in f32 where weights are f16 or bf16, which stay that narrow in memory
    Raises ModelError.
    """
    config = Config.of(read_json(folder / "config.json"))
    graph = decoder(config, safetensors.read_folder(folder), keep_dtype)
    notes = {"folder": folder.name, "config": str(config)}
    return Imported(graph, config.family, notes, generator=Source(config, Folder(folder), keep_dtype))


class Origin(Protocol):
    """Where a decoder is from, which is asked for what its program does not need."""

    @property
    def has_text(self) -> bool:
        """Whether there is a tokenizer."""

    def text(self) -> Text:
        """It. Raises MissingExtra, ModelError where there is none."""

    def settings(self) -> Settings:
        """What calls do not say. Raises ModelError where that asks for what is not there."""


@dataclass(frozen=True)
class Folder:
    """One of Hugging Face."""

    path: Path

    @property
    def has_text(self) -> bool:
        return (self.path / "tokenizer.json").is_file()

    def text(self) -> Text:
        return Text.of_folder(self.path)

    def settings(self) -> Settings:
        file = self.path / "generation_config.json"
        return Settings.of(read_json(file) if file.is_file() else {}, read_json(self.path / "config.json"))


@dataclass(frozen=True)
class Source:
    """What a decoder was read from, beside its program."""

    config: Config
    origin: Origin
    keep_dtype: bool

    def decoder(self, session: Session, arrays: Mapping[str, Array]) -> Decoder:
        """It, with these weights. Raises ModelError for settings that ask for what is not there."""
        return Decoder(self, self.origin.settings(), session, arrays)


class Decoder:
    """A decoder that generates. Every method may be called from many threads.

    Its program is compiled when something is first generated; calls at the same time share its weights and have
    contexts of their own.
    """

    def __init__(self, source: Source, settings: Settings, session: Session, arrays: Mapping[str, Array]) -> None:
        self.config = source.config
        self.settings = settings
        self._source = source
        self._session = session
        self.arrays = arrays
        self._lock = locks.rlock()
        self._program: CompiledGraph | None = None
        self._text: Text | None = None
        self._idle: list[Context] = []

    @property
    def text(self) -> Text:
        """The tokenizer. Raises MissingExtra, ModelError where there is none."""
        with self._lock:
            if self._text is None:
                self._text = self._source.origin.text()
            return self._text

    @property
    def program(self) -> CompiledGraph:
        """The program of a step. It has no caches; contexts are copies of it."""
        with self._lock:
            if self._program is None:
                self._program = self._compiled()
            return self._program

    def _compiled(self) -> CompiledGraph:
        """The program; on a device that the host need not wait for after each token, one that tells it there."""
        options = replace(self._session.options, check_indices=False)  # contexts look at ids
        session = self._session.with_options(options)
        program = session.compile(self._graph(_is_ahead(session.device)))
        if _is_ahead(program.device) and TOKEN not in program.output_names:
            program = session.on(program.device, options).compile(self._graph(likeliest=True))
        return program

    def _graph(self, likeliest: bool) -> Any:
        return decoder(self.config, self.arrays, self._source.keep_dtype, caches=True, likeliest=likeliest)

    def new_context(self) -> Context:
        program = self.program
        own = program.clone() if program.capabilities.shared_code else self._compiled()
        return Context(own, self.config.max_positions)

    @contextmanager
    def context(self) -> Iterator[Context]:
        """A context that nobody else has, empty."""
        with self._lock:
            context = self._idle.pop() if self._idle else None
        context = context or self.new_context()
        try:
            yield context
        except BaseException:
            context.forget()
            raise
        finally:
            context.length = 0
            with self._lock:
                if not self._idle:
                    self._idle.append(context)

    def close(self) -> None:
        """Releases the program and its caches."""
        with self._lock:
            programs = [context.program for context in self._idle]
            programs += [] if self._program is None else [self._program]
            self._program, self._idle = None, []
        for program in programs:
            program.close()

    def batch_of(self, prompts: Sequence[Any]) -> list[list[int]]:
        """The tokens of several prompts. Raises InputError, also for prompts of different lengths."""
        batch = [self.ids_of(prompt) for prompt in prompts]
        lengths = sorted({len(ids) for ids in batch})
        if len(lengths) > 1:
            raise InputError(
                f"[generate] expected prompts of one length at once, got {lengths} tokens: call it for each"
            )
        return batch

    def ids_of(self, prompt: Prompt, special: bool = True) -> list[int]:
        """The tokens of one prompt. Raises InputError, and as `text` does for texts and chats.

        special   whether a text begins with the tokens that begin every text
        """
        if isinstance(prompt, str):
            ids = self.text.encode(prompt, special)
        elif not _is_sequence(prompt):
            raise InputError(f"[generate] expected a text, ids or messages, got {told(prompt)}")
        elif len(prompt) and isinstance(prompt[0], Mapping):
            ids = self.text.chat(prompt)  # type: ignore[arg-type]  # the first message tells
        else:
            array = np.asarray(prompt)
            if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
                raise InputError(f"[generate] expected a text, ids or messages, got {told(prompt)}")
            ids = [int(i) for i in array]
        wrong = [i for i in ids if not 0 <= i < self.config.vocab_size]
        if wrong:
            raise InputError(f"[generate] expected ids from 0 to {self.config.vocab_size - 1}, got {wrong[0]}")
        if not ids:
            raise InputError("[generate] expected a prompt of at least one token, got none")
        return ids

    def prepared(self, max_new_tokens: int | None, choices: Mapping[str, Any], length: int) -> Settings:
        """The settings of a call behind so many tokens, `max_new_tokens` known. Raises InputError for more tokens than
        a context can hold."""
        settings = self.settings.with_choices(choices, max_new_tokens)
        limit, room = self.config.max_positions, self.config.max_positions - length
        if room < 1 or (max_new_tokens is not None and max_new_tokens > room):
            new = settings.max_new_tokens or 1
            raise InputError(
                f"[generate] expected a context of at most {limit} tokens, got {length} and {new} new ones: "
                f"{length + new}"
            )
        usual = settings.max_new_tokens or USUAL_NEW_TOKENS
        if settings.max_length is not None and settings.max_new_tokens is None:
            usual = max(settings.max_length - length, 1)
        return replace(settings, max_new_tokens=min(usual, room))

    def text_stream(self, stop: Sequence[str]) -> TextStream | None:
        """What makes text of tokens; None for models that have no tokenizer, or where its package is not installed, if
        no text is to stop it."""
        if not stop and not self._source.origin.has_text:
            return None
        try:
            return TextStream(self.text, stop)
        except MissingExtra:
            if stop:
                raise
            return None

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int | None,
        timeout: float | None,
        cancel: CancelToken | None,
        choices: Mapping[str, Any],
    ) -> Generation | list[Generation]:
        """As `Model.generate` tells."""
        limit = Limit.of(timeout, cancel)
        single = is_one(prompt)
        batch = self.batch_of([prompt] if single else prompt)
        settings = self.prepared(max_new_tokens, choices, len(batch[0]))
        rows = [Row(self, ids, settings, number) for number, ids in enumerate(batch)]
        with self.context() as context:
            results = generated(rows, steps(rows, context, limit))
        return results[0] if single else results

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int | None,
        timeout: float | None,
        cancel: CancelToken | None,
        choices: Mapping[str, Any],
    ) -> Iterator[Piece]:
        """As `Model.stream` tells. All that can be checked is, before this returns."""
        limit = Limit.of(timeout, cancel)
        ids = self.ids_of(prompt)
        row = Row(self, ids, self.prepared(max_new_tokens, choices, len(ids)))
        return self._stream(row, limit)

    def _stream(self, row: Row, limit: Limit) -> Iterator[Piece]:
        with self.context() as context:
            yield from steps([row], context, limit)


class Row:
    """One prompt, and what was generated for it."""

    def __init__(self, owner: Decoder, prompt: Sequence[int], settings: Settings, number: int = 0) -> None:
        self.prompt = prompt
        self.ids: list[int] = []
        self.ended = ""
        self._texts: list[str] = []
        self._settings = settings
        self._sampler = Sampler(settings, prompt, owner.config.vocab_size, number)
        self._stream = owner.text_stream(settings.stop)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token always follows."""
        return self._sampler.is_greedy

    @property
    def needs_more(self) -> bool:
        """Whether a token may follow the next one."""
        return not self.ended and len(self.ids) + 1 < (self._settings.max_new_tokens or 0)

    def take(self, logits: Array) -> Piece:
        """The next token by its logits. A row that has ended goes on with its last, which is no part of it."""
        return self.accept(self.ids[-1] if self.ended else self._sampler.choose(logits))

    def accept(self, token: int) -> Piece:
        """The next token. To a row that has ended it does nothing."""
        if self.ended:
            return Piece(self.ids[-1], "")
        self.ids.append(token)
        text = ""
        if token in self._settings.eos_token_id:
            self.ended = "stop"
        elif self._stream is not None:
            text = self._stream.push(token)
            self.ended = "stop" if self._stream.stopped else ""
        if len(self.ids) == self._settings.max_new_tokens:
            self.ended = self.ended or "length"
        if self.ended and self._stream is not None:
            text += self._stream.finish()
        self._texts.append(text)
        return Piece(token, text)

    def result(self, prefill_s: float, decode_s: float) -> Generation:
        return Generation(self.ids, "".join(self._texts), self.ended, len(self.prompt), prefill_s, decode_s)


def steps(rows: Sequence[Row], context: Context, limit: Limit) -> Iterator[Piece]:
    """Takes steps until all rows have ended; gives what each adds to the first row."""
    if context.tells_tokens and all(row.is_greedy for row in rows):
        yield from _steps_ahead(rows, context, limit)
        return
    fed = np.array([row.prompt[context.length :] for row in rows], np.int64)
    while True:
        with limit():
            logits = context.feed(fed)
        pieces = [row.take(logits[number]) for number, row in enumerate(rows)]
        yield pieces[0]
        if all(row.ended for row in rows):
            return
        fed = np.array([[row.ids[-1]] for row in rows], np.int64)


def _steps_ahead(rows: Sequence[Row], context: Context, limit: Limit) -> Iterator[Piece]:
    """Steps of likeliest tokens, of which each begins before the host knows the token that it is for."""
    fed: Array | DeviceArray = np.array([row.prompt[context.length :] for row in rows], np.int64)
    ahead: DeviceArray | None = None
    while True:
        with limit():
            token = context.begin(fed) if ahead is None else ahead
            ahead = context.begin(token) if any(row.needs_more for row in rows) else None
        found = token.numpy()
        pieces = [row.accept(int(found[number, 0])) for number, row in enumerate(rows)]
        ended = all(row.ended for row in rows)
        if ended and ahead is not None:
            context.length -= 1
        yield pieces[0]
        if ended:
            return
        fed = found


def generated(rows: Sequence[Row], taken: Iterator[Piece]) -> list[Generation]:
    """What comes of all steps of some rows, with their times."""
    start_s = first_s = time.perf_counter()
    for step, _ in enumerate(taken):
        first_s = time.perf_counter() if step == 0 else first_s
    end_s = time.perf_counter()
    return [row.result(first_s - start_s, end_s - first_s) for row in rows]


def _is_ahead(device: str) -> bool:
    """Whether a device computes while the host goes on."""
    return device.partition(":")[0] in ("cuda", "rocm")


def is_one(prompt: Any) -> bool:
    """Whether a prompt is one, and no list of several."""
    if not _is_sequence(prompt) or not len(prompt):
        return True
    return isinstance(prompt[0], Mapping) or (np.ndim(prompt[0]) == 0 and not isinstance(prompt[0], str))


def _is_sequence(prompt: Any) -> bool:
    return isinstance(prompt, (list, tuple)) or (isinstance(prompt, np.ndarray) and prompt.ndim > 0)


def told(prompt: Any) -> str:
    """A prompt in messages."""
    text = repr(prompt)
    return text if len(text) <= 80 else f"{text[:77]}..."
