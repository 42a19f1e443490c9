"""Distil a model of texts, the teacher, into a BERT of a few layers, which Sentence Transformers opens."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from fastflow.atomic import check_out, growing
from fastflow.files.read import InputFormat
from fastflow.files.read.sources import Sources
from fastflow.model.artifact import load_model
from fastflow.model.encoder import is_static
from fastflow.train.data.corpus import clean, corpus_hash, key_of, read_texts
from fastflow.train.distil.gathering import MOST, SHARE, Kept
from fastflow.train.distil.layers import Course, Lesson, Target, Trainer, Vectors, change_order, embed, measure
from fastflow.train.distil.run import Distilled, DistilOptions, Texts, distil
from fastflow.train.distil.student import StudentBert, open_start, save_student
from fastflow.train.distil.teacher import KeptTeacher, Teacher
from fastflow.train.export.result import Saving
from fastflow.train.reporter import COMMAND, Reporter, refuse

READING = (
    "compare these cosines only with tables of the same teacher and corpus: on another corpus the same table has others"
)
PAIRED = 40_000  # texts whose words are put in another order
LONGEST = 256  # tokens of a text
FITTED = 4_000  # texts by which the teacher's vectors are turned
LOOKED = 500  # held-out texts that are measured at a checkpoint
GENTLE = 0.3  # share of the usual rates for a student that was trained before


@dataclass(frozen=True, repr=False)
class DistilledLayers(Saving):
    """A student that follows a teacher, and the ``shift`` (d,) that gives the teacher's mean back."""

    student: StudentBert
    shift: Vectors
    teacher: KeptTeacher
    training: dict[str, Any]

    def __repr__(self) -> str:
        return f"<DistilledLayers: {self.training['teacher']['name']}, {self.training['layers']} layers>"

    @property
    def report(self) -> dict[str, Any]:
        """Settings and measures, as data for json."""
        return copy.deepcopy(self.training)

    @property
    def lines(self) -> list[str]:
        """The measures, as lines of text."""
        found, count = self.training["follows"], self.training["held_out"]
        lines = [f"{count:,} held-out texts: mean cosine to the teacher {found['held_out']:.3f}"]
        lengths = found["lengths"].items()
        lines += [f"  {tokens} tokens, {count:,} texts: {cosine:.3f}" for tokens, (count, cosine) in lengths]
        order = [f"order of words, Spearman with the teacher: {found['order']:.2f}"] if "order" in found else []
        return lines + order

    @property
    def size(self) -> str:
        """The size, in words."""
        return f"{self.training['layers']} layers"

    def save(self, directory: str | os.PathLike[str]) -> str:
        """Write a directory of Sentence Transformers.

        Args:
            directory: Where to write; must not exist.

        Returns:
            The fingerprint of the model.

        Raises:
            FastflowError: The directory cannot be written.
        """
        check_out(Path(directory), "directory")
        with growing(Path(directory)) as folder:
            save_student(self.student.cpu(), self.shift, self.teacher.model, folder)
            (folder / "README.md").write_text(_write_card(self), encoding="utf-8")
        return load_model(Path(directory)).fingerprint


def _write_card(made: DistilledLayers) -> str:
    training = made.training
    teacher = training["teacher"]
    facts = {
        "teacher": f"{teacher['name']} (fingerprint {teacher['fingerprint'][:16]})",
        "layers": f"{training['layers']}, of {training['dim']} numbers, over {training['tokens']:,} tokens",
        "began as": training["start"],
        "corpus": f"{', '.join(training['corpus'])}: {training['texts']:,} texts",
        "trained": f"{training['minutes']:g} minutes, {training['steps']:,} steps, {training['seen']:,} texts",
        "longest text": f"{training['max_length']} tokens",
        "licence": "that of the teacher; the corpus's texts are not in it",
    }
    return "\n".join([
        f"# A BERT of {training['layers']} layers that follows {Path(teacher['name']).name}", "",
        "Made by `fastflow distill --layers`, without labels; Sentence Transformers opens it.",
        "", "| | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items()), "",
        *made.lines, "",
    ])  # fmt: skip


def distil_layers(
    texts: Texts,
    names: Sequence[str],
    teacher: KeptTeacher,
    settings: DistilOptions,
    reporter: Reporter = COMMAND,
    course: Course | None = None,
) -> DistilledLayers:
    """Train a student of ``settings.layers`` layers; ``course`` has the checkpoint."""
    corpus = list(dict.fromkeys(clean(texts(), settings.sentences)))
    lesson, held = _make_lessons(corpus, teacher, settings, ", ".join(names), reporter)
    student, start = _begin(corpus, names, teacher, settings, reporter)
    student.to("cuda" if torch.cuda.is_available() else "cpu")
    first = np.sort(lesson.rows[:FITTED])
    target = Target.fit(lesson.vectors[first], embed(student, [lesson.ids[i] for i in first]))
    decided = [teacher.model.fingerprint, corpus_hash(corpus), start, settings.layers, settings.minutes, settings.seed]
    course = replace(
        course or Course(settings.minutes, settings.seed), minutes=settings.minutes, seed=settings.seed,
        rate=GENTLE if settings.start and not is_static(load_model(settings.start).encoder) else 1.0,
        run=hashlib.sha256(json.dumps(decided).encode()).hexdigest(),
    )  # fmt: skip
    trainer = Trainer(student, lesson, target, course)
    few = held._replace(rows=held.rows[:LOOKED], first=held.first[:LOOKED], second=held.second[:LOOKED])
    trainer.run(reporter, lambda: _look(student, few, trainer.target))
    target = trainer.target
    made = embed(student, [held.ids[i] for i in held.rows])
    share, shift = target.choose_shift(made, held.vectors[held.rows])
    training = {
        "corpus": list(names), "texts": len(corpus) - len(held.rows), "held_out": len(held.rows),
        "corpus_sha256": corpus_hash(corpus), "pairs": len(lesson.first),
        "teacher": {"name": teacher.name, "fingerprint": teacher.model.fingerprint},
        "start": start, "layers": settings.layers, "dim": len(shift), "tokens": len(student.rows[0]),
        "max_length": student.longest, "minutes": settings.minutes, "steps": trainer.step, "seen": trainer.texts,
        "reasons": [f"{share:g} of the teacher's mean is given back, which follows it best on held-out texts"],
        "mean_share": share, "seed": settings.seed, "follows": measure(student, held, target, shift),
    }  # fmt: skip
    return DistilledLayers(student, shift, teacher, training)


