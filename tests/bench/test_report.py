"""Reports: the ratios of each suite, tables with the fastest first, and files whole."""

import json
import re

import pytest

from fastflow.bench import cli
from fastflow.bench.measure.row import make_row
from fastflow.bench.report import ratios, table
from fastflow.errors import FastflowError

from support.places import ROOT

KEPT = ROOT / "bench" / "results"
FIELDS = {"name", "threads", "value", "unit"}


def row(name, dtype="float32", ms=1.0, **more):
    given = {"suite": "encoder", "subject": "s", "threads": 2, "batch": 1, "tokens": 16, "times_floor": ms}
    return given | {"name": name, "dtype": dtype, "median_ms": ms} | more


def rows_of(text, **more):
    """A row for each ``name dtype milliseconds`` of ``text``."""
    return [row(*one.split()[:2], float(one.split()[2]), **more) for one in text.split(", ")]


FLOWS = [
    *rows_of("fastflow - 0.01, torch-lean-eager - 0.39, torch-eager - 4", threads=1),
    *rows_of("torch-lean-compile - 0.04", threads=1),
    row("fastflow", ms=0.03, batch=1024, threads=1),
    row("torch-lean-eager", ms=0.15, batch=1024, threads=1),
    *rows_of("fastflow - 0.02"),
    row("fastflow", ms=99.0, subject="another"),
]
ENGINES = "fastflow float32 10, onnxruntime float32 12, openvino float32 11, fastflow int8 4, onnxruntime int8 5, "
ENGINES += "fastflow bfloat16 1.1, openvino bfloat16 7.7"
TEXTS = "fastflow float32 10, fastflow bfloat16 5, fastflow int8 2, sentence-transformers float32 60, "
TEXTS += "sentence-transformers bfloat16 30, fastembed float32 25, fastembed int8 3"
STARTS = rows_of("fastflow bfloat16 600, sentence-transformers float32 4000", resident_mb=310.0, peak_mb=500.0)
ON_A_GPU = rows_of("fastflow float32 1, fastflow bfloat16 0.5, torch-eager float32 6, torch-eager bfloat16 4.5")
ON_A_GPU += rows_of("torch-graph bfloat16 0.7")
# the end of the name of a ratio -> its value
RATIOS = {
    "flow": (
        lambda: ratios.compute_flow_ratios(FLOWS, "cpu"),
        [
            ("B=1: fastflow against unfused PyTorch eager, lean (torch-lean-eager)", 39),
            ("the equations (torch-eager)", 400),
            ("compiled ones included (torch-lean-compile)", 4),
            ("B=1: fastflow, median", 10),
            ("B=1024: fastflow against unfused PyTorch eager, lean (torch-lean-eager)", 5),
            ("compiled ones included (torch-lean-eager)", 5),
            ("B=1024: fastflow, median", 30),
            ("B=1: fastflow, median", 20),  # on two threads
        ],
    ),
    "a flow on a GPU": (
        lambda: ratios.compute_flow_ratios(rows_of("fastflow - 1, torch-lean-graph - 2"), "cuda"),
        [
            ("B=1: fastflow against the same in a CUDA graph (torch-lean-graph)", 2),
            ("compiled ones included (torch-lean-graph)", 2),
            ("B=1: fastflow, median", 1000),
        ],
    ),
    "one text": (
        lambda: ratios.compute_encoder_ratios(rows_of(ENGINES)),
        [
            ("1x16: fastflow float32 against openvino float32", 1.1),
            ("1x16: fastflow bfloat16 against openvino bfloat16", 7),
            ("1x16: fastflow int8 against onnxruntime int8", 1.25),
        ],
    ),
    "lists": (  # a library counts with its best backend, in no lower precision
        lambda: ratios.compute_list_ratios(rows_of(TEXTS)),
        [
            ("s: fastflow float32 against fastembed float32", 2.5),
            ("s: fastflow float32 against sentence-transformers float32", 6),
            ("transformers at its best: fastflow float32 against sentence-transformers float32", 6),
            ("fastembed at its best: fastflow float32 against fastembed float32", 2.5),
            ("s: fastflow bfloat16 against sentence-transformers bfloat16", 6),
            ("s: fastflow bfloat16 against sentence-transformers float32", 12),
            ("at its best: fastflow bfloat16 against sentence-transformers bfloat16", 6),
            ("fastembed at its best: fastflow bfloat16 against fastembed float32", 5),
            ("s: fastflow int8 against fastembed int8", 1.5),
            ("s: fastflow int8 against sentence-transformers float32", 30),
            ("transformers at its best: fastflow int8 against sentence-transformers bfloat16", 15),
            ("fastembed at its best: fastflow int8 against fastembed int8", 1.5),
        ],
    ),
    "starts": (
        lambda: ratios.compute_startup_ratios(STARTS),
        [
            ("s: fastflow bfloat16, first vector", 0.6),
            ("s: fastflow bfloat16 against sentence-transformers float32", 4000 / 600),
            ("s: fastflow bfloat16, resident memory", 310),
            ("s: fastflow bfloat16, peak resident memory", 500),
        ],
    ),
    "a GPU": (  # encoders in the same dtype; texts against float32
        lambda: ratios.compute_gpu_encoder_ratios(ON_A_GPU) + ratios.compute_gpu_text_ratios(ON_A_GPU),
        [
            ("fastflow float32 against torch-eager float32", 6),
            ("fastflow bfloat16 against torch-eager bfloat16", 9),
            ("fastflow bfloat16 against torch-graph bfloat16", 1.4),
            ("one text: fastflow bfloat16, text to vector", 0.5),
            ("one text: fastflow bfloat16 against torch-eager float32", 12),
        ],
    ),
    "nothing of ours": (lambda: ratios.compute_flow_ratios(rows_of("torch-lean-eager - 1"), "cpu"), []),
    "nothing of ours on a GPU": (lambda: ratios.compute_gpu_text_ratios(rows_of("torch-eager - 1")), []),
}


