"""The map of a distillation, one line a step: texts and a teacher -> a table that follows it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import UsageError
from fastflow.model.static.write import DTYPES, write_static
from fastflow.stages import calibration
from fastflow.train.choice.tuned import probe
from fastflow.train.data.corpus import clean
from fastflow.train.data.embeddings import Embedder, open_encoder
from fastflow.train.distil import ridge
from fastflow.train.distil.bags import Bags, add_words, special_ids, split_words
from fastflow.train.distil.choosing import Held, Table, best_prior, fit_table
from fastflow.train.distil.gathering import Gathered, Kept, gather
from fastflow.train.distil.result import Distilled
from fastflow.train.distil.teacher import Teacher, following
from fastflow.train.progress import COMMAND, Voice
from fastflow.values import is_whole, short

Texts = Callable[[], Iterable[str]]
WORDS_MEASURED = 1000  # single words on which a table is compared with its teacher


@dataclass(frozen=True)
class Settings:
    """How a table is made. Raises a UsageError for a value that it cannot have.

    The names are those of fastflow distill's options, whose --help explains them.
    """

    dim: int | None = None
    words: int = 0
    dtype: str = "float32"
    penalty: float | None = None
    sentences: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("dim", 1), ("words", 0), ("seed", 0)):
            value = getattr(self, name)
            if not (is_whole(value, least) or (name == "dim" and value is None)):
                raise UsageError(f"--{name} must be a whole number of at least {least}, not {short(value)}")
        if self.dtype not in DTYPES:
            raise UsageError(f"--dtype must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, not {short(self.dtype)}")
        usable = isinstance(self.penalty, int | float) and not isinstance(self.penalty, bool)
        if self.penalty is not None and not (usable and 0 < self.penalty < np.inf):
            raise UsageError(f"--penalty must be a number above 0, not {short(self.penalty)}")


class Student(NamedTuple):
    """What a table is made for: a tokenizer with the ``words`` that it was given, and the bags of each target."""

    tokenizer: Any
    words: list[str]
    bags: dict[str, Bags]


def distil(
    texts: Texts,
    names: Sequence[str],
    teacher: Teacher,
    settings: Settings,
    voice: Voice = COMMAND,
    kept: Callable[[dict[str, Any]], Kept] | None = None,
    total: int | None = None,
) -> Distilled:
    """The table that follows ``teacher`` on the texts that every call of ``texts`` gives in the same order.

    ``names`` are those of the corpus. ``kept`` makes the file of an interrupted pass from what identifies the run.
    ``total``: about how many texts there are, if that is known.
    Raises a FastflowError for texts from which nothing can be learnt, and a UsageError for a choice that cannot be.
    """
    check_dim(settings, teacher)

    def cleaned() -> Iterable[str]:
        return clean(texts(), settings.sentences)

    kinds = calibration.describe(teacher.model.calibration)
    voice.say(f"teacher: {teacher.name}, {'no calibration' if kinds == 'none' else f'calibrated by {kinds}'}")
    student = student_of(teacher, cleaned, settings, voice)
    identity = {"teacher": teacher.model.fingerprint, "--words": student.words, "--seed": settings.seed,
                "--sentences": settings.sentences, "--dim": list(student.bags)}  # fmt: skip
    keeper = None if kept is None else kept(identity)
    alone = priors(teacher, student, voice)
    total = None if settings.sentences else total
    found = gather(cleaned(), teacher, student.bags, alone, settings.seed, voice, keeper, total)
    tables = fit_tables(teacher, student, found, alone, settings.penalty, voice)
    best = max(tables, key=lambda table: table.cosine)
    return finished(teacher, student, found, tables, best, names, settings)


def check_dim(settings: Settings, teacher: Teacher) -> None:
    """Raise a UsageError for a --dim that the teacher's vectors do not have."""
    width = teacher.dim
    if settings.dim is not None and settings.dim > width:
        raise UsageError(f"--dim must be at most {width}, the width of the teacher's vectors, not {settings.dim}")


def student_of(teacher: Teacher, texts: Texts, settings: Settings, voice: Voice) -> Student:
    """The tokenizer of the table, with rows for words of ``texts`` that the teacher's cuts into pieces."""
    tokenizer, words = teacher.tokenizer(), list[str]()
    if settings.words:
        words = split_words(tokenizer, voice.counting("words", texts()), settings.words)
        add_words(tokenizer, words)
        voice.say(f"words: {len(words):,} that fall into pieces get rows of their own")
    bags = {}
    for target in teacher.targets:
        if target.name == "vectors" or settings.dim is None:
            weights = target.weights
            if weights is not None:  # a new word counts like the rarest of its pieces
                weights = np.concatenate([weights, _of_pieces(teacher, words, weights)])
            bags[target.name] = Bags(tokenizer, weights)
    return Student(tokenizer, words, bags)