def _look(student: StudentBert, held: Lesson, target: Target) -> str:
    found = measure(student, held, target, np.zeros(target.turn.shape[1], np.float32))
    return f", held-out cosine {found['held_out']:.4f}, order {found.get('order', 0):.2f}"


def split_corpus(corpus: Sequence[str], seed: int) -> tuple[list[int], dict[str, int]]:
    """Choose held-out texts, about one in SHARE, at most MOST; and map texts of other order to their origins."""
    draw, known, held = random.Random(seed), set(corpus), list[int]()
    changed, taken = dict[str, int](), 0
    for i, text in enumerate(corpus):
        is_held = len(held) < MOST and key_of(text, seed)[0] % SHARE == 0
        if is_held:
            held.append(i)
        if is_held or taken < PAIRED:
            other = change_order(text, draw)
            if other is not None and other not in known and other not in changed:
                changed[other] = i
                taken += not is_held
    return held, changed


def _make_lessons(
    corpus: Sequence[str], teacher: KeptTeacher, settings: DistilOptions, named: str, reporter: Reporter
) -> tuple[Lesson, Lesson]:
    """Make the lesson of the training texts, and the held-out one."""
    held, changed = split_corpus(corpus, settings.seed)
    texts = [*corpus, *changed]
    if len(held) < 2 or len(corpus) - len(held) < 2:
        raise refuse("{layers} needs a few thousand texts: {count} are there", count=len(corpus))
    vectors = teacher.keep(texts, named, reporter)
    tokenizer = teacher.make_tokenizer()
    tokenizer.enable_truncation(min(LONGEST, teacher.model.max_length))
    ids = [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch_fast(texts)]
    first = np.array(list(changed.values()), np.int64)
    second = np.arange(len(corpus), len(texts))
    same = np.array([len(ids[i]) == len(ids[j]) for i, j in zip(first, second, strict=True)], bool)
    first, second = first[same], second[same]
    out = np.isin(first, held)
    train = np.concatenate([np.setdiff1d(np.arange(len(corpus)), held), second[~out]])
    lessons = (train, ~out), (np.array(held), out)
    made = [Lesson(ids, vectors, rows, first[pairs], second[pairs]) for rows, pairs in lessons]
    return made[0], made[1]


def _begin(
    corpus: Sequence[str], names: Sequence[str], teacher: KeptTeacher, settings: DistilOptions, reporter: Reporter
) -> tuple[StudentBert, str]:
    """Open the student's start, which ``distil`` makes of the corpus unless it is given; and name it."""
    longest = min(LONGEST, teacher.model.max_length)
    size = teacher.make_tokenizer().get_vocab_size(with_added_tokens=True)
    if settings.start is not None:
        return open_start(settings.start, settings.layers, longest, size), load_model(settings.start).fingerprint
    asked = DistilOptions(dim=settings.dim, penalty=settings.penalty, seed=settings.seed)
    table = distil(lambda: iter(corpus), names, teacher, asked, reporter)
    return open_start(str(table.encoder.directory), settings.layers, longest, size), "a token table of the corpus"


def distil_files(
    model: str,
    paths: Sequence[str],
    layout: InputFormat,
    out: Path,
    settings: DistilOptions,
    reporter: Reporter,
    resume: bool,
) -> None:
    """Distil ``model`` on the texts of ``paths`` and write the table, or the student, to ``out``."""
    check_out(out, "-o")
    if "-" in paths and (settings.words or resume):
        raise refuse("{words} and {resume} read the corpus again, which standard input cannot be: give a file")
    names = ["standard input" if path == "-" else Path(path).name for path in paths]
    started, kept = time.monotonic(), None if "-" in paths else Kept(out, resume, reporter)
    with Kept.lock(out):
        with Sources(paths) as sources:
            total, _ = sources.expected(layout)
        try:
            texts, teacher = (
                partial(read_texts, paths, layout),
                KeptTeacher(model) if settings.layers else Teacher(model),
            )
            found: Distilled | DistilledLayers
            if isinstance(teacher, KeptTeacher):
                checkpoint = None if kept is None else kept.start()
                course = Course(settings.minutes, settings.seed, checkpoint=checkpoint, resume=resume)
                found = distil_layers(texts, names, teacher, settings, reporter, course)
            else:
                found = distil(texts, names, teacher, settings, reporter, kept, total)
            mark = found.save(out)
        except KeyboardInterrupt as stop:
            if kept is not None:
                kept.note(stop)
            raise
        if kept is not None:
            kept.remove()
    for reason in found.training["reasons"]:
        reporter.write(reason)
    click.echo("\n".join(found.lines))
    if (
        not settings.layers and len(teacher.targets) == 1 and not is_static(teacher.model.encoder)
    ):  # like READING's, all-MiniLM-L6-v2
        reporter.write(READING)
    seconds = time.monotonic() - started
    reporter.write(f"{out}: {found.size}, fingerprint {mark[:16]}, {seconds:.0f} s")
