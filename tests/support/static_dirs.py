"""Directories of static encoders, made without the libraries that they belong to; and texts that try their rules."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from support.builders import byte_level, fairseq_wordpiece, make_sentences, unigram, wordpiece

TOKENIZERS = {"wordpiece": wordpiece, "bytes": byte_level, "unigram": unigram, "mpnet": fairseq_wordpiece}
# unknown letters, no tokens at all, texts beyond every limit of characters and of tokens
TEXTS = [
    *make_sentences(24),
    *("", " ", "☃", "zzz ☃ the dog ☃", "the dog " * 400, "x" * 9000, "dog runs. " * 70, "☃ " * 700 + "the dog"),
]


def numbers(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(0, 0.5, shape)
    return np.clip(drawn * 100, -127, 127).astype(dtype) if dtype == np.int8 else drawn.astype(dtype)


def model2vec_dir(
    path: Path, tokenizer: Tokenizer | None = None, *, width: int = 37, dtype: Any = np.float32, weights: Any = None,
    clusters: int | None = None, mapping: Any = np.int64, **config: Any,
) -> Path:  # fmt: skip
    """A directory as model2vec saves it. ``weights``, ``mapping``: dtypes; ``clusters``: rows of a mapped table."""
    tokenizer = tokenizer or wordpiece()
    size = tokenizer.get_vocab_size()
    arrays = {"embeddings": numbers((clusters or size, width), 1, dtype)}
    if weights is not None:
        arrays["weights"] = np.abs(numbers((size,), 2, weights)) + weights(0.1)
    if clusters:
        arrays["mapping"] = np.random.default_rng(3).integers(0, clusters, size).astype(mapping)
    path.mkdir(parents=True)
    save_file(arrays, path / "model.safetensors")
    tokenizer.save(str(path / "tokenizer.json"))
    said = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": width, "apply_pca": 256}
    (path / "config.json").write_text(json.dumps({**said, **config}))
    return path


def static_embedding_dir(
    path: Path, after: list[tuple[str, dict[str, Any]]] | None = None, *, tokenizer: Tokenizer | None = None,
    width: int = 37, dtype: Any = np.float32, folder: str = "0_StaticEmbedding", new: bool = False, **settings: Any,
) -> Path:  # fmt: skip
    """A directory as Sentence Transformers saves a StaticEmbedding and the modules ``after`` it: Normalize or Dense."""
    tokenizer = tokenizer or wordpiece()
    (path / folder).mkdir(parents=True)
    rows = numbers((tokenizer.get_vocab_size(), width), 1, dtype)
    save_file({"embedding.weight": rows}, path / folder / "model.safetensors")
    tokenizer.save(str(path / folder / "tokenizer.json"))
    types = {
        "StaticEmbedding": "sentence_transformer.modules.static_embedding",
        "Dense": "base.modules.dense",
        "Normalize": "base.modules.normalize",
    }
    chain = [("StaticEmbedding", {}), *(after or [])]
    names = [folder, *(f"{i}_{kind}" for i, (kind, _) in enumerate(chain) if i)]
    entries = []
    for i, ((kind, own), name) in enumerate(zip(chain, names, strict=True)):
        (path / name).mkdir(parents=True, exist_ok=True)
        kind_of = f"{types[kind]}.{kind}" if new else f"models.{kind}"
        entries.append({"idx": i, "name": str(i), "path": name, "type": f"sentence_transformers.{kind_of}"})
        if kind == "Dense":
            out = own["out_features"]
            said = {"in_features": width, "bias": True, **own}
            (path / name / "config.json").write_text(json.dumps(said))
            arrays = {"linear.weight": numbers((out, width), 4), "linear.bias": numbers((out,), 5)}
            save_file(arrays, path / name / "model.safetensors")
            width = out
    (path / "modules.json").write_text(json.dumps(entries))
    (path / "config_sentence_transformers.json").write_text(
        json.dumps({"__version__": {}, "prompts": {}, "default_prompt_name": None, **settings})
    )
    return path
