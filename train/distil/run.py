"""Distil a model of texts, the teacher, into a table of token vectors."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.atomic import check_out
from fastflow.model.static.write import DTYPES, write_static
from fastflow.train.data.corpus import clean
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import FrozenEncoder, open_encoder
from fastflow.train.distil import ridge
from fastflow.train.distil.gathering import Bags, Gathered, Kept, add_words, find_split_words, gather, list_special_ids
from fastflow.train.distil.ridge import HeldOut, TokenTable, choose_prior, fit_table
from fastflow.train.distil.teacher import Teacher, measure_following
from fastflow.train.export.export import export
from fastflow.train.export.result import Saving
from fastflow.train.methods.chain import Fitted
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.reporter import COMMAND, Reporter, refuse
from fastflow.train.selection.heuristics import read_probe
from fastflow.transforms import calibration
from fastflow.transforms.calibration import Stage
from fastflow.values import is_whole, short

SETS = {"held_out": "held-out sentences of the corpus", "other": "sentences of other subjects", "words": "single words"}


@dataclass(frozen=True, repr=False)
class Distilled(Saving):
    """A distilled table as an ``encoder``, and the teacher's ``stages``; its folder lives as long as this object.

    ``pooled`` (n, D): the table's vectors of the held-out ``texts``.
    """

    encoder: FrozenEncoder
    stages: tuple[Stage, ...]
    training: dict[str, Any]
    texts: list[str]
    pooled: NDArray[np.float32]
    folder: tempfile.TemporaryDirectory[str] = field(compare=False)

    def __repr__(self) -> str:
        return f"<Distilled: {self.training['teacher']['name']}, {self.training['texts']} texts>"

    @property
    def report(self) -> dict[str, Any]:
        """The table's settings and mean cosines to the teacher, as data for json."""
        return copy.deepcopy(self.training)

    @property
    def lines(self) -> list[str]:
        """The measures, as lines of text."""
        counts = self.training["measured"].items()
        return [f"{n:,} {SETS[name]}: mean cosine {self.training['follows'][name]:.3f}" for name, n in counts]

    @property
    def size(self) -> str:
        """The size, in words."""
        rows = self.training["table"]
        return f"{rows['tokens']:,} tokens of {rows['dim']} numbers in {rows['dtype']}"

    def save(self, directory: str | os.PathLike[str]) -> str:
        """Write the model, if its files give PyTorch's vectors.

        Args:
            directory: Where to write; must not exist.

        Returns:
            The fingerprint of the model.

        Raises:
            FastflowError: The model cannot be written, or computes other numbers than PyTorch; no file is left.
        """
        out = Path(directory)
        check_out(out, "directory")
        fitted = Fitted(list(self.stages))
        for index, stage in enumerate(self.stages):
            if stage.kind == "flow":
                flow = Flow(FlowConfig(**stage.settings))
                flow.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in stage.params.items()})
                fitted.flows[index] = flow.eval()
        return export(out, self.encoder, fitted, self.training, _write_card(self), self.texts, self.pooled)


def _write_card(distilled: Distilled) -> str:
    found = distilled.training
    teacher, rows, counts = found["teacher"], found["table"], found["measured"]
    words = f", {rows['words']:,} of them whole words of the corpus" if rows["words"] else ""
    penalty = "none, the prior alone" if found["penalty"] is None else f"{found['penalty']:g}"
    facts = {
        "teacher": f"{teacher['name']} (fingerprint {teacher['fingerprint'][:16]})",
        "table": f"{rows['tokens']:,} tokens of {rows['dim']} numbers, {rows['dtype']}{words}",
        "calibration": calibration.describe(distilled.stages),
        "longest text": f"{distilled.encoder.max_length} tokens",
        "corpus": f"{', '.join(found['corpus'])}: {found['texts']:,} texts",
        "penalty": f"{penalty}, chosen on {found['held_out']:,} held-out sentences",
        "licence": "that of the teacher; the corpus's texts are not in it",
    }
    opens = "" if distilled.stages else " The folder 0_Transformer also opens in model2vec."
    return "\n".join([
        f"# A token table that follows {Path(teacher['name']).name}", "",
        "Made by `fastflow distill`: a text's vector is the mean of its tokens' vectors, which a ridge regression "
        f"fitted to the teacher's vectors of sentences, without labels.{opens}", "",
        "| | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items()), "",
        *(f"- {reason}" for reason in found["reasons"]), "",
        "| mean cosine to the teacher | |", "| --- | ---: |",
        *(f"| {counts[name]:,} {SETS[name]} | {value:.3f} |" for name, value in found["follows"].items()), "",
        "```python", "import fastflow", 'fastflow.Runtime("this directory").encode(["A text."])', "```", "",
    ])  # fmt: skip