@pytest.mark.parametrize("case", RATIOS)
def test_ratios_are_over_the_fastest_peer_of_the_class(case):
    make, wanted = RATIOS[case]
    found = make()
    assert all(set(ratio) == FIELDS for ratio in found)
    for ratio, (name, value) in zip(found, wanted, strict=True):
        assert ratio["name"].endswith(name)
        assert ratio["value"] == pytest.approx(value)


LOAD = {"refused": 0, "failed": 0, "lag_p99_ms": 1.0, "generator_cpu": 0.1, "batch_ms": 100.0}


def served(name, batch, **fields):
    given = {"median_ms": 10.0, "p20_ms": 9.0, "p80_ms": 11.0, "p99_ms": 90.0, "runs": 100, "texts_per_s": 95.0}
    whole = {"suite": "serve", "subject": "a model", "backend": "cpu", "dtype": "float32", "threads": 2}
    return make_row(**{**whole, **given, "name": name, "batch": batch, **fields})


def all_served():
    return [
        served("Runtime alone", 256, texts_per_s=100.0),
        served("Runtime alone", 1),
        served("fastflow", 1, share=0.5, **LOAD),
        served("fastflow", 1, share=3.0, **LOAD | {"refused": 7, "refused_p99_ms": 20.0}),
        served("fastflow", 32, share=1.3, **LOAD),
        served("a peer", 1, share=0.5, **LOAD),
    ]


def test_the_ratios_of_a_server():
    rows = all_served()
    found = ratios.compute_serve_ratios(rows)
    assert [ratio["value"] for ratio in found] == [0.9, 20.0, 0.9, 0.95]
    assert set(found[0]) == FIELDS
    rows.insert(3, rows[2] | {"share": 0.9, "p99_ms": 89.0})
    found = [ratio for ratio in ratios.compute_serve_ratios(rows) if "over that at 90%" in ratio["name"]]
    assert [ratio["value"] for ratio in found] == [90.0 / 89.0]


def test_the_table_of_a_server_has_a_line_for_every_row():
    text = "\n".join(table.make_tables(all_served()))
    assert text.count("\n  fastflow float32") == 3
    assert text.count("a model; 2 threads; serve") == 1, "in one table"
    assert "130%, lists of 32" in text
    assert "256 at a time" in text


def lines_of(rows):
    return [re.sub("   *", " | ", line.strip()) for line in table.make_tables(rows)]


def started(name, dtype, ms, **fields):
    numbers = {"runs": 3, "p20_ms": ms, "p80_ms": ms, "resident_mb": 40.4, "peak_mb": None, "anonymous_mb": 1}
    return row(name, dtype, ms, **numbers | {"suite": "startup", "subject": "a model", "tokens": None} | fields)


def test_the_fastest_comes_first_and_is_compared_with_ours_of_its_dtype():
    rows = [started("torch", "float32", 9.0), started("fastflow", "float32", 3.0), started("other", "int8", 1.0)]
    title, head, *cells = lines_of(rows)[:5]
    assert title == "a model; 2 threads; startup to the first vector"
    assert [line.split(" | ")[0] for line in cells] == ["other int8", "fastflow float32", "torch float32"]
    assert head == "candidate | median | 20-80 % | runs | x ours | resident | anonymous", "no peak: it is not known"
    assert [line.split(" | ")[4] for line in cells] == ["40 MB", "1.00", "3.00"]  # there is no int8 of ours
    rows = [started("fastflow", "float32", 3.0), started("fastflow", "float32", 5.0, subject="another")]
    assert [table.find_table(r)[1] for r in rows] == ["a model", "another"]
    assert sum(line.startswith(("a model;", "another;")) for line in lines_of(rows)) == 2, "a table for each"
    sized = [started("fastflow", "float32", 3.0, suite="encoder", batch=batch, tokens=16) for batch in (1, 8)]
    assert [line for line in lines_of(sized) if ";" in line and "encoder" in line] == [
        f"a model; 2 threads; encoder {batch} x 16 tokens" for batch in (1, 8)
    ]
    assert lines_of([]) == []