def _of_pieces(teacher: Teacher, words: Sequence[str], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    pieces = _pieces(teacher, words)
    return np.array([weights[row].max() for row in pieces], np.float32)


def _pieces(teacher: Teacher, words: Sequence[str]) -> list[list[int]]:
    """The teacher's own ids of each word."""
    encodings = teacher.tokenizer().encode_batch_fast(list(words), add_special_tokens=False) if words else []
    return [list(encoding.ids) for encoding in encodings]


def fit_tables(
    teacher: Teacher,
    student: Student,
    found: Gathered,
    alone: dict[str, NDArray[np.float32]],
    penalty: float | None,
    voice: Voice,
) -> list[Table]:
    """A table for each target."""
    wanted, out = teacher(found.held)["vectors"], []
    for name, bags in student.bags.items():
        held = Held(bags(found.held), wanted, partial(teacher.finish, name))
        sums = found.sums[name]
        start = best_prior(ridge.Prior(alone[name], found.counts, sums, bags.uniform), sums, held)
        out.append(fit_table(name, sums, start, held, penalty, voice))
    return out


def priors(teacher: Teacher, student: Student, voice: Voice = COMMAND) -> dict[str, NDArray[np.float32]]:
    """Target name -> (V, D) the teacher's vectors of tokens alone, new words by their pieces; zeros of special ones."""
    first = teacher.tokenizer().get_vocab_size(with_added_tokens=True)
    ids = [*([i] for i in range(first)), *_pieces(teacher, student.words)]
    with voice.progress("teacher", len(ids), "tokens") as progress:
        found = teacher.alone(ids, progress.advance)
    for vectors in found.values():
        vectors[special_ids(student.tokenizer)] = 0
    return found


def finished(
    teacher: Teacher,
    student: Student,
    found: Gathered,
    tables: Sequence[Table],
    best: Table,
    names: Sequence[str],
    settings: Settings,
) -> Distilled:
    """The table as it is stored, measured as it is stored."""
    vectors, weights = best.vectors, student.bags[best.target].weights
    back = np.eye(vectors.shape[1])  # from stored directions to the teacher's
    if settings.dim is not None:
        back = ridge.principal(found.sums[best.target], vectors, settings.dim)
        vectors = vectors @ back
    vectors[special_ids(student.tokenizer)] = 0
    folder = tempfile.TemporaryDirectory(prefix="fastflow-", ignore_cleanup_errors=True)
    place = Path(folder.name) / "table"
    limit = teacher.model.max_length
    write_static(place, student.tokenizer, vectors, dtype=settings.dtype, max_length=limit, name=teacher.name)
    encoder = open_encoder(str(place), "words", limit)
    if best.target == "pooled":
        encoder = replace(encoder, pooling=replace(encoder.pooling, weights=weights))
    stages = teacher.model.calibration if best.target == "pooled" else ()
    embedder, sets = Embedder(encoder, "cpu"), unseen(found.held)
    training = {
        "corpus": list(names), "texts": found.texts, "corpus_sha256": found.sha256, "held_out": len(found.held),
        "teacher": {"name": teacher.name, "fingerprint": teacher.model.fingerprint},
        "table": {"tokens": len(vectors), "dim": vectors.shape[1], "dtype": settings.dtype,
                  "words": len(student.words)},
        "target": best.target, "penalty": best.penalty, "seed": settings.seed, "sentences": settings.sentences,
        "tables": [{"target": t.target, "penalty": t.penalty, "cosine": round(t.cosine, 4), "prior": round(t.prior, 4),
                    "tried": {f"{p:g}": round(c, 4) for p, c in t.tried.items()}} for t in tables],
        "reasons": reasons(tables, best, settings),
        "follows": follows(teacher, lambda texts: teacher.finish(best.target, embedder(texts) @ back.T), sets),
        "measured": {name: len(texts) for name, texts in sets.items()},
    }  # fmt: skip
    return Distilled(encoder, stages, training, found.held, embedder(found.held), folder)


def unseen(held: list[str]) -> dict[str, list[str]]:
    """The sets of texts on which table and teacher are compared, without those that are empty."""
    words = list(dict.fromkeys(word for text in held for word in text.split()))
    sets = {"held_out": held, "other": probe(), "words": [word for word in words if word.isalpha()][:WORDS_MEASURED]}
    return {name: texts for name, texts in sets.items() if texts}


def follows(teacher: Teacher, made: Callable[[list[str]], Any], sets: dict[str, list[str]]) -> dict[str, float]:
    """How well ``made`` (texts -> embeddings as wide as the teacher's) follows the teacher on each set of texts."""
    return {name: round(following(made(texts), teacher(texts)["vectors"]), 4) for name, texts in sets.items()}


def reasons(tables: Sequence[Table], best: Table, settings: Settings) -> list[str]:
    """Which target the table follows, and why, in sentences."""
    cosines = ", ".join(f"{table.target} {table.cosine:.4f}" for table in tables)
    found = [f"held-out cosine to the teacher: {cosines}; the prior alone {best.prior:.4f}"]
    if best.penalty is None:
        found.append("the prior is kept: no penalty of the regression follows the teacher better; give more sentences")
    if best.target == "pooled":
        found.append("the table follows the teacher's pooled state, and the teacher's calibration comes after it")
    elif len(tables) > 1:
        found.append("the table follows the teacher's calibrated vectors, without a calibration after it")
    if settings.dim is not None:
        found.append(f"the {settings.dim} directions are those in which the table's sentence vectors vary most")
    return found