Texts = Callable[[], Iterable[str]]
WORDS_MEASURED = 1000


@dataclass(frozen=True)
class DistilOptions:
    """The options of fastflow distill; a value out of range raises a UsageError.

    ``layers`` above 0 make a student with layers, trained for ``minutes`` from the model ``start``; None: a table.
    """

    dim: int | None = None
    words: int = 0
    dtype: str = "float32"
    penalty: float | None = None
    sentences: bool = False
    seed: int = 0
    layers: int = 0
    minutes: float = 30.0
    start: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("dim", 1), ("words", 0), ("seed", 0), ("layers", 0)):
            value = getattr(self, name)
            if not (is_whole(value, least) or (name == "dim" and value is None)):
                raise refuse(
                    "{" + name + "} must be a whole number of at least {least}, not {given}",
                    least=least,
                    given=short(value),
                )
        if self.dtype not in DTYPES:
            kinds = f"{', '.join(DTYPES[:-1])} or {DTYPES[-1]}"
            raise refuse("{dtype} must be {kinds}, not {given}", kinds=kinds, given=short(self.dtype))
        for name in ("penalty", "minutes"):
            value = getattr(self, name)
            usable = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (usable and 0 < value < np.inf):
                raise refuse("{" + name + "} must be a number above 0, not {given}", given=short(value))
        of_tables = {"words": 0, "dtype": "float32"} | ({} if self.start is None else {"dim": None, "penalty": None})
        odd = [name for name, usual in of_tables.items() if getattr(self, name) != usual]
        if self.layers and odd:
            raise refuse("{" + odd[0] + "} is of a token table that is made: leave it out with {layers}")
        if self.start is not None and not self.layers:
            raise refuse("{start} is of a model with layers: give {layers} too")


class Student(NamedTuple):
    """The table's tokenizer, with ``words`` added, and a maker of bags for each target."""

    tokenizer: Any
    words: list[str]
    bags: dict[str, Bags]


def distil(
    texts: Texts,
    names: Sequence[str],
    teacher: Teacher,
    settings: DistilOptions,
    reporter: Reporter = COMMAND,
    kept: Kept | None = None,
    total: int | None = None,
) -> Distilled:
    """Make the table that follows ``teacher``; every call of ``texts`` reads the corpus, about ``total`` texts."""
    if settings.dim is not None and settings.dim > teacher.dim:
        raise refuse(f"{{dim}} must be at most {teacher.dim}, the width of the teacher's vectors, not {settings.dim}")

    def read_clean() -> Iterable[str]:
        return clean(texts(), settings.sentences)

    kinds = calibration.describe(teacher.model.calibration)
    reporter.write(f"teacher: {teacher.name}, {'no calibration' if kinds == 'none' else f'calibrated by {kinds}'}")
    student = _make_student(teacher, read_clean, settings, reporter)
    if kept is not None:
        kept.run = {"teacher": teacher.model.fingerprint, "--words": student.words, "--seed": settings.seed,
                    "--sentences": settings.sentences, "--dim": list(student.bags)}  # fmt: skip
    alone = _embed_single_tokens(teacher, student, reporter)
    total = None if settings.sentences else total
    found = gather(read_clean(), teacher, student.bags, alone, settings.seed, reporter, kept, total)
    tables = fit_tables(teacher, student, found, alone, settings.penalty, reporter)
    best = max(tables, key=lambda table: table.cosine)
    return _store_table(teacher, student, found, tables, best, names, settings)


def _make_student(teacher: Teacher, texts: Texts, settings: DistilOptions, reporter: Reporter) -> Student:
    tokenizer, words = teacher.make_tokenizer(), list[str]()
    if settings.words:
        words = find_split_words(tokenizer, reporter.count("words", texts()), settings.words)
        add_words(tokenizer, words)
        reporter.write(f"words: {len(words):,} that fall into pieces get rows of their own")
    bags = {}
    for target, weights in teacher.targets.items():
        if target == "vectors" or settings.dim is None:
            if weights is not None:  # an added word has its rarest piece's weight
                own = [weights[row].max() for row in _split_words(teacher, words)]
                weights = np.concatenate([weights, np.array(own, np.float32)])
            bags[target] = Bags(tokenizer, weights)
    return Student(tokenizer, words, bags)


