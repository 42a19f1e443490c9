"""Public facts about published models of Sentence Transformers: shapes, modules, limits and prompts. No weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.builders import calm, make_encoder
from support.sentence_dirs import NORMALIZE, Module, dense, make_directory, pooling

MEAN, CLS = pooling("mean"), pooling("cls")
QUERY = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True)
class Published:
    """Depth, width and heads of an encoder, what follows it, the limit of tokens and the prompts.

    ``wide``: of the feed-forward layers, 0 for four times the width; ``dim``: of an embedding, 0 for the width.
    """

    layers: int
    hidden: int
    heads: int
    modules: tuple[Module, ...]
    length: int = 512
    family: str = "bert"
    prompts: Mapping[str, str] = field(default_factory=dict)
    dim: int = 0
    wide: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", self.dim or self.hidden)
        object.__setattr__(self, "wide", self.wide or 4 * self.hidden)

    def shape(self, layers: int | None = None) -> dict[str, Any]:
        """transformers' settings of the encoder, with this many ``layers`` (None: all)."""
        depth = layers or self.layers
        if self.family == "distilbert":
            return {"dim": self.hidden, "n_layers": depth, "n_heads": self.heads, "hidden_dim": self.wide,
                    "max_position_embeddings": 512}  # fmt: skip
        places = {"xlm-roberta": 514, "mpnet": 514, "modernbert": 8192}.get(self.family, 512)
        window = {"local_attention": 128} if self.family == "modernbert" else {}
        return {"hidden_size": self.hidden, "num_hidden_layers": depth, "num_attention_heads": self.heads,
                "intermediate_size": self.wide, "max_position_embeddings": places, **window}  # fmt: skip


def make_published(directory: Path, model: Published, layers: int | None = None) -> Path:
    """The directory of ``model`` with drawn weights, as if saved by an older release; ``layers``: None for all."""
    encoder = make_published_encoder(directory / "encoder", model, layers)
    return publish(directory / "model", model, encoder)


def make_published_encoder(directory: Path, model: Published, layers: int | None = None) -> Path:
    """The encoder of ``model`` with drawn weights: the same for models of one family and shape."""
    encoder = make_encoder(directory, model.family, **model.shape(layers))
    calm(encoder, model.hidden)
    return encoder


def publish(directory: Path, model: Published, encoder: Path) -> Path:
    """The directory of ``model`` around ``encoder``, as if saved by an older release."""
    prompts = dict(model.prompts)
    return make_directory(directory, encoder, list(model.modules), length=model.length, prompts=prompts)


MODELS = {
    "all-MiniLM-L6-v2": Published(6, 384, 12, (MEAN, NORMALIZE), 256),
    "all-MiniLM-L12-v2": Published(12, 384, 12, (MEAN, NORMALIZE), 128),
    "bge-small-en-v1.5": Published(12, 384, 12, (CLS, NORMALIZE)),
    "bge-base-en-v1.5": Published(12, 768, 12, (CLS, NORMALIZE)),
    "bge-large-en-v1.5": Published(24, 1024, 16, (CLS, NORMALIZE)),
    "e5-small-v2": Published(12, 384, 12, (MEAN, NORMALIZE)),
    "e5-base-v2": Published(12, 768, 12, (MEAN, NORMALIZE)),
    "multilingual-e5-small": Published(12, 384, 12, (MEAN, NORMALIZE)),  # BERT's layers
    "gte-small": Published(12, 384, 12, (MEAN, NORMALIZE)),
    "gte-base": Published(12, 768, 12, (MEAN, NORMALIZE)),
    "paraphrase-multilingual-MiniLM-L12-v2": Published(12, 384, 12, (MEAN,), 128),
    "distiluse-base-multilingual-cased-v2": Published(
        6, 768, 12, (MEAN, dense(512, "Tanh")), 128, "distilbert", dim=512
    ),
    "mxbai-embed-large-v1": Published(24, 1024, 16, (CLS,), prompts={"query": QUERY, "passage": ""}),
    "snowflake-arctic-embed-s": Published(12, 384, 12, (CLS, NORMALIZE), prompts={"query": QUERY}),
    "snowflake-arctic-embed-m": Published(12, 768, 12, (CLS, NORMALIZE), prompts={"query": QUERY}),
    "all-mpnet-base-v2": Published(12, 768, 12, (MEAN, NORMALIZE), 384, "mpnet"),
    "multilingual-e5-base": Published(12, 768, 12, (MEAN, NORMALIZE), family="xlm-roberta"),
    "gte-modernbert-base": Published(22, 768, 12, (CLS,), 8192, "modernbert", wide=1152),
}
