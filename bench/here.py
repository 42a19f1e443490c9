"""``fastflow bench`` without a suite: texts a second on this machine, in under a minute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import fastflow.train.selection
from fastflow.bench.cli import say
from fastflow.bench.measure.machine import Neighbours, usable_threads
from fastflow.bench.measure.timing import Effort, alternate
from fastflow.bench.report.table import is_busy
from fastflow.errors import FastflowError, UsageError
from fastflow.kernels.processor import default_threads, isa
from fastflow.model import Model, VectorModel
from fastflow.model.artifact import load_model
from fastflow.model.encoder import is_static
from fastflow.runtime import Runtime

DTYPES: tuple[Any, ...] = ("float32", "bfloat16", "int8")
PEERS = ("sentence-transformers", "fastembed", "onnxruntime")  # timed in float32
OF_TABLES = ("model2vec", "sentence-transformers", "tokenizers-numpy")  # peers that open a token table
ALL_LAYERS = "sentence-transformers"  # this peer computes unneeded layers too
SENTENCES = Path(fastflow.train.selection.__path__[0]) / "probe.txt"
CALL_S = 1.0  # seconds of a call of the slowest engine
FEWEST, MOST = 32, 4096  # texts
EFFORT = Effort(budget_s=8, min_runs=2, max_runs=5, sample_s=0.1, limit_s=20)


def measure_here(model: str | None, threads: int | None = None) -> dict[str, Any]:
    """Measure texts a second of ``model`` in each dtype, and of every installed peer, on the CPU.

    Returns data for ``make_table``. The ``ratio`` of a row is to the first peer of equal work, else to fastflow in
    float32. Raises a UsageError without an encoder.
    """
    count, neighbours = threads or default_threads(), Neighbours()
    calls, skipped = open_ours(model, count)
    every = SENTENCES.read_text(encoding="utf-8").splitlines()
    with_peers, left_out = _open_others(model, count, every)
    calls |= with_peers
    count_of_texts = min(_count_texts(embed, every) for embed in calls.values())
    texts = [every[i % len(every)] for i in range(count_of_texts)]
    say(f"{len(calls)} engines take turns at {len(texts):,} texts, {EFFORT.limit_s:.0f} seconds at most")
    timings = alternate({" ".join(who): partial(embed, texts) for who, embed in calls.items()}, EFFORT)
    speeds = {who: len(texts) / timings[" ".join(who)].median_ms * 1e3 for who in calls}
    runtime = Runtime(model, "cpu", "float32", count)
    whole = has_layers(runtime)
    equal = PEERS if whole else OF_TABLES if find_table(model) else [name for name in PEERS if name != ALL_LAYERS]
    base = next((who for name in equal for who in speeds if who[0] == name), ("fastflow", "float32"))
    rows = [
        {"name": name, "dtype": dtype, "texts_per_s": speed, "ratio": speed / speeds[base]}
        for (name, dtype), speed in speeds.items()
    ]
    info = runtime.info()
    calibration = "" if info["calibration"] in (None, "none") else f", calibration {info['calibration']}"
    about = {
        "model": info["model"], "work": f"{info['pooling']}{calibration}", "layers": whole,
        "table": find_table(model) is not None, "threads": count, "instructions": isa(), "texts": len(texts),
        "against": base[0], "processors_used_by_others": neighbours.processors(),
        "processors_usable": usable_threads(),
    }  # fmt: skip
    return {**about, "rows": rows, "skipped": skipped + left_out}


def find_table(model: str | None) -> Path | None:
    """Return the directory of ``model``'s token table, or None."""
    loaded = load_model(model)
    return loaded.encoder if isinstance(loaded, Model) and is_static(loaded.encoder) else None


def has_layers(runtime: Runtime) -> bool:
    """Return whether the model computes layers; without layers, all dtypes compute the same."""
    model = runtime.session.model
    return not (isinstance(model, Model) and model.pooling.of_embeddings)


def open_ours(model: str | None, threads: int) -> tuple[dict[tuple[str, str], Any], list[str]]:
    """Return fastflow's ``encode`` in each dtype that runs here, and reasons why others do not."""
    calls: dict[tuple[str, str], Any] = {}
    skipped = []
    for dtype in DTYPES:
        say(f"fastflow {dtype}")
        try:
            runtime = Runtime(model, "cpu", dtype, threads)
        except FastflowError as error:
            if dtype == "float32":
                raise
            skipped.append(f"fastflow {dtype}: {error}")
            continue
        if isinstance(runtime.session.model, VectorModel):
            raise UsageError(f"{model} calibrates vectors: time it with fastflow bench --suite flow -m {model}")
        calls["fastflow", dtype] = runtime.encode
        if not has_layers(runtime):
            break
    return calls, skipped