def _split_words(teacher: Teacher, words: Sequence[str]) -> list[list[int]]:
    encodings = teacher.make_tokenizer().encode_batch_fast(list(words), add_special_tokens=False) if words else []
    return [list(encoding.ids) for encoding in encodings]


def fit_tables(
    teacher: Teacher,
    student: Student,
    found: Gathered,
    alone: dict[str, NDArray[np.float32]],
    penalty: float | None,
    reporter: Reporter,
) -> list[TokenTable]:
    """Fit a table to each kind of the teacher's vectors."""
    wanted, out = teacher(found.held)["vectors"], []
    for name, bags in student.bags.items():
        held = HeldOut(bags(found.held), wanted, partial(teacher.finish, name))
        sums = found.sums[name]
        start = choose_prior(ridge.Prior(alone[name], found.counts, sums, bags.uniform), sums, held)
        out.append(fit_table(name, sums, start, held, penalty, reporter))
    return out


def _embed_single_tokens(
    teacher: Teacher, student: Student, reporter: Reporter = COMMAND
) -> dict[str, NDArray[np.float32]]:
    """Embed each token, and added words by their pieces: target -> (V, D), zeros for special tokens."""
    first = teacher.make_tokenizer().get_vocab_size(with_added_tokens=True)
    ids = [*([i] for i in range(first)), *_split_words(teacher, student.words)]
    with reporter.progress("teacher", len(ids), "tokens") as progress:
        found = teacher.embed_tokens(ids, progress.advance)
    for vectors in found.values():
        vectors[list_special_ids(student.tokenizer)] = 0
    return found


def _store_table(
    teacher: Teacher,
    student: Student,
    found: Gathered,
    tables: Sequence[TokenTable],
    best: TokenTable,
    names: Sequence[str],
    settings: DistilOptions,
) -> Distilled:
    vectors, weights = best.vectors, student.bags[best.target].weights
    back = np.eye(vectors.shape[1])
    if settings.dim is not None:
        back = ridge.find_principal(found.sums[best.target], vectors, settings.dim)
        vectors = vectors @ back
    vectors[list_special_ids(student.tokenizer)] = 0
    folder = tempfile.TemporaryDirectory(prefix="fastflow-", ignore_cleanup_errors=True)
    place = Path(folder.name) / "table"
    limit = teacher.model.max_length
    write_static(place, student.tokenizer, vectors, dtype=settings.dtype, max_length=limit, name=teacher.name)
    encoder = open_encoder(str(place), "words", limit)
    if best.target == "pooled":
        encoder = replace(encoder, pooling=replace(encoder.pooling, weights=weights))
    stages = teacher.model.calibration if best.target == "pooled" else ()
    embedder, sets, follows = Embedder(encoder, "cpu"), _make_sets(found.held), dict[str, float]()
    for name, texts in sets.items():
        made = teacher.finish(best.target, embedder(texts) @ back.T)
        follows[name] = round(measure_following(made, teacher(texts)["vectors"]), 4)
    training = {
        "corpus": list(names), "texts": found.texts, "corpus_sha256": found.sha256, "held_out": len(found.held),
        "teacher": {"name": teacher.name, "fingerprint": teacher.model.fingerprint},
        "table": {"tokens": len(vectors), "dim": vectors.shape[1], "dtype": settings.dtype,
                  "words": len(student.words)},
        "target": best.target, "penalty": best.penalty, "seed": settings.seed, "sentences": settings.sentences,
        "tables": [{"target": t.target, "penalty": t.penalty, "cosine": round(t.cosine, 4), "prior": round(t.prior, 4),
                    "tried": {f"{p:g}": round(c, 4) for p, c in t.tried.items()}} for t in tables],
        "reasons": _explain_choice(tables, best, settings),
        "follows": follows,
        "measured": {name: len(texts) for name, texts in sets.items()},
    }  # fmt: skip
    return Distilled(encoder, stages, training, found.held, embedder(found.held), folder)


def _make_sets(held: list[str]) -> dict[str, list[str]]:
    words = list(dict.fromkeys(word for text in held for word in text.split()))
    sets = {
        "held_out": held,
        "other": read_probe(),
        "words": [word for word in words if word.isalpha()][:WORDS_MEASURED],
    }
    return {name: texts for name, texts in sets.items() if texts}


def _explain_choice(tables: Sequence[TokenTable], best: TokenTable, settings: DistilOptions) -> list[str]:
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
