"""Train a student with layers: it begins as a token table and then follows the teacher's vectors.

Targets are the teacher's vectors without their mean, turned to the student's directions, of length 1. The loss is
1 - cosine, plus GRAM times the squared error of cosines within a batch, plus ORDER times the relative squared error of
the difference of two texts with the same words. The rate of learning falls as the time passes, so any time will do.
"""

from __future__ import annotations

import io
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastflow.atomic import replace_bytes
from fastflow.errors import FastflowError
from fastflow.train.distil.student import StudentBert
from fastflow.train.reporter import Reporter
from fastflow.transforms.vectors import compute_paired_cosine

Ids = Sequence[NDArray[np.int64]]
Vectors = NDArray[np.float32]

GRAM, ORDER = 5.0, 0.5
RATE, ROWS_RATE, DECAY, CLIP = 1e-3, 0.01, 0.01, 1.0
WARM, LAST = 0.02, 0.02  # share of the time until the full rate; share of the rate at the end
BATCH, LEAST_BATCH, TOKENS = 128, 8, 6144  # most and fewest texts of a batch; about its most tokens
ROUND, PAIRS = 60_000, 13_000  # texts and pairs drawn for a round
ANCHORS = 32  # every other round, a batch has texts that are near to the same one of these
EVERY = 120.0  # seconds between checkpoints
SHARES = tuple(i / 8 for i in range(13))  # of the teacher's mean, of which one is given back
WORDS = (3, 14)  # words of a text whose order is changed
EDGES = (1, 9, 17, 33, 65, 129, 257)  # lengths in tokens that are measured apart


def change_order(text: str, draw: random.Random) -> str | None:
    """Exchange two words, or two phrases, move a word, or shuffle; None for too few or too many words."""
    bare = text.rstrip(" .?!")
    words, kind = bare.split(), draw.random()
    if not WORDS[0] <= len(words) <= WORDS[1]:
        return None
    i, j = sorted(draw.sample(range(len(words)), 2))
    other = words[:]
    if kind < 0.45:
        other[i], other[j] = words[j], words[i]
    elif kind < 0.7:
        other = words[i + 1 :] + words[i : i + 1] + words[:i]
    elif kind < 0.85:
        other.insert(j, other.pop(i))
    else:
        draw.shuffle(other)
    return None if other == words else " ".join(other) + text[len(bare) :]


class Lesson(NamedTuple):
    """Token ids of texts with the teacher's vectors (n, D), of which ``rows`` (r,) are used.

    Texts ``first[i]`` and ``second[i]`` have the same words in another order.
    """

    ids: Ids
    vectors: NDArray[Any]
    rows: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(row) for row in self.ids], np.int64)


class Target(NamedTuple):
    """The teacher's ``mean`` (D,), the map ``turn`` (D, d) to a student, and the mean length without the mean."""

    mean: Vectors
    turn: Vectors
    length: float

    @classmethod
    def fit(cls, wanted: Vectors, made: Vectors) -> Target:
        """Turn vectors ``wanted`` (n, D) to those that a student makes at its start, ``made`` (n, d): Procrustes."""
        mean = wanted.mean(0)
        left, _, right = np.linalg.svd((wanted - mean).T @ made, full_matrices=False)
        return cls(mean, left @ right, float(np.linalg.norm(wanted - mean, axis=1).mean()))

    def __call__(self, vectors: NDArray[Any]) -> Vectors:
        found = (np.asarray(vectors, np.float32) - self.mean) @ self.turn
        return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12), np.float32)

    def choose_shift(self, made: Vectors, wanted: Vectors) -> tuple[float, Vectors]:
        """Choose the share of the mean, and the shift (d,), by which ``made`` (n, d) follow ``wanted`` (n, D) best."""
        mean = self.mean @ self.turn / np.float32(self.length)
        share = max(SHARES, key=lambda one: self.follow(made + np.float32(one) * mean, wanted).mean())
        return share, np.asarray(share * mean, np.float32)

    def follow(self, made: Vectors, wanted: Vectors) -> NDArray[np.float64]:
        """Compute the cosine (n,) of each of ``made`` (n, d), turned back, with the teacher's (n, D)."""
        return compute_paired_cosine((made @ self.turn.T).astype(np.float64), wanted)


@torch.no_grad()
def embed(student: StudentBert, ids: Ids) -> Vectors:
    """Embed lists of ids: (n, d) of length 1."""
    out = np.zeros((len(ids), student.bert.config.hidden_size), np.float32)
    lengths = np.array([len(row) for row in ids], np.int64)
    for rows in _batch(np.arange(len(ids)), lengths, np.zeros(len(ids)), 1):
        with _half(student):
            out[rows] = student(_stack(ids, rows, student)).cpu().numpy()
    return out


