"""Text in and out of tokens, by a model's tokenizer (packages `tokenizers`, and `jinja2` for chats)."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlx.errors import InputError, MissingExtra, ModelError
from rlx.frontends.files import read_json

INSTALL = "pip install 'rlx[text]'"
MAX_TOKENIZER_BYTES = 1 << 28
MAX_TEMPLATE_BYTES = 1 << 20
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"

Messages = Sequence[Mapping[str, Any]]


class Text:
    """A tokenizer, and what chats need.

    tokenizer   a `tokenizers.Tokenizer`
    settings    what a tokenizer_config.json has: texts of tokens that templates use
    template    that of chats, if there is one
    where       the model is, for messages
    """

    def __init__(self, tokenizer: Any, settings: Mapping[str, Any], template: str | None, where: str) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._template_text = template
        self._where = where

    @staticmethod
    def of_folder(folder: Path) -> Text:
        """That of a folder. Raises MissingExtra, ModelError where there is none."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"[generate] expected ids of tokens, as there is no 'tokenizer.json' in {str(folder)!r}")
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise ModelError(f"[generate] expected at most {MAX_TOKENIZER_BYTES} bytes, got more, in {path.name!r}")
        try:
            tokenizer = package().Tokenizer.from_file(str(path))
        except MissingExtra:
            raise
        except Exception as error:  # the package raises no class of its own
            raise ModelError(
                f"[generate] expected a tokenizer, got what does not parse ({error}), in {path.name!r}"
            ) from None
        file = folder / "tokenizer_config.json"
        settings = read_json(file) if file.is_file() else {}
        return Text(tokenizer, settings, _template_of(folder, settings), str(folder))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text, with those that begin every text if `special`."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def chat(self, messages: Messages) -> list[int]:
        """The tokens of a conversation, up to where the answer begins. Raises InputError, ModelError."""
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InputError(f"[generate] expected messages of 'role' and 'content', got {message!r}")
        return self.encode(self.rendered(messages), special=False)

    def rendered(self, messages: Messages) -> str:
        """The text of a conversation, as the model's template gives it. Raises InputError, ModelError."""
        tokens = {
            name: _plain(self._settings.get(name)) for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }
        template = self._template
        try:
            text: str = template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **tokens
            )
        except Exception as error:  # a template may raise anything
            raise InputError(f"[generate] expected messages that the chat template takes, got {error}") from None
        return text

    @functools.cached_property
    def _template(self) -> Any:
        """The template, in a sandbox: it comes with the model."""
        if self._template_text is None:
            raise ModelError(f"[generate] expected a model with a chat template, got none in {self._where!r}")
        jinja2 = _jinja()
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        options = {"trim_blocks": True, "lstrip_blocks": True, "extensions": ["jinja2.ext.loopcontrols"]}
        environment = ImmutableSandboxedEnvironment(**options)
        environment.globals.update(raise_exception=_refuse, strftime_now=time.strftime)
        environment.filters["tojson"] = _json
        # These tags mark for training what the model said.
        text = re.sub(r"\{%(-?)\s*generation\s*(-?)%\}", r"{%\1 if true \2%}", self._template_text)
        try:
            return environment.from_string(re.sub(r"\{%(-?)\s*endgeneration\s*(-?)%\}", r"{%\1 endif \2%}", text))
        except jinja2.TemplateError as error:
            raise ModelError(f"[generate] expected a chat template, got what does not parse: {error}") from None


def package() -> Any:
    """The package tokenizers. Raises MissingExtra."""
    try:
        import tokenizers
    except ImportError:
        raise MissingExtra(f"[generate] expected the package tokenizers for text, got none: {INSTALL}") from None
    return tokenizers


def _template_of(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The text of a folder's template."""
    file = folder / "chat_template.jinja"
    if file.is_file() and file.stat().st_size <= MAX_TEMPLATE_BYTES:
        return file.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _jinja() -> Any:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra(f"[generate] expected the package jinja2 for chats, got none: {INSTALL}") from None
    return jinja2


def _refuse(message: str) -> str:
    raise ValueError(message)


def _json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """What templates expect of the filter `tojson`: jinja's own escapes what HTML would take for tags."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _plain(token: Any) -> str:
    """A token as configurations write it, with or without how it is matched."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


class TextStream:
    """The text of tokens that come one by one, as soon as it is certain: whole characters, and no part of a text that
    stops it.

    stopped   whether one of these came
    """

    def __init__(self, text: Text, stop: Sequence[str] = ()) -> None:
        self._text = text
        self._stop = stop
        self._ids: list[int] = []
        self._first = self._read = 0
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """What the token adds."""
        self._ids.append(token)
        known = self._text.decode(self._ids[self._first : self._read])
        now = self._text.decode(self._ids[self._first :])
        if len(now) == len(known) or now.endswith(_UNFINISHED):  # a special token, a character of several tokens
            return ""
        self._first, self._read = self._read, len(self._ids)
        return self._certain(now[len(known) :])

    def finish(self) -> str:
        """What was held back, when nothing more comes."""
        if self.stopped:
            return ""
        known = self._text.decode(self._ids[self._first : self._read])
        rest = self._certain(self._text.decode(self._ids[self._first :])[len(known) :])
        if not self.stopped:
            rest, self._held = rest + self._held, ""
        return rest

    def _certain(self, more: str) -> str:
        text = self._held + more
        ends = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text a text that stops it begins with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
