"""Tables of the text suites: the fastest first, ratios over ours of the same dtype, sizes in words."""

import pytest

from fastflow.bench.report.encoder import heading, megabytes, shape, table


def row(name, dtype, median, **fields):
    startup = {"suite": "startup", "subject": "a model", "batch": 1, "tokens": None, "threads": 2}
    numbers = {"runs": 3, "p20_ms": median, "p80_ms": median, "resident_mb": 40.4, "peak_mb": None, "anonymous_mb": 1}
    return startup | numbers | {"name": name, "dtype": dtype, "median_ms": median} | fields


def lines_of(rows):
    return table(rows, lambda cells: [" | ".join(line) for line in cells], lambda ms: f"{ms:g} ms")


def test_the_fastest_comes_first_and_is_compared_with_ours_of_its_dtype():
    rows = [row("torch", "float32", 9.0), row("fastflow", "float32", 3.0), row("other", "int8", 1.0)]
    title, head, *cells = lines_of(rows)[:5]
    assert title == "a model; 2 threads; startup to the first vector"
    assert [line.split(" | ")[0] for line in cells] == ["other int8", "fastflow float32", "torch float32"]
    ratio = head.split(" | ").index("x ours")
    assert [line.split(" | ")[ratio] for line in cells] == ["", "1.00", "3.00"]


def test_each_comparison_has_a_table_of_its_own():
    rows = [row("fastflow", "float32", 3.0), row("fastflow", "float32", 5.0, subject="another")]
    assert [shape(r)[1] for r in rows] == ["a model", "another"]
    assert sum(line.startswith(("a model;", "another;")) for line in lines_of(rows)) == 2
    assert lines_of([]) == []


def test_the_share_of_the_peak_is_a_column_where_it_was_measured():
    known = {"suite": "end-to-end", "texts_per_s": 9.0, "gflops": 318.0, "least_cosine": 1.0}
    rows = [row("fastflow", "float32", 3.0, tokens=9, **known)]
    rows.append(row("kept", "float32", 5.0, tokens=9, compute_fraction=0.672, **known))
    _, head, first, last = (line.split(" | ") for line in lines_of(rows)[:4])
    assert (first[head.index("of peak")], last[head.index("of peak")]) == ("", "67%")
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
    ("given", "words"),
    [
        (("encoder", 8, 32), "8 x 32 tokens"),
        (("end-to-end", 1000, 25000), "of 1,000 texts, 25,000 tokens"),
        (("startup", 1, None), "to the first vector"),
    ],
)
def test_sizes_are_said_in_words(given, words):
    assert heading(*given) == words


def test_memory_that_the_system_does_not_tell_is_left_out():
    assert (megabytes(None), megabytes(40.4)) == ("", "40 MB")