def _stack(ids: Ids, rows: NDArray[np.int64], student: StudentBert) -> Tensor:
    return torch.from_numpy(np.stack([ids[row] for row in rows])).to(student.device)


def _half(student: StudentBert) -> Any:
    return torch.autocast(student.device.type, torch.bfloat16)


def _batch(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], near: NDArray[Any], least: int, most: int = BATCH
) -> list[NDArray[np.int64]]:
    """Cut ``rows`` into batches of texts of one length, which need no padding; ``near`` texts are together."""
    rows = rows[np.lexsort((near[rows], lengths[rows]))]
    out = []
    for group in np.split(rows, np.flatnonzero(np.diff(lengths[rows])) + 1):
        if len(group):
            size = int(np.clip(TOKENS // lengths[group[0]], LEAST_BATCH, most))
            parts = [group[i : i + size] for i in range(0, len(group), size)]
            out += [part for part in parts if len(part) >= least]
    return out


def plan_round(lesson: Lesson, seed: int, number: int) -> list[tuple[NDArray[np.int64], bool]]:
    """Draw the batches of a round in a mixed order: rows, and whether they are pairs, a half each."""
    draw, lengths = np.random.default_rng((seed, number)), lesson.lengths
    rows = draw.permutation(lesson.rows)[:ROUND]
    near = np.zeros(len(lesson.ids), np.int64)
    if number % 2:
        anchors = lesson.vectors[draw.permutation(rows)[:ANCHORS]]
        near[rows] = (lesson.vectors[rows] @ anchors.T).argmax(1)
    batches = [(part, False) for part in _batch(rows, lengths, near, LEAST_BATCH)]
    pairs = draw.permutation(len(lesson.first))[:PAIRS]
    own = lengths[lesson.first]
    for part in _batch(pairs, own, np.zeros(len(own)), LEAST_BATCH // 2, BATCH // 2):
        batches.append((np.concatenate([lesson.first[part], lesson.second[part]]), True))
    order = draw.permutation(len(batches))
    return [batches[i] for i in order]


def compute_loss(made: Tensor, wanted: Tensor, pairs: bool) -> Tensor:
    """Compute the loss of vectors (b, d) of length 1 beside their targets."""
    loss = (1 - (made * wanted).sum(1)).mean() + GRAM * (made @ made.T - wanted @ wanted.T).pow(2).mean()
    if pairs:
        moved, meant = (x[: len(x) // 2] - x[len(x) // 2 :] for x in (made, wanted))
        loss = loss + ORDER * (moved - meant).pow(2).sum() / meant.pow(2).sum().clamp_min(1e-6)
    return loss


@dataclass
class Course:
    """How long a student is trained, at which share of the usual rates.

    ``checkpoint`` keeps its state, and ``run`` names all that decides it.
    """

    minutes: float
    seed: int
    run: str = ""
    rate: float = 1.0
    checkpoint: Path | None = None
    resume: bool = False
    clock: Callable[[], float] = time.monotonic


class Trainer:
    """Trains ``student`` for the time of ``course``; ``losses`` are of the latest steps."""

    def __init__(self, student: StudentBert, lesson: Lesson, target: Target, course: Course) -> None:
        self.student, self.lesson, self.target, self.course = student, lesson, target, course
        sparse = {id(p) for p in student.rows}
        dense = [p for p in student.parameters() if id(p) not in sparse and p.requires_grad]
        groups = [
            {"params": [p for p in dense if p.ndim > 1], "weight_decay": DECAY},
            {"params": [p for p in dense if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._dense = dense
        self._optimisers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.AdamW(groups, RATE, betas=(0.9, 0.98)), course.rate * RATE),
            (torch.optim.Adagrad(student.rows, ROWS_RATE), course.rate * ROWS_RATE),
        ]
        student.tell_places()
        self.step, self.texts, self.spent, self.losses = 0, 0, 0.0, list[float]()
        self._round, self._at, self._whole = 0, 0, True

    def run(self, reporter: Reporter, look: Callable[[], str] = lambda: "") -> None:
        """Train until the time has passed; ``look`` describes the student at each checkpoint."""
        course, limit = self.course, 60 * self.course.minutes
        if course.resume and course.checkpoint is not None and course.checkpoint.is_file():
            self.load(course.checkpoint)
            reporter.write(f"layers: continues after {self.step:,} steps, {self.spent / 60:.1f} minutes")
        began = course.clock() - self.spent
        due, shown = self.spent + EVERY, int(self.spent)
        try:
            with reporter.progress("layers", int(limit), "seconds", shown) as progress:
                for rows, pairs in self._batches():
                    self.spent = course.clock() - began
                    if self.spent >= limit:
                        break
                    self.take_step(rows, pairs, self.spent / limit)
                    if self.spent >= due:
                        self.save()
                        done = f"layers: {self.spent / 60:.1f} minutes, {self.texts:,} texts"
                        reporter.write(f"{done}, loss {np.mean(self.losses):.4f}{look()}")
                        due = self.spent + EVERY
                    if self.spent >= shown + 1:
                        progress.advance(int(self.spent) - shown, f"loss {np.mean(self.losses):.4f}")
                        shown = int(self.spent)
        except KeyboardInterrupt:
            if self._whole:
                self.save()
            raise

    def _batches(self) -> Iterator[tuple[NDArray[np.int64], bool]]:
        while True:
            batches = plan_round(self.lesson, self.course.seed, self._round)
            if not batches:
                raise FastflowError("no batch of texts of one length can be made: give a few thousand texts")
            yield from batches[self._at :]
            self._round, self._at = self._round + 1, 0

    def take_step(self, rows: NDArray[np.int64], pairs: bool, share: float) -> None:
        """Take one step at ``share`` of the time."""
        pace = min(1.0, share / WARM) * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * min(1.0, share))))
        ids = _stack(self.lesson.ids, rows, self.student)
        wanted = torch.from_numpy(self.target(self.lesson.vectors[rows])).to(ids.device)
        with _half(self.student):
            made = self.student(ids)
        loss = compute_loss(made, wanted, pairs)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._dense, CLIP)
        self._whole = False
        for optimiser, rate in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate * pace
            optimiser.step()
            optimiser.zero_grad()
        self.losses = [*self.losses[-99:], loss.item()]
        self.step, self.texts, self._at = self.step + 1, self.texts + len(rows), self._at + 1
        self._whole = True

    def save(self) -> None:
        """Write the checkpoint, if there is a place for it."""
        if self.course.checkpoint is None:
            return
        state = {
            "run": self.course.run, "student": self.student.state_dict(), "losses": self.losses,
            "optimisers": [optimiser.state_dict() for optimiser, _ in self._optimisers],
            "at": [self.step, self.texts, self._round, self._at], "spent": self.spent,
            "mean": torch.from_numpy(self.target.mean), "turn": torch.from_numpy(self.target.turn),
            "length": self.target.length,
        }  # fmt: skip
        kept = io.BytesIO()
        torch.save(state, kept)
        try:
            replace_bytes(self.course.checkpoint, kept.getvalue())
        except OSError as error:
            where = self.course.checkpoint
            raise FastflowError(f"the checkpoint {where} cannot be written: {error.strerror}") from error

    def load(self, path: Path) -> None:
        """Continue from a checkpoint."""
        try:
            state = torch.load(path, self.student.device, weights_only=True)
            run = state["run"]
        except Exception as error:
            raise FastflowError(f"the checkpoint {path} is damaged; remove it or drop --resume") from error
        if run != self.course.run:
            raise FastflowError(f"{path} is from a run with another teacher, corpus or options; remove it")
        self.student.load_state_dict(state["student"])
        for (optimiser, _), kept in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(kept)
        self.step, self.texts, self._round, self._at = state["at"]
        self.spent, self.losses = state["spent"], state["losses"]
        self.target = Target(state["mean"].cpu().numpy(), state["turn"].cpu().numpy(), state["length"])


def measure(student: StudentBert, held: Lesson, target: Target, shift: Vectors) -> dict[str, Any]:
    """Measure on held-out texts: mean cosine to the teacher, by length in tokens too, and the order of words.

    order: Spearman of the student's cosines of pairs with the same words with the teacher's.
    """
    from scipy.stats import spearmanr

    at = np.concatenate([held.rows, held.first, held.second])
    made = embed(student, [held.ids[i] for i in at]) + shift
    wanted, lengths = held.vectors[at], held.lengths[at]
    count, pairs = len(held.rows), len(held.first)
    cosine = target.follow(made[:count], wanted[:count])
    found: dict[str, Any] = {"held_out": round(float(cosine.mean()), 4), "lengths": {}}
    for low, high in pairwise(EDGES):
        inside = (lengths[:count] >= low) & (lengths[:count] < high)
        if inside.any():
            found["lengths"][f"{low} to {high - 1}"] = [int(inside.sum()), round(float(cosine[inside].mean()), 4)]
    if pairs > 2:
        ours, theirs = (compute_paired_cosine(x[count : count + pairs].astype(np.float64), x[count + pairs :])
                        for x in (made, wanted))  # fmt: skip
        found["order"] = round(float(spearmanr(ours, theirs).statistic), 4)
    return found
