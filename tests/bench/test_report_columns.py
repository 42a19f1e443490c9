"""Tables of the suites: the fastest first, ratios over ours of the same dtype, sizes in words."""

import re

import pytest

from fastflow.bench import cli
from fastflow.bench.report.columns import SUITES, headings, together
from fastflow.bench.report.table import _tables


def row(name, dtype, median, **fields):
    startup = {"suite": "startup", "subject": "a model", "batch": 1, "tokens": None, "threads": 2}
    numbers = {"runs": 3, "p20_ms": median, "p80_ms": median, "resident_mb": 40.4, "peak_mb": None, "anonymous_mb": 1}
    return startup | numbers | {"name": name, "dtype": dtype, "median_ms": median} | fields


def lines_of(rows):
    return [re.sub("   *", " | ", line.strip()) for line in _tables(rows)]


def test_the_fastest_comes_first_and_is_compared_with_ours_of_its_dtype():
    rows = [row("torch", "float32", 9.0), row("fastflow", "float32", 3.0), row("other", "int8", 1.0)]
    title, head, *cells = lines_of(rows)[:5]
    assert title == "a model; 2 threads; startup to the first vector"
    assert [line.split(" | ")[0] for line in cells] == ["other int8", "fastflow float32", "torch float32"]
    assert head == "candidate | median | 20-80 % | runs | x ours | resident | anonymous"
    assert [line.split(" | ")[4] for line in cells] == ["40 MB", "1.00", "3.00"]  # there is no int8 of ours


def test_each_comparison_has_a_table_of_its_own():
    rows = [row("fastflow", "float32", 3.0), row("fastflow", "float32", 5.0, subject="another")]
    assert [together(r)[1] for r in rows] == ["a model", "another"]
    assert sum(line.startswith(("a model;", "another;")) for line in lines_of(rows)) == 2
    assert lines_of([]) == []


def test_the_share_of_the_peak_is_a_column_where_it_was_measured():
    known = {"suite": "end-to-end", "texts_per_s": 9.0, "gflops": 318.0, "least_cosine": 1.0}
    rows = [row("fastflow", "float32", 3.0, tokens=9, **known)]
    rows.append(row("kept", "float32", 5.0, tokens=9, compute_fraction=0.672, **known))
    _, head, first, last = lines_of(rows)[:4]
    assert "of peak" in head
    assert ("67%" in first, "67%" in last) == (False, True)
    assert "of peak" not in lines_of(rows[:1])[1]


def test_the_columns_that_are_shown_are_explained_and_no_others():
    known = {"suite": "end-to-end", "texts_per_s": 9.0, "gflops": 318.0, "least_cosine": 1.0}
    rows = [row("kept", "float32", 5.0, tokens=9, compute_fraction=0.672, **known)]
    shares = [line for line in lines_of(rows) if line.startswith("of peak: ")]
    assert len(shares) == 1
    assert not any(line.startswith(("GB/s", "x ours", "memory")) for line in lines_of(rows))  # nobody is ours here
    del rows[0]["compute_fraction"]
    assert not any(line.startswith("of peak") for line in lines_of(rows))


@pytest.mark.parametrize(
    ("suite", "batch", "tokens", "title", "head"),
    [
        ("encoder", 8, 32, "a model; 2 threads; encoder 8 x 32 tokens", "candidate"),
        ("end-to-end", 1000, 25000, "a model; 2 threads; end-to-end of 1,000 texts, 25,000 tokens", "candidate"),
        ("startup", 1, None, "a model; 2 threads; startup to the first vector", "candidate"),
        ("serve", 1, None, "a model; 2 threads; serve", "candidate"),
        ("flow", 1024, None, "a model; 2 threads", "B = 1,024"),
    ],
)
def test_sizes_are_said_in_words(suite, batch, tokens, title, head):
    assert headings(row("fastflow", "float32", 1.0, suite=suite, batch=batch, tokens=tokens)) == (title, head)


def test_every_suite_has_a_table():
    assert tuple(SUITES) == cli.SUITES


def test_a_flow_is_compared_with_our_one_row_whatever_the_mode_of_its_products():
    known = {"suite": "flow", "gflops": 1.0, "gbs": 1.0, "times_floor": 1.0, "max_abs_err": 1e-6}
    rows = [row("torch", "tf32", 6.0, **known), row("fastflow", "float32", 3.0, **known)]
    _, head, ours, theirs = (line.split(" | ") for line in lines_of(rows)[:4])
    assert [(cells[0], cells[head.index("x ours")]) for cells in (ours, theirs)] == [
        ("fastflow", "1.0"),
        ("torch", "2.0"),
    ]


def test_memory_that_the_system_does_not_tell_is_left_out():
    assert "peak" not in lines_of([row("fastflow", "float32", 3.0)])[1]
