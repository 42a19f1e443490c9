"""One pass: resumed as if never stopped, sentences held out by their hash, other runs refused."""

import numpy as np
import pytest

from fastflow import progress
from fastflow.errors import FastflowError
from fastflow.train.distil import gathering
from fastflow.train.distil.gathering import Bags, Kept, gather
from fastflow.train.distil.teacher import Teacher
from fastflow.train.reporter import COMMAND, SILENT, Reporter

from support.builders import make_sentences

TEXTS = make_sentences(700)
RUN = {"teacher": "t", "list of words": []}


@pytest.fixture
def teacher(model, monkeypatch):
    monkeypatch.setattr(gathering, "SHARD", 100)
    return Teacher(str(model))


def collect(teacher, texts=TEXTS, kept=None, seed=0, reporter=SILENT, total=None):
    bags = {target: Bags(teacher.make_tokenizer(), weights) for target, weights in teacher.targets.items()}
    alone = teacher.embed_tokens([[i] for i in range(teacher.make_tokenizer().get_vocab_size())])
    return gather(iter(texts), teacher, bags, alone, seed, reporter, kept, total)


def keep(folder, resume=True, said=None, run=RUN):
    kept = Kept(folder / "out", resume, SILENT if said is None else Reporter(said.append, bars=False))
    kept.run = run
    return kept


def stopping(teacher, calls, error=KeyboardInterrupt):
    """``teacher`` that is interrupted at the ``calls``-th shard."""

    class Stopped(Teacher):
        def __init__(self):
            self.__dict__.update(teacher.__dict__)
            self.left = calls

        def __call__(self, texts, count=None):
            self.left -= 1
            if not self.left:
                raise error
            return teacher(texts, count)

    return Stopped()


def same(a, b):
    assert (a.texts, a.held, a.sha256) == (b.texts, b.held, b.sha256)
    assert np.array_equal(a.counts, b.counts)
    assert np.array_equal(a.lengths.table, b.lengths.table)
    assert a.sums.keys() == b.sums.keys() == {"vectors", "pooled"}
    for name, sums in a.sums.items():
        for key, array in sums.arrays().items():
            assert np.array_equal(array, b.sums[name].arrays()[key]), (name, key)


def test_some_sentences_are_held_out(teacher, monkeypatch):
    found = collect(teacher, [*TEXTS, *TEXTS])
    assert 5 < len(found.held) < 60
    assert found.texts == 2 * (len(TEXTS) - len(found.held))  # repeated texts count again, on their own side
    assert set(collect(teacher, seed=1).held) != set(found.held)
    tokens = sum(len(row) for row in Bags(teacher.make_tokenizer()).find_ids([t for t in TEXTS if t not in found.held]))
    assert found.counts.sum() == 2 * tokens
    monkeypatch.setattr(gathering, "MOST", 5)
    found = collect(teacher, [*TEXTS, *TEXTS])
    assert (len(found.held), found.texts) == (5, 2 * (len(TEXTS) - 5))


def test_progress_counts_batches_of_the_whole(teacher, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    collect(teacher, reporter=COMMAND, total=700)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("teacher: 100 of about 700 texts (14 %)")
    assert last.startswith("teacher: 6")
    assert " of 6" in last
    with pytest.raises(KeyboardInterrupt):
        collect(stopping(teacher, 3), kept=keep(tmp_path, False))
    collect(teacher, kept=keep(tmp_path), reporter=COMMAND, total=700)
    assert capsys.readouterr().err.startswith("teacher: 300 of about 700 texts (43 %)")


@pytest.mark.parametrize("at", [2, 5])
def test_resumed_is_the_whole(teacher, tmp_path, at):
    whole, said = collect(teacher), []
    with pytest.raises(KeyboardInterrupt):
        collect(stopping(teacher, at), kept=keep(tmp_path, False))
    kept = keep(tmp_path, said=said)
    same(collect(teacher, kept=kept), whole)
    assert said[-1] == f"fastflow: continues after {100 * (at - 1)} texts that an interrupted run has gathered"
    kept.remove()
    assert list(tmp_path.iterdir()) == []


def test_without_an_earlier_run_resume_says_so(teacher, tmp_path):
    said = []
    collect(teacher, kept=keep(tmp_path, said=said))
    left = tmp_path / "out.distilling"
    assert said == [f"fastflow: no interrupted run has left {left}, so this one starts from the beginning"]
    assert not left.exists()


def test_an_error_leaves_what_was_saved_in_time(teacher, tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "EVERY", 0.0)
    with pytest.raises(SystemError):
        collect(stopping(teacher, 4, SystemError), kept=keep(tmp_path, False))
    counting = stopping(teacher, 100)
    same(collect(counting, kept=keep(tmp_path)), collect(teacher))
    assert 100 - counting.left == 7 - 3  # shards


def test_another_run_or_corpus_is_refused_and_a_damaged_file_named(teacher, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        collect(stopping(teacher, 3), kept=keep(tmp_path, False))
    with pytest.raises(FastflowError, match=r"distilling is from a run that differs in teacher; give the same again"):
        collect(teacher, kept=keep(tmp_path, run=RUN | {"teacher": "other"}))
    other = r"out\.distilling is from other texts, or another order of them"
    for texts in ([*TEXTS[1:], TEXTS[0]], TEXTS[:150]):
        with pytest.raises(FastflowError, match=other):
            collect(teacher, texts, kept=keep(tmp_path))
    path, said = tmp_path / "out.distilling", []
    content = path.read_bytes()
    same(collect(teacher, kept=keep(tmp_path, False, said)), collect(teacher))
    assert "starts again and replaces" in said[0]
    path.write_bytes(content[:50])
    with pytest.raises(FastflowError, match="is damaged; remove it to start again"):
        collect(teacher, kept=keep(tmp_path))
    monkeypatch.setattr(gathering, "EVERY", 0.0)
    assert collect(teacher, TEXTS[:280], keep(tmp_path, False)).texts % 100
    with pytest.raises(FastflowError, match=other):  # the last shard was short: the longer corpus is cut elsewhere
        collect(teacher, kept=keep(tmp_path))


def test_one_run_at_a_time(tmp_path):
    with (
        Kept.lock(tmp_path / "out"),
        pytest.raises(FastflowError, match="is being written by another run"),
        Kept.lock(tmp_path / "out"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("texts", "counted"),
    [([], "0 distinct texts"), (TEXTS[:3], "3 distinct texts"), (["the cat"] * 300, "1 distinct text"),
     (TEXTS[:3] * 40, "3 distinct texts")],
)  # fmt: skip
def test_too_few_texts(teacher, texts, counted):
    with pytest.raises(FastflowError, match=f"the corpus holds {counted}, too few to learn from some"):
        collect(teacher, texts)
