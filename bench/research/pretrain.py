"""Train a small BERT from nothing, as a masked language model: an encoder of another language, size or casing.

    python -m fastflow.bench.research.pretrain FILE... --out DIR --layers 4 --width 256 --vocabulary 20000 --steps 6000

DIR is an encoder as Hugging Face saves it, written at every checkpoint, with ``training.json``: steps, tokens, loss.
The same command goes on from the last checkpoint, to the weights of a run without a break; the vocabulary is kept, as
its trainer breaks ties at random. The recipe is that of the
encoder in the package: AdamW, 15 % of the tokens masked, no dropout; words start from the positive pointwise mutual
information of the corpus, positions from sinusoids, without which a small BERT learns little from few tokens.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, gelu, linear
from transformers import BertConfig, BertModel

from fastflow.bench.research.pretrain_text import CLS, MASK, PAD, SEP, SPECIAL, Text, prepared, start_words
from fastflow.errors import FastflowError

MASKED, KEPT_AS_IS, RANDOM = 0.15, 0.1, 0.1  # of the tokens; of the masked ones
POOL = 64  # batches that are sorted by length together
LR, WARM_UP, DECAY, CLIP = 1e-3, 200, 0.01, 1.0
SCALE, BASE = 0.04, 200.0  # deviation of the embeddings at the start; of the sinusoids


@dataclass(frozen=True)
class Shape:
    """What an encoder and its batches are; a checkpoint belongs to one."""

    layers: int = 4
    width: int = 256
    vocabulary: int = 20_000
    lowercase: bool = False
    length: int = 128  # tokens of a row at most
    tokens: int = 2048  # of a step, padding included
    seed: int = 0


class Masked(torch.nn.Module):
    """A BERT and its head: the loss of the masked tokens, the output tied to the word embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.config = BertConfig(
            vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
            num_attention_heads=max(1, shape.width // 64), intermediate_size=4 * shape.width,
            max_position_embeddings=shape.length, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.bert = BertModel(self.config, add_pooling_layer=False)
        self.dense = torch.nn.Linear(shape.width, shape.width)
        self.norm = torch.nn.LayerNorm(shape.width, eps=1e-12)
        self.bias = torch.nn.Parameter(torch.zeros(shape.vocabulary))

    def start(self, words: NDArray[np.float32], log_share: NDArray[np.float32]) -> None:
        """Set the word embeddings (V, D), the positions and the output's bias (V,)."""
        tables = self.bert.embeddings
        places, width = tables.position_embeddings.weight.shape
        angle = np.arange(places)[:, None] / BASE ** (np.arange(0, width, 2) / width)
        waves = np.stack([np.sin(angle), np.cos(angle)], 2).reshape(places, -1)[:, :width]
        with torch.no_grad():
            tables.word_embeddings.weight.copy_(torch.from_numpy(words * (SCALE / words.std())))
            tables.position_embeddings.weight.copy_(torch.from_numpy(SCALE * waves))
            self.bias.copy_(torch.from_numpy(log_share))

    def forward(self, ids: torch.Tensor, chosen: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of ``targets`` (m,), the tokens at the flat places ``chosen`` (m,) of ``ids`` (b, t)."""
        hidden = self.bert(ids, attention_mask=(ids != PAD).long()).last_hidden_state
        hidden = hidden.flatten(0, 1)[chosen]  # the head sees masked tokens only
        hidden = self.norm(gelu(self.dense(hidden)))
        return cross_entropy(linear(hidden, self.bert.embeddings.word_embeddings.weight, self.bias).float(), targets)


class Batches:
    """Step -> the ids (b, t) of its rows: a function of text, shape and step alone."""

    def __init__(self, text: Text, shape: Shape) -> None:
        self.text, self.shape, self.sizes = text, shape, np.diff(text.offsets) + 2  # [CLS] and [SEP]

    @lru_cache(maxsize=2)  # noqa: B019 - one object lives as long as the process
    def epoch(self, number: int) -> list[NDArray[np.int64]]:
        """The rows of each step of a pass: of random pools, each cut into steps of rows of about one length."""
        rng = np.random.default_rng([self.shape.seed, 1, number])
        order = rng.permutation(len(self.sizes))
        size = max(1, int(POOL * self.shape.tokens / self.sizes.mean()))
        steps = []
        for start in range(0, len(order), size):
            pool = order[start : start + size]
            pool = pool[np.argsort(self.sizes[pool], kind="stable")]
            first = 0
            while first < len(pool):
                last = first + 1
                while last < len(pool) and (last + 1 - first) * self.sizes[pool[last]] <= self.shape.tokens:
                    last += 1
                steps.append(pool[first:last])
                first = last
        return [steps[i] for i in rng.permutation(len(steps))]

    def rows(self, step: int) -> NDArray[np.int64]:
        """(b,) the rows of a step."""
        number = 0
        while step >= len(found := self.epoch(number)):
            step, number = step - len(found), number + 1
        return found[step]

    def masked(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(ids with masks, places of the masked tokens in the flat ids, their own ids)."""
        rows, rng = self.rows(step), np.random.default_rng([self.shape.seed, 2, step])
        ids = np.full((len(rows), int(self.sizes[rows].max())), PAD, np.int64)
        for line, row in zip(ids, rows, strict=True):
            pieces = self.text.ids[self.text.offsets[row] : self.text.offsets[row + 1]]
            line[: len(pieces) + 2] = [CLS, *pieces, SEP]
        flat = ids.reshape(-1)
        words = np.flatnonzero(flat >= len(SPECIAL))
        chosen = np.sort(rng.choice(words, max(1, round(MASKED * len(words))), replace=False))
        targets, draw = flat[chosen].copy(), rng.random(len(chosen))
        flat[chosen[draw >= KEPT_AS_IS]] = MASK
        other = chosen[draw >= 1 - RANDOM]
        flat[other] = rng.integers(len(SPECIAL), self.shape.vocabulary, len(other))
        return torch.from_numpy(ids), torch.from_numpy(chosen), torch.from_numpy(targets)


def rate(step: int, steps: int) -> float:
    """The learning rate: a linear rise, then a linear fall to nothing at ``steps``."""
    return LR * min((step + 1) / WARM_UP, max(0.0, 1 - step / steps))


class Training:
    """A run of ``pretrain``: its state, and the files of ``out``."""

    def __init__(self, out: Path, text: Text, shape: Shape) -> None:
        self.out, self.shape, self.batches = out, shape, Batches(text, shape)
        torch.manual_seed(shape.seed)
        self.model = Masked(shape)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), LR, betas=(0.9, 0.98), weight_decay=DECAY, fused=True
        )
        self.step, self.tokens, self.loss, self.seconds = 0, 0, math.nan, 0.0
        if not (file := out / "checkpoint.pt").exists():
            self.model.start(*start_words(text, shape.vocabulary, shape.width, shape.seed))
            return
        state = torch.load(file, weights_only=True)
        if state["shape"] != asdict(shape):
            raise FastflowError(f"{file}: is of another encoder ({state['shape']}): name another --out or remove it")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.loss, self.seconds = (state[k] for k in ("step", "tokens", "loss", "seconds"))

    def advance(self, steps: int, half: bool) -> None:
        """One step of a run of ``steps``, in bfloat16 if ``half``."""
        began = time.perf_counter()
        ids, chosen, targets = self.batches.masked(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.step, steps)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = self.model(ids, chosen, targets)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        now = float(loss.detach())
        self.loss = now if math.isnan(self.loss) else 0.98 * self.loss + 0.02 * now
        self.step, self.tokens = self.step + 1, self.tokens + int((ids != PAD).sum())
        self.seconds += time.perf_counter() - began

    def save(self) -> None:
        """The checkpoint, then the encoder of this step, in float16 and with BERT's dropout in its configuration."""
        state = {k: getattr(self, k) for k in ("step", "tokens", "loss", "seconds")}
        whole = {
            "shape": asdict(self.shape),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        unfinished = self.out / "checkpoint.partial"
        torch.save(state | whole, unfinished)
        unfinished.replace(self.out / "checkpoint.pt")
        weights = {name: value.half().contiguous() for name, value in self.model.bert.state_dict().items()}
        save_file(weights, self.out / "model.safetensors", {"format": "pt"})
        config = self.model.config.to_dict() | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
        config |= {"architectures": ["BertModel"], "dtype": "float16"}
        (self.out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
        settings = asdict(self.shape) | {"tokens_a_step": self.shape.tokens}
        (self.out / "training.json").write_text(json.dumps(settings | state, indent=1))


def train(run: Training, steps: int, minutes: float, half: bool) -> Iterator[str]:
    """Train to ``steps``, a checkpoint every ``minutes``; yields a line for each."""
    saved, tokens = time.monotonic(), run.tokens
    while run.step < steps:
        run.advance(steps, half)
        past = time.monotonic() - saved
        if run.step == steps or past >= 60 * minutes:
            run.save()
            speed = (run.tokens - tokens) / past
            yield f"step {run.step} of {steps}, {run.tokens:,} tokens, loss {run.loss:.3f}, {speed:,.0f} tokens/s"
            saved, tokens = time.monotonic(), run.tokens


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory of the encoder.")
@click.option("--layers", default=Shape.layers, show_default=True)
@click.option("--width", default=Shape.width, show_default=True)
@click.option("--vocabulary", default=Shape.vocabulary, show_default=True, help="Pieces of the WordPiece vocabulary.")
@click.option("--lowercase", is_flag=True, help="Lower-case the text.")
@click.option("--tokens", default=Shape.tokens, show_default=True, help="Tokens of a step.")
@click.option("--seed", default=0, show_default=True)
@click.option("--steps", required=True, type=int, help="Steps of the whole run; may grow when it goes on.")
@click.option("--minutes", default=3.0, show_default=True, help="Between checkpoints.")
@click.option("--float32", "single", is_flag=True, help="Not in bfloat16.")
def main(files: tuple[str, ...], out: Path, steps: int, minutes: float, single: bool, **shape: Any) -> None:
    """Train an encoder on FILES, a paragraph a line."""
    made = Shape(**shape)
    out.mkdir(parents=True, exist_ok=True)
    text = prepared(files, out, made.vocabulary, made.lowercase, made.length - 2)
    click.echo(f"{len(text.ids):,} pieces in {len(text.offsets) - 1:,} rows")
    for line in train(Training(out, text, made), steps, minutes, not single):
        click.echo(line)


if __name__ == "__main__":
    main()
