"""Conversations: contexts that are kept, gone on with, and saved."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from rlx.arguments import methods_checked
from rlx.errors import InputError, ModelError
from rlx.frontends import safetensors
from rlx.interrupt import CancelToken
from rlx.models.generation import Decoder, Generation, Limit, Piece, Prompt, Row, generated, steps
from rlx.models.sampling import Choices

_IDS = "ids"


@methods_checked()
class Conversation:
    """What a decoder and its user have said so far. A call computes what is new, and nothing of what came before.

    A call that fails or is cancelled changes nothing. It is for one thread at a time; a model may have many.

    ids        the tokens so far
    messages   those of a chat, if `say` is used
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._context = decoder.new_context()
        self.ids: list[int] = []
        self.messages: list[dict[str, str]] = []

    def generate(
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        **choices: Unpack[Choices],
    ) -> Generation:
        """Goes on with what was said so far and the prompt, as `Model.generate` does. Messages are all of a chat, and
        what of it is known already is not computed again."""
        row, limit = self._row(prompt, max_new_tokens, timeout, cancel, choices)
        return generated([row], self._going_on(row, limit))[0]

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        **choices: Unpack[Choices],
    ) -> Iterator[Piece]:
        """The same, token by token. What was given stays said if the iterator is closed before its end."""
        return self._going_on(*self._row(prompt, max_new_tokens, timeout, cancel, choices))

    def say(self, text: str, max_new_tokens: int | None = None, **choices: Unpack[Choices]) -> Generation:
        """The answer to a message of the user, in the form that the model's chat template gives both."""
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = self.generate(messages, max_new_tokens, **choices)
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        return answer

    def _row(
        self,
        prompt: Prompt,
        max_new_tokens: int | None,
        timeout: float | None,
        cancel: CancelToken | None,
        choices: Any,
    ) -> tuple[Row, Limit]:
        """All that is checked before anything runs."""
        limit = Limit.of(timeout, cancel)
        ids = self._decoder.ids_of(prompt, special=not self.ids)
        is_chat = not isinstance(prompt, str) and isinstance(prompt[0], Mapping)
        ids = ids if is_chat else [*self.ids, *ids]
        return Row(self._decoder, ids, self._decoder.prepared(max_new_tokens, choices, len(ids))), limit

    def _going_on(self, row: Row, limit: Limit) -> Iterator[Piece]:
        before, context = self.ids, self._context
        known = next(
            (i for i, (a, b) in enumerate(zip(before, row.prompt)) if a != b), min(len(before), len(row.prompt))
        )
        context.length = min(context.length, known, len(row.prompt) - 1)
        try:
            for piece in steps([row], context, limit):
                self.ids = [*row.prompt, *row.ids]
                yield piece
        except GeneratorExit:
            raise
        except BaseException:
            self.ids = before
            context.length = min(context.length, known)
            raise

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what was said, with keys and values, to a file in the format of safetensors. Raises OSError."""
        arrays = {_IDS: np.array(self.ids, np.int64), **self._context.rows()}
        about = {"model": self._mark(), "messages": json.dumps(self.messages)}
        safetensors.write(Path(path), arrays, about)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on with what was saved, by the same model. Raises ModelError, InputError for that of another model."""
        arrays, about = safetensors.read_all(Path(path))
        ids = arrays.pop(_IDS, None)
        try:
            messages = json.loads(about.get("messages", "[]"))
        except ValueError:
            messages = None
        if ids is None or ids.ndim != 1 or ids.dtype != np.int64 or not isinstance(messages, list):
            raise ModelError(f"[conversation] expected a conversation that was saved, got another file: {str(path)!r}")
        if about.get("model") != self._mark():
            raise InputError(
                f"[conversation] expected a conversation with this model, got one with another: {str(path)!r}"
            )
        if ids.size > self._decoder.config.max_positions or (ids.size and not self._has_all(ids)):
            raise ModelError(f"[conversation] expected tokens of this model, got others: {str(path)!r}")
        self._context.restore(arrays)
        self.ids, self.messages = ids.tolist(), messages

    def _has_all(self, ids: Any) -> bool:
        return bool(ids.min() >= 0 and ids.max() < self._decoder.config.vocab_size)

    def _mark(self) -> str:
        """What tells a model from others: its configuration, and its norms."""
        norms = [array for name, array in sorted(self._decoder.arrays.items()) if array.ndim == 1]
        check = 0
        for array in norms:
            check = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, check)
        return f"{self._decoder.config} {check:08x}"
