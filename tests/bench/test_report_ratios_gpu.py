"""Ratios on a GPU: ours against each peer of the same dtype, and one text against the clock."""

from fastflow.bench.report.ratios_gpu import ALONE_MS, encoder_ratios, text_ratios


def row(name, dtype, median, batch=1, tokens=16):
    return {"name": name, "dtype": dtype, "median_ms": median, "batch": batch, "tokens": tokens, "threads": 1,
            "subject": "a model"}  # fmt: skip


def figures(ratios):
    return {(r["name"].partition(": ")[2], r["aim"]): (round(r["value"], 3), r["reached"]) for r in ratios}


def test_peers_of_another_dtype_are_not_compared_but_where_an_aim_says_so():
    rows = [row("fastflow", "float32", 1.0), row("fastflow", "bfloat16", 0.5), row("torch-eager", "float32", 6.0),
            row("torch-eager", "bfloat16", 4.5), row("torch-graph", "bfloat16", 0.7)]  # fmt: skip
    values = sorted(value for value, _ in figures(encoder_ratios(rows)).values())
    assert values == sorted([6.0, 0.7 / 0.5, 12.0, 0.7 / 0.5])  # the fastest of its dtype, and the two aims
    aims = {aim: (value, reached) for (_, aim), (value, reached) in figures(encoder_ratios(rows)).items() if aim}
    assert aims == {8.0: (12.0, True), 1.2: (1.4, True)}


def test_larger_batches_have_no_aims():
    rows = [row("fastflow", "bfloat16", 1.0, 32), row("torch-eager", "bfloat16", 2.0, 32)]
    assert [(r["value"], r["must"], r["aim"]) for r in encoder_ratios(rows)] == [(2.0, None, None)]


def test_one_text_is_held_against_the_clock():
    for median, reached in ((ALONE_MS * 0.9, True), (ALONE_MS * 1.1, False)):
        found = figures(text_ratios([row("fastflow", "bfloat16", median)]))
        assert found == {("fastflow bfloat16, text to vector", ALONE_MS): (round(median, 3), reached)}
    assert text_ratios([row("torch-eager", "float32", 1.0)]) == [], "nothing of ours was measured"
