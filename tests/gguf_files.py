"""GGUF files for tests, in plain bytes: what a file says, well or ill, is up to the caller."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
F32, Q4_0, Q8_0 = 0, 2, 8
_KINDS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(of: Any) -> bytes:
    """A value of the metadata with its type; bytes are taken as they are."""
    if isinstance(of, bytes):
        return of
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    if isinstance(of, (list, tuple)):
        kind = 8 if isinstance(of[0], str) else _KINDS[type(of[0])][0]
        start = struct.pack("<IIQ", 9, kind, len(of))
        parts = (text(each) if kind == 8 else struct.pack("<" + _KINDS[type(each)][1], each) for each in of)
        return start + b"".join(parts)
    kind, code = _KINDS[type(of)]
    return struct.pack("<I", kind) + struct.pack("<" + code, of)


def tensor(name: str | bytes, extents: Sequence[int], kind: int, offset: int) -> bytes:
    """The description of a tensor; extents are the file's, the last axis first."""
    return text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset)


def whole(
    keys: Sequence[tuple[str | bytes, Any]],
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of metadata, descriptions of tensors, and their bytes."""
    many = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, *many)
    head += b"".join(text(key) + value(of) for key, of in keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def with_arrays(keys: Mapping[str, Any], arrays: Mapping[str, tuple[int, Sequence[int], bytes]]) -> bytes:
    """A file with these tensors: type, row-major shape and bytes of each."""
    described, data = [], b""
    for name, (kind, shape, content) in arrays.items():
        described.append(tensor(name, shape[::-1], kind, len(data)))
        data += content + b"\0" * (-len(content) % 32)
    return whole(list(keys.items()), described, data)


def small_decoder() -> bytes:
    """A decoder of one layer with words for tokens, its matrices of 4 and of 8 bits."""
    random = np.random.default_rng(0)
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(4)), *"\N{LOWER ONE EIGHTH BLOCK}abcdefgh"]
    words += ["ab", "abc"]
    keys: dict[str, Any] = {
        "general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 32,
        "llama.block_count": 1, "llama.feed_forward_length": 64, "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 16, "llama.rope.freq_base": 100.0, "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words, "tokenizer.ggml.scores": [-float(i) for i in range(len(words))],
        "tokenizer.ggml.token_type": [2, 3, 3, 6, 6, 6, 6, *[1] * (len(words) - 7)],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    }  # fmt: skip
    shapes = {"token_embd": (len(words), 32), "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32),
              "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32), "blk.0.ffn_gate": (64, 32),
              "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}  # fmt: skip
    arrays: dict[str, tuple[int, Sequence[int], bytes]] = {}
    for number, (name, shape) in enumerate(shapes.items()):
        kind, size = (Q4_0, 16) if number % 2 else (Q8_0, 32)
        blocks = random.integers(0, 256, (shape[0] * shape[1] // 32, 2 + size), np.uint8)
        blocks[:, :2] = np.array([0.02], "<f2").view(np.uint8)
        arrays[f"{name}.weight"] = kind, shape, blocks.tobytes()
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        arrays[f"{name}.weight"] = F32, (32,), np.ones(32, "<f4").tobytes()
    return with_arrays(keys, arrays)