def test_a_flow_is_compared_with_our_one_row_whatever_the_mode_of_its_products():
    known = {"suite": "flow", "gflops": 1.0, "gbs": 1.0, "times_floor": 1.0, "max_abs_err": 1e-6}
    rows = [started("torch", "tf32", 6.0, **known), started("fastflow", "float32", 3.0, **known)]
    _, head, *cells = (line.split(" | ") for line in lines_of(rows)[:4])
    assert [(line[0], line[head.index("x ours")]) for line in cells] == [("fastflow", "1.0"), ("torch", "2.0")]


def test_a_column_is_shown_and_explained_if_it_was_measured():
    known = {"suite": "end-to-end", "texts_per_s": 9.0, "gflops": 318.0, "least_cosine": 1.0, "tokens": 9}
    rows = [started("fastflow", "float32", 3.0, **known)]
    rows.append(started("kept", "float32", 5.0, compute_fraction=0.672, **known))
    _, head, first, last = lines_of(rows)[:4]
    assert "of peak" in head
    assert ("67%" in first, "67%" in last) == (False, True)
    assert not any("of peak" in line for line in lines_of(rows[:1]))
    alone = lines_of(rows[1:])
    assert sum(line.startswith("of peak: ") for line in alone) == 1
    assert not any(line.startswith(("GB/s", "x ours", "memory")) for line in alone), "nobody is ours here"


HEADINGS = {
    ("encoder", 8, 32): ("a model; 2 threads; encoder 8 x 32 tokens", "candidate"),
    ("end-to-end", 1000, 25000): ("a model; 2 threads; end-to-end of 1,000 texts, 25,000 tokens", "candidate"),
    ("startup", 1, None): ("a model; 2 threads; startup to the first vector", "candidate"),
    ("serve", 1, None): ("a model; 2 threads; serve", "candidate"),
    ("static", 100, 900): ("a model; 2 threads; static, 100 texts of 900 tokens", "candidate"),
    ("rerank", 100, 20): ("a model; 2 threads; rerank 100 documents of 20 tokens", "candidate"),
    ("duplicates", 1000, None): ("a model; 2 threads; 1,000 texts", "candidate"),
    ("flow", 1024, None): ("a model; 2 threads", "B = 1,024"),
}


def test_sizes_durations_and_numbers_are_readable():
    for (suite, batch, tokens), wanted in HEADINGS.items():
        assert (
            table.make_headings(started("fastflow", "float32", 1.0, suite=suite, batch=batch, tokens=tokens)) == wanted
        )
    assert tuple(table.SUITES) == tuple(cli.SUITES), "every suite has a table"
    found = [table.format_duration(ms) for ms in (0.00512, 0.0123, 0.9996, 12.34, 1250.0)]
    assert found == ["5.12 us", "12.3 us", "1000 us", "12.3 ms", "1.25 s"]
    assert table.shorten({"a": [1.23456789, 2, None], "b": True}) == {"a": [1.23457, 2, None], "b": True}


def report(others=0.0, skipped=()):
    machine = {
        "gpu": None,
        "processor": "some",
        "processors_usable": 2,
        "versions": {},
        "processors_used_by_others": others,
    }
    return {"machine": machine, "rows": [], "ratios": [], "skipped": list(skipped)}


def test_a_reason_is_given_once_with_everybody_whom_it_kept_out():
    reason = "this peer needs onnx, which is not installed"
    absent = [{"subject": "s", "name": name, "reason": reason} for name in ("one float32", "one int8", "one float32")]
    other = {"subject": "t", "name": "*", "threads": 2, "batch": 1024, "reason": "too large"}
    lines = table.make_table(report(skipped=[*absent, other])).splitlines()
    assert [line for line in lines if line.startswith("left out: ")] == [
        f"left out: s: one float32, one int8: {reason}",
        "left out: t, 2 threads, B = 1,024: everybody: too large",
    ]


@pytest.mark.parametrize(("others", "too_much"), [(None, False), (0.0, False), (0.19, False), (0.21, True)])
def test_a_busy_machine_spoils_the_ratios(others, too_much):
    made = report(others)
    assert table.is_busy(made["machine"]) is too_much
    assert ("do not quote these ratios" in table.make_table(made)) is too_much


def test_the_table_of_a_kept_file_is_beside_it():
    kept = KEPT / "zen5" / "end-to-end-minilm-l6"
    made = table.make_table(json.loads(kept.with_suffix(".json").read_text(encoding="utf-8")))
    assert kept.with_suffix(".txt").read_text(encoding="utf-8") == made + "\n"


@pytest.mark.slow
def test_nothing_half_written(tmp_path):
    with pytest.raises(ValueError, match="Out of range float"):
        table.write_json({"value": float("nan")}, tmp_path / "bench.json")
    with pytest.raises(FastflowError, match="cannot be written"):
        table.write_json({"value": 1.0}, tmp_path / "absent" / "bench.json")
    assert list(tmp_path.iterdir()) == []