def _open_others(model: str | None, threads: int, few: Sequence[str]) -> tuple[dict[tuple[str, str], Any], list[str]]:
    if find_spec("torch") is None or find_spec("transformers") is None:
        return {}, ["the other engines: they are made with PyTorch and transformers, which are not installed"]
    from fastflow.bench.measure.compare import Deviation, compare
    from fastflow.bench.measure.row import Results
    from fastflow.bench.peers.encoder import PEERS as NEEDED
    from fastflow.bench.peers.encoder import TextCandidate, excuse, missing, open_peers
    from fastflow.bench.suites.static import open_engines
    from fastflow.bench.suites.texts import PooledCheck, make_tokenizer, to_texts
    from fastflow.bench.suites.workbench import open_workbench

    say("the other engines that are installed are opened")
    if (table := find_table(model)) is not None:
        opened, left_out = open_engines(table, threads, few)
        return {(each.name, each.dtype): each.embed for each in opened}, left_out
    absent = [name for name in PEERS if missing(name, "float32")]
    needs = {name: " ".join(module.replace("_", "-") for module in NEEDED[name].modules) for name in absent}
    lost = Results()
    with open_workbench(model) as bench:
        subject = bench.pick_subject()
        tokenize = make_tokenizer(subject)
        check = PooledCheck(subject, few, tokenize)
        wanted = [(name, "float32") for name in PEERS if name not in absent]
        peers = (each if isinstance(each, TextCandidate) else to_texts(each, tokenize)
                 for each in open_peers(subject, wanted, threads, lost))  # fmt: skip

        def admit(candidate: TextCandidate) -> tuple[Any, Deviation]:
            say(f"{candidate.key}: checked against PyTorch")
            return candidate.embed, check(candidate)

        right = compare(peers, admit, dict, excuse, lambda who, reason: lost.leave_out("", who.name, reason))
    left_out = [f"{name}: not installed (pip install {needs[name]})" for name in absent]
    left_out += [f"{each['name']}: {each['reason']}" for each in lost.skipped]
    return {(who.name, who.dtype): embed for who, _, embed in right}, left_out


def _count_texts(embed: Any, texts: Sequence[str]) -> int:
    embed(texts)
    start = perf_counter()
    embed(texts)
    return int(max(FEWEST, min(MOST, CALL_S * len(texts) / (perf_counter() - start))))


def make_table(found: dict[str, Any]) -> str:
    """Format the result of ``measure_here``."""
    threads = f"{found['threads']} thread{'s' if found['threads'] > 1 else ''}"
    kernels = f"kernels for {found['instructions']}"
    lines = [f"model {found['model']}, {threads}, {kernels}, {found['texts']:,} short sentences: texts a second"]
    names = {row["name"] for row in found["rows"]}
    unequal = ALL_LAYERS if not found["layers"] and not found["table"] and ALL_LAYERS in names else ""
    for row in found["rows"]:
        who, mark = f"{row['name']} {row['dtype']}", " *" * (row["name"] == unequal)
        ratio = f"{row['ratio']:.1f}" if row["ratio"] >= 0.95 else f"{row['ratio']:.2g}"
        lines.append(f"  {who:<30} {row['texts_per_s']:>9,.0f}  {ratio:>6} x {found['against']}{mark}")
    if unequal:
        lines.append(
            f"* more work: this model needs no layer of its encoder, and {ALL_LAYERS} computes all of them; name a "
            "model of Sentence Transformers by -m to compare equal work"
        )
    if len(names) > 1:
        theirs = "; the others the encoder up to its last layer"
        if not found["layers"]:
            equal = names - {"fastflow", unequal}
            less = " without the calibration" * (", calibration " in found["work"])
            theirs = f"; {', '.join(sorted(equal))} the same{less}" if equal else ""
        lines.append(f"fastflow computes {found['work']}{theirs}")
    if found["texts"] == FEWEST:
        lines.append(f"the slowest takes {CALL_S:g} s or more for {FEWEST} texts: of so few, speeds are rough")
    if (used := found["processors_used_by_others"]) is not None:
        advice = ": too busy to compare engines, run this again on a quiet machine" if is_busy(found) else ""
        lines.append(f"other processes used {used:.2f} of {found['processors_usable']} processors meanwhile{advice}")
    return "\n".join([*lines, *(f"left out: {reason}" for reason in found["skipped"])])
