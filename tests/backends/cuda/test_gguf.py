"""A decoder in a GGUF file, whose weights stay packed on the device, on the emulated driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from gguf_files import small_decoder
from rlx.backends.cuda.build import program_of
from rlx.models.llama import decoder

from .emulated_driver import EmulatedDriver
from .test_blocks import products_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(small_decoder())
    return path


def test_a_packed_decoder_is_that_of_the_processor(path: Path, driver: EmulatedDriver) -> None:
    ids = np.array([[1, 5, 9, 7, 3]])
    with rlx.load(path, device="cuda") as here, rlx.load(path, device="cpu") as there:
        actual, expected = (model(input_ids=ids)["logits"] for model in (here, there))
        assert np.abs(actual - expected).max() < 1e-4 * np.abs(expected).max()
        ours, theirs = (model.generate([1, 5, 9], 8, eos_token_id=-1).ids for model in (here, there))
        assert ours == theirs
        step = decoder(here.decoder.config, here.graph.data, caches=True)
        products = [work for work in products_of(program_of(step)) if work.blocks is not None]
        assert {work.blocks.bits for work in products if work.blocks is not None} == {4, 8}


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_a_packed_decoder_with_narrow_products(path: Path, driver: EmulatedDriver, precision: Any) -> None:
    ids = np.array([[1, 5, 9, 7, 3]])
    expected = rlx.load(path, device="cpu")(input_ids=ids)["logits"]
    actual = rlx.load(path, device="cuda", precision=precision)(input_ids=ids)["logits"]
    assert np.median(np.abs(actual - expected)) < 0.02 * np.abs(expected).max()
