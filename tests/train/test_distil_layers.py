"""A student with layers: its start, its growth, a training that resumes, and the model on disk."""

import random

import numpy as np
import pytest
import torch

import fastflow
from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.model.static.write import write_static
from fastflow.train.distil import deep, layers
from fastflow.train.distil.layers import Course, Lesson, Target, Trainer, change_order, embed, plan_round
from fastflow.train.distil.student import StudentBert, open_start, turn_table
from fastflow.train.distil.teacher import KeptTeacher
from fastflow.train.reporter import SILENT

from support.builders import make_sentences, wordpiece
from support.commands import run

pytestmark = pytest.mark.slow
TEXTS = make_sentences(1200)


class Clock:
    """A second passes at each look."""

    def __init__(self, stop=None):
        self.now, self.stop = 0.0, stop

    def __call__(self):
        self.now += 1
        if self.stop is not None and self.now > self.stop:
            raise KeyboardInterrupt
        return self.now


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table (V, 24) without one direction, and its directory."""
    rows = np.random.default_rng(3).normal(size=(wordpiece().get_vocab_size(), 24)).astype(np.float32)
    away = np.full((24, 1), 24**-0.5, np.float32)
    rows -= rows @ away @ away.T
    rows[:5] = 0
    place = tmp_path_factory.mktemp("table") / "t"
    write_static(place, wordpiece(), rows)
    return rows, place


def draw_ids(count=200, seed=1):
    draw = np.random.default_rng(seed)
    return [draw.integers(5, 30, draw.integers(3, 12)) for _ in range(count)]


def cosines(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def make_lesson(count=200):
    ids = draw_ids(count)
    first = np.arange(0, 40, dtype=np.int64)
    ids += [row[::-1].copy() for row in ids[:40]]
    vectors = np.random.default_rng(5).normal(size=(len(ids), 24)).astype(np.float32)
    return Lesson(ids, vectors, np.arange(len(ids)), first, np.arange(count, count + 40))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_it_begins_as_the_table(table, count):
    rows, _ = table
    student, ids = StudentBert(turn_table(rows), count, 32), draw_ids()
    with torch.no_grad():
        found = np.concatenate([student(torch.from_numpy(row[None])).numpy() for row in ids])
    wanted = np.stack([rows[row].mean(0) for row in ids])
    np.testing.assert_allclose(cosines(found), cosines(wanted), atol=1e-5)


def test_a_grown_student_is_the_student(table, tmp_path, bert):
    _, place = table
    teacher = KeptTeacher(str(bert))
    student = open_start(str(place), 1, 32, wordpiece().get_vocab_size())
    student.tell_places()
    for weight in student.bert.encoder.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    deep.save_student(student, np.linspace(0, 0.3, 24, dtype=np.float32), teacher.model, tmp_path / "one")
    grown = open_start(str(tmp_path / "one"), 3, 48, wordpiece().get_vocab_size())
    for row in draw_ids(20):
        ids = torch.from_numpy(row[None])
        torch.testing.assert_close(grown(ids), student(ids), atol=2e-5, rtol=0)
    with pytest.raises(FastflowError, match=r"of at most 0 layers"):
        open_start(str(tmp_path / "one"), 0, 48, wordpiece().get_vocab_size())
    with pytest.raises(FastflowError, match=r"tokens, and the model to follow 7"):
        open_start(str(place), 1, 48, 7)


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("stop", [3, 9, None])
def test_a_resumed_training_takes_the_same_steps(table, tmp_path, stop, monkeypatch):
    """It is stopped at a look at the clock or, for None, while it changes the weights."""
    monkeypatch.setattr(layers, "EVERY", 2.0)
    rows, _ = table
    lesson = make_lesson()

    def train(clock, checkpoint, resume=False):
        torch.manual_seed(0)
        student = StudentBert(turn_table(rows), 1, 32)
        target = Target.fit(lesson.vectors, embed(student, lesson.ids))
        trainer = Trainer(
            student, lesson, target, Course(0.25, 0, "a", checkpoint=checkpoint, resume=resume, clock=clock)
        )
        trainer.run(SILENT)
        return trainer

    whole = train(Clock(), None)
    with monkeypatch.context() as patch:
        if stop is None:
            step, due = torch.optim.Adagrad.step, iter([False] * 7 + [True])
            patch.setattr(torch.optim.Adagrad, "step", lambda own: interrupt() if next(due) else step(own))
        with pytest.raises(KeyboardInterrupt):
            train(Clock(stop), tmp_path / "c")
    resumed = train(Clock(), tmp_path / "c", resume=True)
    assert resumed.step == whole.step > 10
    assert resumed.losses == whole.losses
    for one, other in zip(whole.student.parameters(), resumed.student.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(FastflowError, match="another teacher, corpus or options"):
        Trainer(whole.student, lesson, whole.target, Course(1, 0, "b")).load(tmp_path / "c")
    (tmp_path / "c").write_bytes(b"no checkpoint")
    with pytest.raises(FastflowError, match="is damaged"):
        train(Clock(), tmp_path / "c", resume=True)


def test_batches_have_one_length_and_every_text():
    lesson = make_lesson(2000)
    for number in (0, 1):
        batches = plan_round(lesson, 0, number)
        assert all(len({len(lesson.ids[row]) for row in rows}) == 1 for rows, _ in batches)
        seen = np.concatenate([rows for rows, pairs in batches if not pairs])
        assert len(np.unique(seen)) == len(seen) > 0.9 * len(lesson.ids)
        halves = [np.split(rows, 2) for rows, pairs in batches if pairs]
        assert halves
        assert all((b - a == 2000).all() for a, b in halves)


def test_the_order_is_changed_and_not_the_words():
    draw = random.Random(0)
    for text in TEXTS[:200]:
        other = change_order(text, draw)
        if other is not None:
            assert other != text
            assert other.endswith(".")
            assert sorted(other[:-1].split()) == sorted(text[:-1].split())
    assert change_order("two words.", draw) is None


def test_it_learns_the_order_that_its_teacher_reads(bert):
    made = deep.distil_layers(
        lambda: iter(TEXTS), ["t"], KeptTeacher(str(bert)), deep.DistilOptions(layers=1, minutes=2.0), SILENT,
        Course(2.0, 0, clock=Clock()),
    )  # fmt: skip
    found = made.report["follows"]
    assert found["order"] > 0.3
    assert made.report["steps"] == 119
    again = deep.distil_layers(
        lambda: iter(TEXTS), ["t"], KeptTeacher(str(bert)), deep.DistilOptions(layers=1, minutes=0.1), SILENT,
        Course(0.1, 0, clock=Clock()),
    )  # fmt: skip
    assert again.report["steps"] == 5
    assert found["held_out"] > again.report["follows"]["held_out"]
    assert found["order"] > again.report["follows"]["order"]


def test_the_saved_directory_opens_in_sentence_transformers(bert, tmp_path):
    made = fastflow.distill(bert, TEXTS, layers=2, minutes=0.02)
    mark = made.save(tmp_path / "m")
    assert "| layers | 2, of 32 numbers" in (tmp_path / "m" / "README.md").read_text()
    new = [*make_sentences(30, seed=9), "", "a"]
    with Runtime(tmp_path / "m") as runtime:
        assert runtime.fingerprint == mark
        found = runtime.encode(new)
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(new)
    np.testing.assert_allclose(found, theirs, atol=1e-5)


def test_the_command_resumes(bert, tmp_path):
    corpus, out = tmp_path / "c.txt", tmp_path / "m"
    corpus.write_text("\n".join(TEXTS) + "\n")
    command = ["distill", bert, corpus, "--layers", 1, "--minutes", 0.02, "-o"]
    found = run(*command, out)
    assert "held-out texts: mean cosine to the teacher 0." in found.stdout
    assert "order of words, Spearman with the teacher" in found.stdout
    assert not (tmp_path / "m.distilling").exists()
    (tmp_path / "n.distilling").write_bytes(b"x")
    stopped = run(*command, tmp_path / "n", "--resume")
    assert stopped.exit_code == 1
    assert f"fastflow: the checkpoint {tmp_path / 'n.distilling'} is damaged; remove it or" in stopped.stderr
    assert "starts again and replaces" in run(*command, tmp_path / "n").stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 2, "words": 3}, "words= is of a token table that is made: leave it out with layers="),
        ({"layers": 2, "start": "static", "dim": 8}, "dim= is of a token table"),
        ({"start": "static"}, "start= is of a model with layers: give layers= too"),
        ({"layers": -1}, "layers= must be a whole number"),
        ({"layers": 1, "minutes": 0}, "minutes= must be a number above 0, not 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(bert, options, message):
    with pytest.raises(UsageError, match=message):
        fastflow.distill(bert, TEXTS[:50], **options)


def test_too_few_texts_are_refused(bert):
    with pytest.raises(UsageError, match="layers= needs a few thousand texts: 3 are there"):
        fastflow.distill(bert, TEXTS[:3], layers=1)
