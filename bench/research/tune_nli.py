"""Tuning an encoder on labelled NLI pairs with Sentence Transformers: softmax on [u, v, |u - v|] (SBERT, 2019).

For the paper's supervised rows only; nothing in the product tunes an encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastflow.errors import missing_extra
from fastflow.evaluation.evaluate import Labelled

LABELS = ("contradiction", "entailment", "neutral")
BATCH = 32
WINDOW = 32  # batches that are sorted by length together
MAX_LENGTH = 64
WARM_UP = 0.1  # of the steps, then linear decay: Sentence Transformers' own recipe
DECAY = 0.01
CLIP = 1.0


def split(pairs: Labelled, held_out: float) -> tuple[Labelled, Labelled]:
    """The first rows and the last ``held_out`` of them; premises stand together, so at most one is on both sides."""
    cut = round(len(pairs.labels) * (1 - held_out))
    first, last = slice(cut), slice(cut, None)
    return tuple(Labelled(pairs.name, *(side[part] for side in pairs[1:])) for part in (first, last))  # type: ignore[return-value]


def tune(encoder: Path, pairs: Labelled, lr: float, epochs: int, seed: int) -> tuple[Any, Any]:
    """(SentenceTransformer, SoftmaxLoss) after ``epochs`` over ``pairs``: mean pooling, AdamW, bfloat16 products."""
    try:
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
        from transformers.utils import logging
    except ImportError as error:
        raise missing_extra("peers", str(error.name), "the supervised benchmark") from error

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(seed)
    body = Transformer(str(encoder), max_seq_length=MAX_LENGTH, model_kwargs={"dtype": torch.float32})
    width = body.auto_model.config.hidden_size
    model = SentenceTransformer(modules=[body, Pooling(width, pooling_mode="mean")], device="cpu")
    loss = losses.SoftmaxLoss(model, width, len(LABELS))
    optimiser = torch.optim.AdamW(loss.parameters(), lr=lr, weight_decay=DECAY)
    steps = epochs * (len(pairs.labels) // BATCH)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / (WARM_UP * steps), (steps - step) / ((1 - WARM_UP) * steps))
    )
    loss.train()
    for rows in batches(pairs, epochs, seed):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(*batch(model, pairs, rows))
        value.backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), CLIP)
        optimiser.step()
        rate.step()
    return model.eval(), loss.eval()


def batches(pairs: Labelled, epochs: int, seed: int) -> Iterator[np.ndarray[Any, Any]]:
    """Row numbers (32,), shuffled anew each epoch; texts of like length together, so that little is padding."""
    lengths = np.array([len(a) + len(b) for a, b in zip(pairs.first, pairs.second, strict=True)])
    for epoch in range(epochs):
        rng = np.random.default_rng((seed, epoch))
        order, groups = rng.permutation(len(lengths)), []
        for start in range(0, len(order), BATCH * WINDOW):
            window = order[start : start + BATCH * WINDOW]
            window = window[np.argsort(lengths[window], kind="stable")]
            groups += [window[i : i + BATCH] for i in range(0, len(window) - BATCH + 1, BATCH)]
        for index in rng.permutation(len(groups)):
            yield groups[index]


def batch(model: Any, pairs: Labelled, rows: np.ndarray[Any, Any]) -> tuple[list[dict[str, Any]], Any]:
    """Both sides tokenized, and the labels (b,)."""
    import torch

    sides = [model.preprocess([side[i] for i in rows]) for side in (pairs.first, pairs.second)]
    return sides, torch.tensor([LABELS.index(pairs.labels[i]) for i in rows])


def accuracy(model: Any, loss: Any, pairs: Labelled) -> float:
    """Share of the pairs whose label the softmax gives the most weight."""
    import torch

    right = 0
    with torch.no_grad():
        for start in range(0, len(pairs.labels), 64):
            sides, labels = batch(model, pairs, np.arange(start, min(start + 64, len(pairs.labels))))
            u, v = (model(side)["sentence_embedding"] for side in sides)
            scores = loss.classifier(torch.cat([u, v, (u - v).abs()], 1))
            right += int((scores.argmax(1) == labels).sum())
    return right / len(pairs.labels)


def save(model: Any, directory: Path) -> None:
    """The tuned encoder as a Hugging Face directory, float32."""
    model[0].auto_model.save_pretrained(directory)
    model[0].tokenizer.save_pretrained(directory)
