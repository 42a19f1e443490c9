"""Files become distinct texts."""

import gzip
import io
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read.records import Layout
from fastflow.train.data.corpus import corpus_hash, cut_sentences, read_corpus

TEXTS = ["A dog.", "Ein Hund läuft.", "犬が走る。", "😀 ok", 'He said "no".', "comma, here"]


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def csv_text(header, rows):
    return "\n".join([header, *('"' + row.replace('"', '""') + '"' for row in rows)]) + "\n"


CONTENTS = {
    "c.txt": "\n".join(TEXTS) + "\n",
    "windows.txt": "\ufeff" + "\r\n".join(TEXTS),
    "c.tsv": "id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(TEXTS)),
    "c.csv": csv_text("sentence", TEXTS),
    "c.jsonl": "".join(json.dumps({"n": 1, "text": text}) + "\n" for text in TEXTS),
    "strings.jsonl": "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in TEXTS),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", CONTENTS)
def test_every_format_gives_the_same_texts(tmp_path, name, zipped):
    content = CONTENTS[name].encode()
    path = write(tmp_path / (name + ".gz" * zipped), gzip.compress(content) if zipped else content)
    assert read_corpus([path]) == TEXTS


def test_pairs_are_two_texts_a_row(tmp_path):
    rows = [("subset", "score", "sentence1", "sentence2"), ("a", "1.0", 'One "quote.', "Two.")]
    rows += [("a", "2.0", "Two.", "Three."), ("b", "3", "One.", "Four.")]
    path = write(tmp_path / "p.tsv", "".join("\t".join(row) + "\n" for row in rows))
    assert read_corpus([path]) == ['One "quote.', "Two.", "Three.", "One.", "Four."]
    assert read_corpus([path], Layout(field="sentence2")) == ["Two.", "Three.", "Four."]


def test_texts_are_distinct_across_files_in_order_of_appearance(tmp_path):
    first = write(tmp_path / "a.txt", "b\n\n  a \n   \nb\n")
    second = write(tmp_path / "b.jsonl", '"a"\n"c"\n"A"\n')
    assert read_corpus([first, second]) == ["b", "a", "c", "A"]
    assert read_corpus([second, first]) == ["a", "c", "A", "b"]


def test_standard_input(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"un\ndeux\n")))
    assert read_corpus(["-", write(tmp_path / "c.txt", "deux\ntrois\n")]) == ["un", "deux", "trois"]


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        *(("c.txt", blank, FastflowError, r"c\.txt: holds no text") for blank in ("", "\n", "  \n\n \t\n")),
        ("c.txt", b"good\nb\xffd\n", FastflowError, r"c\.txt, line 2: byte 2 is not UTF-8; .*--errors replace"),
        (
            "c.jsonl",
            '"fine"\n"\\ud83d\\ude00"\n"half \\ud83d"\n',
            FastflowError,
            r"c\.jsonl, line 3: field 'text' holds half a surrogate pair",
        ),
        ("none.txt", None, FastflowError, r"none\.txt cannot be opened: No such file"),
        ("c.docx", "x", UsageError, r"unknown suffix \.docx"),
    ],
)
def test_what_holds_no_texts_is_refused(tmp_path, name, content, error, message):
    path = str(tmp_path / name) if content is None else write(tmp_path / name, content)
    with pytest.raises(error, match=message):
        read_corpus([path])


def test_what_is_no_text_can_be_replaced(tmp_path):
    path = write(tmp_path / "c.txt", b"good\nb\xffd\n")
    assert read_corpus([path], Layout(errors="replace")) == ["good", "b\ufffdd"]
    path = write(tmp_path / "c.jsonl", '"fine"\n"\\ud83d\\ude00"\n"half \\ud83d"\n')
    assert read_corpus([path], Layout(errors="replace")) == ["fine", "😀", "half \ufffd"]


@pytest.fixture
def numbers(tmp_path):
    return write(tmp_path / "n.txt", "".join(f"text {i % 1000}\n" for i in range(1500)))


def test_a_sample_is_decided_by_its_seed_and_keeps_the_order(numbers):
    whole, sampled = read_corpus([numbers]), read_corpus([numbers], sample=100, seed=3)
    assert len(whole) == 1000
    assert len(set(sampled)) == 100
    assert sampled == [text for text in whole if text in set(sampled)]
    assert sampled == read_corpus([numbers], sample=100, seed=3)
    assert sampled not in (read_corpus([numbers], sample=100, seed=4), whole[:100])
    for size in (1000, 1001, 10**9):
        assert read_corpus([numbers], sample=size) == whole


def test_every_text_is_as_likely_to_be_sampled(tmp_path):
    path = write(tmp_path / "n.txt", "".join(f"{i}\n" for i in range(20)))
    counts = dict.fromkeys(range(20), 0)
    for seed in range(1500):
        for text in read_corpus([path], sample=4, seed=seed):
            counts[int(text)] += 1
    assert min(counts.values()) >= 300 - 5 * 15.5  # 1500 * 4 / 20 = 300, deviation 15.5
    assert max(counts.values()) <= 300 + 5 * 15.5


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(), max_size=5), st.lists(st.text(), max_size=5))
def test_the_hash_is_of_the_texts_their_order_and_their_ends(a, b):
    assert (corpus_hash(a) == corpus_hash(b)) == (a == b)
    hashes = [corpus_hash(texts) for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["ab", "c", ""])]
    assert len(set(hashes)) == 5


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("No end", ["No end"]),
        ("It cost 3.5 dollars, i.e. too much. Yes.", ["It cost 3.5 dollars, i.e. too much.", "Yes."]),
        ("犬が走る。猫が眠る。", ["犬が走る。", "猫が眠る。"]),
        ('He left. "Why?" \n 2 came…  Élan.', ["He left.", '"Why?" \n 2 came…', "Élan."]),
        ("...", ["..."]),
    ],
)
def test_cutting_into_sentences(tmp_path, text, parts):
    assert cut_sentences(text) == parts
    path = write(tmp_path / "c.txt", "One. Two.\nTwo. Three.\n\n")
    assert read_corpus([path], cut=True) == ["One.", "Two.", "Three."]
    assert read_corpus([path]) == ["One. Two.", "Two. Three."]
