"""Decoders of each family: logits against a reference in NumPy, which is held against transformers; their folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from models.decoder_reference import CONFIGS, logits, weights, write_folder
from rlx.errors import ModelError
from rlx.models.context import Context
from rlx.models.llama import decoder
from rlx.models.llama_config import FAMILIES, Config
from rlx.models.registry import DECODERS

IDS = np.random.default_rng(1).integers(0, 40, (2, 23))


def scaled_error(actual: Any, expected: Any) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def usual_error(actual: Any, expected: Any) -> float:
    return float(np.median(np.abs(actual - expected)) / np.abs(expected).max())


def context_of(name: str, device: str = "cpu") -> Context:
    """A decoder that keeps keys and values, with nothing seen."""
    config = Config.of(CONFIGS[name])
    graph = decoder(config, weights(CONFIGS[name]), caches=True)
    return Context(rlx.Session(device).compile(graph), config.max_positions)


def transformers_model(transformers: Any, torch: Any, name: str) -> Any:
    """Theirs, with the same weights."""
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(CONFIGS[name])))
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    arrays = {key: torch.tensor(a) for key, a in weights(CONFIGS[name]).items()}
    if CONFIGS[name].get("tie_word_embeddings"):
        arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    theirs.load_state_dict(arrays, strict=True)
    return theirs


@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_equals_transformers(name: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers_model(transformers, torch, name)
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS)).logits.numpy()
    assert scaled_error(expected, logits(CONFIGS[name], weights(CONFIGS[name]), IDS)) < 1e-4


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.devices("cpu", "reference")
def test_logits_of_whole_texts(name: str, device: str) -> None:
    arrays = weights(CONFIGS[name])
    (actual,) = rlx.Session(device).compile(decoder(Config.of(CONFIGS[name]), arrays)).run([IDS])
    assert actual.dtype == np.float32 and scaled_error(actual, logits(CONFIGS[name], arrays, IDS)) < 1e-4


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_step_by_step(name: str) -> None:
    context = context_of(name)
    assert set(context.program.describe()["written_in_place"]) == {
        f"cache.{i}.{part}" for i in range(4) for part in ("keys", "values")
    }, "appending moves the rows of a token, and no cache"
    expected = logits(CONFIGS[name], weights(CONFIGS[name]), IDS)
    assert scaled_error(context.feed(IDS[:, :9]), expected[:, 8]) < 1e-4
    for at in range(9, IDS.shape[1]):
        assert scaled_error(context.feed(IDS[:, at : at + 1]), expected[:, at]) < 1e-4


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.devices("reference", "vulkan", "opengl", "webgpu", "xla", "mlx")
def test_logits_step_by_step_on_other_devices(name: str, device: str) -> None:
    context = context_of(name, device)
    expected = logits(CONFIGS[name], weights(CONFIGS[name]), IDS)
    for start, end in ((0, 9), (9, 10), (10, 11), (11, 14)):
        assert scaled_error(context.feed(IDS[:, start:end]), expected[:, end - 1]) < 1e-4


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2"])
def test_narrow_weights(name: str) -> None:
    """bf16 has 8 digits in base 2; wider activations are as exact as f32 on the weights that there are."""
    narrow = {key: a.astype(ml_dtypes.bfloat16) for key, a in weights(CONFIGS[name]).items()}
    expected = logits(CONFIGS[name], narrow, IDS)
    for keep_dtype, most in ((True, 0.02), (False, 2e-5)):
        graph = decoder(Config.of(CONFIGS[name]), narrow, keep_dtype)
        assert {p.dtype.name for p in graph.params} == {"bf16"}
        assert usual_error(rlx.Session("cpu").compile(graph).run([IDS])[0], expected) < most
        context = Context(rlx.Session("cpu").compile(decoder(Config.of(CONFIGS[name]), narrow, keep_dtype, True)), 64)
        assert usual_error(context.feed(IDS[:, :9]), expected[:, 8]) < most
        assert usual_error(context.feed(IDS[:, 9:]), expected[:, -1]) < most


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2"])
def test_narrow_weights_lose_no_more_than_those_of_transformers(name: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    arrays = weights(CONFIGS[name])
    narrow = {key: a.astype(ml_dtypes.bfloat16) for key, a in arrays.items()}
    expected = logits(CONFIGS[name], narrow, IDS)
    theirs = transformers_model(transformers, torch, name).to(torch.bfloat16)
    with torch.no_grad():
        their_error = theirs(torch.tensor(IDS)).logits.float().numpy() - expected
    (actual,) = rlx.Session("cpu").compile(decoder(Config.of(CONFIGS[name]), narrow)).run([IDS])
    # The median: attention of random weights is so sharp that a rounding may choose another token.
    assert np.median(np.abs(actual - expected)) < 1.2 * np.median(np.abs(their_error))


_CONTEXTS: dict[str, Context] = {}


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(["llama", "gemma3", "smollm3"]), cuts=st.lists(st.integers(1, 22), max_size=5))
def test_any_split_of_a_text_gives_the_same_logits(name: str, cuts: list[int]) -> None:
    context = _CONTEXTS.setdefault(name, context_of(name))
    context.length = 0
    ends = [*sorted(set(cuts)), IDS.shape[1]]
    for start, end in zip([0, *ends], ends):
        actual = context.feed(IDS[:, start:end])
        expected = logits(CONFIGS[name], weights(CONFIGS[name]), IDS[:, :end])[:, -1]
        assert scaled_error(actual, expected) < 1e-4


def test_a_context_forgets_its_last_tokens() -> None:
    context = context_of("gemma2")
    context.feed(IDS)
    context.length = 5
    expected = logits(CONFIGS["gemma2"], weights(CONFIGS["gemma2"]), np.concatenate([IDS[:, :5], IDS[:, 9:12]], 1))
    assert scaled_error(context.feed(IDS[:, 9:12]), expected[:, -1]) < 1e-4


def test_families_that_are_named_are_those_that_are_there() -> None:
    assert set(DECODERS) == FAMILIES.keys() == {config["model_type"] for config in CONFIGS.values()}


# folders


@pytest.mark.parametrize("shards", [1, 3])
def test_folders_of_one_file_and_of_shards(tmp_path: Path, shards: int) -> None:
    folder = write_folder(tmp_path, CONFIGS["qwen3"], weights(CONFIGS["qwen3"]), shards)
    model = rlx.load(folder, device="cpu")
    assert model.input_names == ("input_ids",) and model.format == "qwen3"
    (actual,) = model.run([IDS])
    assert scaled_error(actual, logits(CONFIGS["qwen3"], weights(CONFIGS["qwen3"]), IDS)) < 1e-4


def test_names_without_the_prefix_of_the_head(tmp_path: Path) -> None:
    arrays = {key.removeprefix("model."): a for key, a in weights(CONFIGS["gemma"]).items()}
    model = rlx.load(write_folder(tmp_path, CONFIGS["gemma"], arrays), device="cpu")
    assert scaled_error(model.run([IDS])[0], logits(CONFIGS["gemma"], weights(CONFIGS["gemma"]), IDS)) < 1e-4


@pytest.mark.parametrize(
    "change, words",
    [
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_hidden_layers": 1 << 20}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 5}, "num_key_value_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"head_dim": 1 << 30}, "head_dim"),
        ({"max_position_embeddings": 1 << 40}, "max_position_embeddings"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"hidden_act": "snake"}, "hidden_act"),
        ({"hidden_act": ["silu"]}, "hidden_act"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0, "rope_warp": 1}}, "rope_warp"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"rope_theta": "1e4"}, "rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"model_type": "mistral", "attention_bias": True}, "attention_bias"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2, 3, 4]}, "no_rope_layers"),
        ({"model_type": "mistral", "sliding_window": -4}, "sliding_window"),
        ({"quantization_config": {"bits": 4}}, "floats"),
        ({"residual_multiplier": 0.5}, "residual_multiplier"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_configurations_that_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=rf"^\[llama\] expected .*{words}.*, got .*, in .*config\.json"):
        Config.of({**CONFIGS["llama"], **change})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["type", "factor"]), inner),
    max_leaves=4,
)
KEYS_READ = sorted({key for config in CONFIGS.values() for key in config} - {"model_type"} | {"layer_types"})


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(CONFIGS)), key=st.sampled_from(KEYS_READ), value=JSON)
def test_any_value_of_a_key_is_taken_or_refused_by_name(name: str, key: str, value: Any) -> None:
    try:
        config = Config.of({**CONFIGS[name], key: value})
    except ModelError as error:
        assert len(str(error)) < 400
        return
    assert config.heads % config.kv_heads == 0 and len(config.layers) <= 1024


def test_keys_without_effect_are_taken() -> None:
    more = {"torch_dtype": "bfloat16", "_name_or_path": "x", "pretraining_tp": 1, "rope_scaling": None, "moe": False,
            "attention_dropout": 0.1, "unsloth_fixed": True}  # fmt: skip
    assert Config.of({**CONFIGS["llama"], **more}) == Config.of(CONFIGS["llama"])


def layers(**config: Any) -> list[tuple[int | None, float | None]]:
    """Of each layer the window, and how far a token turns the second pair."""
    made = Config.of({**CONFIGS["llama"], **config}).layers
    return [(layer.window, None if layer.rope is None else round(layer.rope.angles[1] ** -4)) for layer in made]


@pytest.mark.parametrize(
    "config, expected",
    [
        ({"model_type": "llama"}, [(None, 10_000)] * 4),
        ({"model_type": "llama", "rope_theta": 500.0}, [(None, 500)] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [(None, 10_000)] * 4),
        ({"model_type": "mistral", "sliding_window": 7}, [(7, 10_000)] * 4),
        ({"model_type": "mistral", "sliding_window": 64}, [(None, 10_000)] * 4),  # of all 64 that there can be
        ({"model_type": "qwen2", "sliding_window": 7}, [(None, 10_000)] * 4),
        ({"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": True}, [(None, 10_000)] * 4),
        ({"model_type": "qwen3", "head_dim": 8, "sliding_window": 7, "use_sliding_window": True,
          "max_window_layers": 0}, [(7, 10_000)] * 4),
        ({"model_type": "smollm3", "no_rope_layer_interval": 2}, [(None, 2_000_000), (None, None)] * 2),
        ({"model_type": "smollm3", "no_rope_layers": [0, 1, 1, 0], "use_sliding_window": True, "sliding_window": 9},
         [(9, None), (None, 2_000_000), (None, 2_000_000), (9, None)]),
        ({"model_type": "gemma2", "head_dim": 8, "sliding_window": 7}, [(7, 10_000), (None, 10_000)] * 2),
        ({"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 7, "rope_theta": 300.0,
          "rope_local_base_freq": 200.0, "sliding_window_pattern": 2}, [(7, 200), (None, 300)] * 2),
        ({"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 7, "layer_types":
          ["full_attention", *["sliding_attention"] * 3]}, [(None, 1_000_000), *[(7, 10_000)] * 3]),
    ],
)  # fmt: skip
def test_windows_and_rotary_positions_of_layers(config: dict[str, Any], expected: list[Any]) -> None:
    assert layers(**config) == expected


Arrays = dict[str, Any]
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize(
    "change, name",
    [
        (lambda a: a.pop(DOWN), DOWN),
        (lambda a: a.update({DOWN: a[DOWN].T.copy()}), DOWN),
        (lambda a: a.update({DOWN: a[DOWN].astype("i4")}), DOWN),
        (lambda a: a.pop("lm_head.weight"), "lm_head.weight"),
        (lambda a: a.pop("model.embed_tokens.weight"), "embed_tokens.weight"),
        (lambda a: a.update({"model.embed_tokens.weight": a["model.embed_tokens.weight"][:-1]}), "embed_tokens.weight"),
        (lambda a: a.update({"model.layers.0.self_attn.q_norm.weight": np.ones(8, "f4")}), "q_norm"),
        (lambda a: a.update({"model.layers.4.mlp.up_proj.weight": np.ones((48, 32), "f4")}), "layers.4"),
        (lambda a: a.update({"model.layers.0.self_attn.q_proj.bias": np.ones(32, "f4")}), "q_proj.bias"),
    ],
)
def test_tensors_that_are_missing_misshapen_or_not_of_the_family(change: Callable[[Arrays], Any], name: str) -> None:
    arrays = weights(CONFIGS["llama"])
    change(arrays)
    with pytest.raises(ModelError, match=rf"^\[llama\] expected .*, got .*, at '.*{name}"):
        decoder(Config.of(CONFIGS["llama"]), arrays)


def test_tensors_that_follow_from_the_configuration_are_left_alone() -> None:
    arrays = weights(CONFIGS["gemma"])
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, "f4")
    decoder(Config.of(CONFIGS["gemma"]), arrays)


@pytest.mark.parametrize(
    "place, words",
    [
        ("../outside.safetensors", "no file name in the folder"),
        ("/etc/passwd", "no file name in the folder"),
        ("a\\b.safetensors", "no file name in the folder"),
        (7, "no file name in the folder"),
        ("nowhere.safetensors", "not there"),
        ("model-00002-of-00002.safetensors", "no tensor 'model.embed_tokens.weight'"),
    ],
)
def test_shards_that_are_elsewhere(tmp_path: Path, place: Any, words: str) -> None:
    folder = write_folder(tmp_path / "model", CONFIGS["llama"], weights(CONFIGS["llama"]), 2)
    (tmp_path / "outside.safetensors").write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.embed_tokens.weight"] = place
    index.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=words):
        rlx.load(folder)


def test_shards_that_are_cut_off(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, CONFIGS["llama"], weights(CONFIGS["llama"]), 2)
    shard = folder / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    for count in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:count])
        with pytest.raises(ModelError):
            rlx.load(folder)
    shard.write_bytes(whole)
    for text in ("{}", '{"weight_map": []}', '{"weight_map": {}}', "[]", "{"):
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ModelError):
            rlx.load(folder)


def test_folders_without_safetensors_say_what_they_have(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"expected weights in 'model\.safetensors'.*'pytorch_model\.bin'"):
        rlx.load(tmp_path)


def test_no_weight_is_copied() -> None:
    arrays = weights(CONFIGS["llama"])
    graph = decoder(Config.of(CONFIGS["llama"]), arrays)
    assert all(graph.data[name] is arrays[name] for name in arrays)
