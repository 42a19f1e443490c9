"""A model of every kind that can be exported, by name; and texts of every length."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastflow import Runtime

from support.builders import WORDS, make_model
from support.sentence_dirs import NORMALIZE, PROMPTED, dense, make_directory, pooling
from support.static_dirs import model2vec_dir, static_embedding_dir

# one token, none, several scripts, special tokens as they are written, up to the limit and beyond
TEXTS = [
    "", " ", "a", "dog", "The old dog.", "☃", "zzz ☃ the dog ☃", "[CLS] the dog [SEP]", "ÄÖÜ ß é 東京", "\tthe\n dog ",
    *(" ".join(random.Random(n).choices(WORDS, k=n)) for n in (2, 3, 5, 8, 13, 21, 34, 55, 61, 62, 63, 89, 144, 233)),
]  # fmt: skip


def fitted(method: str, family: str = "bert", **settings: Any) -> Callable[..., Path]:
    return lambda path, encoders, texts: make_model(path, encoders(family), texts, method, **settings)


def modules(family: str, *chain: Any, **settings: Any) -> Callable[..., Path]:
    return lambda path, encoders, texts: make_directory(path, encoders(family), list(chain), **settings)


def table(**settings: Any) -> Callable[..., Path]:
    return lambda path, encoders, texts: model2vec_dir(path, **settings)


def fitted_table(method: str, weighted: bool = False, **settings: Any) -> Callable[..., Path]:

    def make(path: Path, encoders: Any, texts: list[str]) -> Path:
        source = model2vec_dir(path.with_name("table"), width=32, **settings)
        return make_model(path, source, texts, method, pooling="words", max_length=64, weighted=weighted)

    return make


def fitted_modules(path: Path, encoders: Any, texts: list[str]) -> Path:
    source = make_directory(path.with_name("source"), encoders("bert"), [pooling("mean"), NORMALIZE], **PROMPTED)
    return make_model(path, source, texts, "flow+recolour", pooling="model", max_length=None, ordered=True)


LAYERS = ("WeightedLayerPooling", {"weights": [0.5, 0, 1.5]})
MODELS: dict[str, Callable[..., Path]] = {
    **{f"raw-{family}": lambda path, encoders, texts, family=family: encoders(family)
       for family in ("bert", "minilm", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "mpnet",
                      "modernbert")},
    "layers": fitted("none", pooling="first-last"),
    "shares": fitted("none", pooling="mean-of-layers:1,2*3"),
    "embedding": fitted("none", pooling="mean-of-layers:0"),
    "embedding-roberta": fitted("none", "roberta", pooling="mean-of-layers:0"),
    "embedding-modernbert": fitted("none", "modernbert", pooling="mean-of-layers:0"),
    "cls": fitted("whiten", pooling="cls"),
    "pooler": fitted("standardize", pooling="pooler"),
    **{f"words-{family}": fitted("whiten", family, pooling="words")
       for family in ("bert", "roberta", "distilbert", "electra", "mpnet")},
    "words-modernbert": fitted("none", "modernbert", pooling="words-first-last"),
    "weights": fitted("none", pooling="last", weighted=True),
    "weights-layers": fitted("whiten", weighted=True),
    "weights-words": fitted("flow+recolour", pooling="words", weighted=True, depth=3),
    "standardize": fitted("standardize"),
    "components": fitted("components:3"),
    "nullspace": fitted("nullspace:3"),
    "whiten-narrow": fitted("whiten:12"),
    "soft-whitening": fitted("whiten,recolour"),
    "flow": fitted("flow", ordered=True),
    "flow-odd": fitted("flow+recolour", levels=3, depth=1, width=7),
    "flow-random": fitted("flow+recolour", permutation="random"),
    "flow-lu": fitted("flow+recolour", permutation="lu"),
    "chain": fitted("whiten:16,flow,recolour", levels=2),
    "components-flow": fitted("components:2,flow"),
    "affine": fitted("flow+recolour", coupling="affine"),
    "words-first-last": fitted("none", pooling="words-first-last"),
    "modules": modules("bert", pooling("mean"), NORMALIZE, **PROMPTED),
    "modules-lower": modules("roberta", pooling("cls", "mean"), dense(20), ("LayerNorm", {}), NORMALIZE, lower=True),
    "modules-max": modules("minilm", pooling("max", "lasttoken"), dense(9, "GELU", residual=True), new=True),
    "modules-positions": modules("bert", LAYERS, pooling("mean_sqrt_len_tokens", "weightedmean")),
    "modules-narrow": modules("bert", pooling("mean"), truncate_dim=10),
    "modules-flow": fitted_modules,
    "table": table(),
    "table-unit": table(normalize=True),
    "table-half": table(dtype=np.float16, normalize=True),
    "table-int8": table(dtype=np.int8, weights=np.float32),
    "table-clusters": table(clusters=20, weights=np.float32, normalize=True),
    "table-short": table(max_length=8, normalize=True),
    "table-endless": table(max_length=None, normalize=True),
    "table-flow": fitted_table("flow+recolour"),
    "table-weights": fitted_table("whiten", weighted=True),
    "static-embedding": lambda path, encoders, texts: static_embedding_dir(path, [("Normalize", {})]),
}  # fmt: skip
REFUSED = {  # by Sentence Transformers -> the reason in the message
    "affine": "a flow of affine couplings cannot be exported to Sentence Transformers",
    "words-first-last": "one encoder there has one position table",
}


def apart(path: str | Path, found: np.ndarray, **options: Any) -> float:
    """The largest difference of ``found`` (B, D) to the model's own float32 vectors of TEXTS, relative to the longest
    vector if that is longer than 1.
    """
    with Runtime(path, dtype="float32", device="cpu") as runtime:
        want = runtime.encode(TEXTS, **options)
    assert found.shape == want.shape
    return float(np.abs(found - want).max() / max(1, np.linalg.norm(want, axis=1).max()))
