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
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from fastflow.atomic import check_out, growing
from fastflow.files.read import InputFormat
from fastflow.model.artifact import load_model
from fastflow.train.data.corpus import clean, corpus_hash, key_of, read_texts
from fastflow.train.distil.gathering import MOST, SHARE, Kept
from fastflow.train.distil.layers import Course, Lesson, Target, Trainer, Vectors, change_order, embed, measure
from fastflow.train.distil.run import DistilOptions, Texts, distil
from fastflow.train.distil.student import Student, open_start, save_student
from fastflow.train.distil.teacher import KeptTeacher
from fastflow.train.export.result import Saving
from fastflow.train.reporter import COMMAND, Reporter, refuse

PAIRED = 40_000  # texts whose words are put in another order
LONGEST = 256  # tokens of a text
FITTED = 4_000  # texts by which the teacher's vectors are turned
LOOKED = 500  # held-out texts that are measured at a checkpoint
GENTLE = 0.3  # share of the usual rates for a student that was trained before


@dataclass(frozen=True, repr=False)
class DistilledLayers(Saving):
    """A student that follows a teacher, and the ``shift`` (d,) that gives the teacher's mean back."""

    student: Student
    shift: Vectors
    teacher: KeptTeacher
    training: dict[str, Any]

    def __repr__(self) -> str:
        return f"<DistilledLayers: {self.training['teacher']['name']}, {self.training['layers']} layers>"

    @property
    def report(self) -> dict[str, Any]:
        """Settings and measures, as data for json."""
        return copy.deepcopy(self.training)

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
            (folder / "README.md").write_text(_write_card(self.training), encoding="utf-8")
        return load_model(directory).fingerprint


def write_lines(training: dict[str, Any]) -> list[str]:
    """Write the measures on held-out texts."""
    found = training["follows"]
    lines = [f"{training['held_out']:,} held-out texts: mean cosine to the teacher {found['held_out']:.3f}"]
    lines += [
        f"  {tokens} tokens, {count:,} texts: {cosine:.3f}" for tokens, (count, cosine) in found["lengths"].items()
    ]
    if "order" in found:
        lines.append(f"order of words, Spearman with the teacher: {found['order']:.2f}")
    return lines


def _write_card(training: dict[str, Any]) -> str:
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
        *write_lines(training), "",
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
        rate=GENTLE if settings.start and not is_static_start(settings.start) else 1.0,
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
        "mean_share": share, "seed": settings.seed, "follows": measure(student, held, target, shift),
    }  # fmt: skip
    return DistilledLayers(student, shift, teacher, training)


def _look(student: Student, held: Lesson, target: Target) -> str:
    found = measure(student, held, target, np.float32(0.0) * target.mean @ target.turn)
    order = f", order {found['order']:.2f}" if "order" in found else ""
    return f"held-out cosine {found['held_out']:.4f}{order}"


def is_static_start(name: str) -> bool:
    """Return whether a student that begins at ``name`` begins as a table."""
    from fastflow.model.encoder import is_static

    return is_static(load_model(name).encoder)


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
) -> tuple[Student, str]:
    """Open the student's start, which ``distil`` makes of the corpus unless it is given; and name it."""
    longest = min(LONGEST, teacher.model.max_length)
    size = teacher.make_tokenizer().get_vocab_size(with_added_tokens=True)
    if settings.start is not None:
        return open_start(settings.start, settings.layers, longest, size), load_model(settings.start).fingerprint
    asked = DistilOptions(dim=settings.dim, penalty=settings.penalty, seed=settings.seed)
    table = distil(lambda: iter(corpus), names, teacher, asked, reporter)
    return open_start(str(table.encoder.directory), settings.layers, longest, size), "a token table of the corpus"


def distil_layer_files(
    model: str,
    paths: Sequence[str],
    layout: InputFormat,
    out: Path,
    settings: DistilOptions,
    reporter: Reporter,
    resume: bool,
) -> None:
    """Distil ``model`` on the texts of ``paths`` and write the student to ``out``."""
    check_out(out, "-o")
    if resume and "-" in paths:
        raise refuse("{resume} reads the corpus again, which standard input cannot be: give a file")
    names = ["standard input" if path == "-" else Path(path).name for path in paths]
    started, kept = time.monotonic(), Kept(out, resume, reporter)
    if kept.path.is_file() and not resume:
        reporter.write(f"fastflow: starts again and replaces {kept.path}; --resume would have continued it")
    with Kept.lock(out):
        course = Course(settings.minutes, settings.seed, checkpoint=kept.path, resume=resume)
        found = distil_layers(
            lambda: read_texts(paths, layout), names, KeptTeacher(model), settings, reporter, course
        )  # fmt: skip
        mark = found.save(out)
        kept.remove()
    click.echo("\n".join(write_lines(found.training)))
    reporter.write(f"{out}: {settings.layers} layers, fingerprint {mark[:16]}, {time.monotonic() - started:.0f} s")
