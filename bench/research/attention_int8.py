"""Attention in int8: its two products in bytes against bfloat16, in time and in quality.

    python -m fastflow.bench.research.attention_int8 DIR... --sts FILE --out bench/results/attention-int8

The gate, written down before anything was measured: attention's products are of bytes if that saves the encoder in int8
at least ``GAIN`` of its time at 512 tokens, in the shape of MiniLM-L6 or of BERT-base, and costs no encoder DIR more
than ``LOSS`` points of Spearman on the pairs of FILE. For the loss everything but attention is float32. Times are
processor time of one thread, because other work may run beside it.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
from numpy.typing import NDArray

import fastflow
from fastflow.bench.measure.machine import describe
from fastflow.bench.measure.timing import Effort, alternate, cpu_watch
from fastflow.bench.research.attention_int8_page import markdown
from fastflow.bench.research.long_texts import encoder_of, texts_of
from fastflow.bench.research.quality import write
from fastflow.evaluation.evaluate import Pairs, evaluate, read_pairs
from fastflow.kernels._cpu import BF16, INT8, attend_head
from fastflow.kernels.encoder import cpu, reference
from fastflow.kernels.isa import isas
from fastflow.kernels.panels import to_bfloat16

GAIN, LOSS = 0.03, 0.1
LENGTHS, TOKENS = (32, 77, 128, 256, 512), 512  # of the texts that are timed, and of them together
SIZES = {"MiniLM-L6": (6, 12, 32), "BERT-base": (12, 12, 64)}  # layers, heads, columns of a head
FORMATS = {"bfloat16": BF16, "bytes": INT8}
KERNELS, SOURCE = Path(__file__).resolve().parents[2] / "kernels" / "c", Path(__file__).with_suffix(".c")
ROUNDS, TOGETHER = 40, 40  # pairs of times; sentences that make a long text
Array = NDArray[Any]


def timer(folder: Path) -> ctypes.CDLL:
    """The kernels of both kinds of attention with a clock beside them, built as ``setup.py`` builds them."""
    library, compiler = folder / "attention.so", shutil.which("cc") or "cc"
    options = ["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", f"-I{KERNELS}"]
    sources = [SOURCE, *(KERNELS / "encoder" / f"avx512_{name}.c" for name in ("bf16", "vnni"))]
    subprocess.run([compiler, *options, "-o", library, *sources, "-lm"], check=True)
    return ctypes.CDLL(str(library))


def heads_ms(clock: ctypes.CDLL, tokens: int, heads: int, size: int, rests: bool) -> list[float]:
    """Median milliseconds of one text's heads, in bfloat16 and in bytes; ``rests``: most attention is on one token."""
    rng = np.random.default_rng(tokens)
    qkv = rng.standard_normal((tokens, heads, 3, size)).astype(np.float32)
    qkv[:, :, 0] *= 1.5 / np.sqrt(size)
    if rests:
        qkv[:, :, 0, 0], qkv[0, :, 1, 0] = 4, 2
    rows = np.zeros((tokens, 3 * heads * size + 32), np.uint16)
    rows[:, :-32] = to_bfloat16(qkv.reshape(tokens, -1))
    keys, scratch = np.zeros((tokens + 32) * size, np.float32), np.zeros(1 << 17, np.float32)
    out, times = np.zeros((tokens, heads, size), np.float32), np.zeros((ROUNDS, 2))
    given, *rest = (ctypes.c_void_p(array.ctypes.data) for array in (rows, keys, scratch, out, times))
    repeats = max(1, 100_000 // tokens**2)
    clock.time_heads(given, ctypes.c_int64(tokens), heads, size, *rest[:3], ROUNDS, repeats, rest[3])
    return [float(ms) for ms in np.median(times, axis=0) * 1e3]


def times(name: str, clock: ctypes.CDLL) -> list[dict[str, Any]]:
    """Of each length: attention of one text in a layer, and TOKENS tokens through the encoder in int8; one thread."""
    layers, heads, size = SIZES[name]
    kinds = {}
    for kind, form in FORMATS.items():
        with mock.patch.object(cpu, "attends", lambda *_, form=form: form):
            kinds[kind] = encoder_of(name, "int8", 1)[0]
    rows = []
    watch = partial(cpu_watch, clock=time.thread_time)
    for tokens in LENGTHS:
        texts = TOKENS // tokens
        ids, offsets = texts_of(texts, tokens)
        calls = {kind: (lambda e=encoder, i=ids, o=offsets: e(i, o)) for kind, encoder in kinds.items()}
        for call in calls.values():
            call()
        found = alternate(calls, Effort(budget_s=4, min_runs=9, max_runs=60, sample_s=0, pause_s=0), watch)
        flat, rests = (heads_ms(clock, tokens, heads, size, rest) for rest in (False, True))
        whole = {kind: timing.median_ms for kind, timing in found.items()}
        rows.append({
            "model": name, "head": size, "tokens": tokens, "texts": texts, "whole": whole,
            "attention": dict(zip(FORMATS, flat, strict=True)),
            "attention, most on one token": dict(zip(FORMATS, rests, strict=True)),
            "share": flat[0] * layers * texts / whole["bfloat16"], "runs": found["bytes"].runs,
        })  # fmt: skip
        click.echo(json.dumps(rows[-1]), err=True)
    return rows


class Attending:
    """In the place of ``reference.attention``: the compiled attention of ``form``, float32 in and out.

    ``cosines`` collects those of each token's result in each head with float64, of the first ``watched`` texts.
    """

    def __init__(self, form: int | None, watched: int) -> None:
        self.form, self.left, self.cosines = form, watched, [np.empty(0)]
        self.exact = reference.attention

    def __call__(self, qkv: Array, offsets: Array, heads: int, *rest: Any) -> Array:
        """As ``reference.attention``, without windows and biases."""
        if self.form is None or any(argument is not None for argument in rest):
            return self.exact(qkv, offsets, heads, *rest)
        out = np.empty((len(qkv), qkv.shape[1] // 3), np.float32)
        for start, stop in pairwise(offsets):
            out[start:stop] = self.text(np.ascontiguousarray(qkv[start:stop]), heads)
            if self.left > 0:
                self.left -= 1
                want = self.exact(qkv[start:stop].astype(np.float64), np.array([0, stop - start]), heads)
                a, b = (x.reshape((stop - start) * heads, -1) for x in (out[start:stop], want))
                self.cosines.append((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))
        return out

    def text(self, qkv: Array, heads: int) -> Array:
        """One text, head by head: (T, 3D) -> (T, D)."""
        number, _, vector, _ = isas()["avx512"]
        tokens, size = len(qkv), qkv.shape[1] // 3 // heads
        padded = -(-size // (2 * vector)) * 2 * vector
        given = np.zeros((heads, tokens, 3, padded), np.float32)
        given[..., :size] = qkv.reshape(tokens, 3, heads, size).transpose(2, 0, 1, 3)
        given[:, :, 0] *= np.float32(size**-0.5)
        out = np.empty((heads, tokens, padded), np.float32)
        for head, to in zip(given, out, strict=True):
            attend_head(number, self.form, head.reshape(tokens, -1), to, -1, None)
        return out[..., :size].transpose(1, 0, 2).reshape(tokens, -1)


def losses(encoder: str, pairs: Pairs) -> dict[str, Any]:
    """Spearman on ``pairs`` and cosines of long texts, with attention in float32 and in each of FORMATS."""
    runtime = fastflow.Runtime(encoder, backend="reference", dtype="float32")
    sentences = list(dict.fromkeys(pairs.first + pairs.second))
    long = [" ".join(sentences[i : i + TOGETHER]) for i in range(0, 32 * TOGETHER, TOGETHER)]
    found, want = {}, runtime.encode(long, normalize_embeddings=True)
    for kind, form in {"float32": None, **FORMATS}.items():
        attending = Attending(form, 6 * 32)  # of all layers
        with mock.patch.object(reference, "attention", attending):
            cosines = (runtime.encode(long, normalize_embeddings=True) * want).sum(axis=1)
            row = evaluate(lambda texts: runtime.encode(texts), [pairs])["rows"][0]
        heads = np.concatenate(attending.cosines) if form is not None else np.ones(1)
        found[kind] = {
            "spearman": row["all"], "long texts": [float(cosines.min()), float(np.median(cosines))],
            "heads": [float(np.quantile(heads, q)) for q in (0.001, 0.5)],
        }  # fmt: skip
    click.echo(json.dumps(found), err=True)
    return found


@click.command()
@click.argument("encoders", nargs=-1, required=True)
@click.option("--sts", required=True, type=click.Path(exists=True, path_type=Path), help="Pairs with scores.")
@click.option("--only", type=click.Choice(("times", "quality")), help="Measure this; take the rest from OUT.json.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(encoders: tuple[str, ...], sts: Path, only: str | None, out: Path) -> None:
    """Measure attention in bytes."""
    names = " ".join(f"…/{Path(name).name}" for name in encoders)
    result: dict[str, Any] = {
        "command": f"python -m fastflow.bench.research.attention_int8 {names} --sts …/{sts.name} --out {out}",
        "machine": describe(), "pairs": sts.stem,
    }  # fmt: skip
    if only:
        earlier = out.with_suffix(".json")
        if not earlier.is_file():
            raise click.UsageError(f"--only takes the rest from {earlier}, which is not there: leave --only out")
        result = json.loads(earlier.read_text(encoding="utf-8")) | result
    if only != "quality":
        with tempfile.TemporaryDirectory() as folder:
            clock = timer(Path(folder))
            result["times"] = [row for name in SIZES for row in times(name, clock)]
    if only != "times":
        pairs = read_pairs(sts)
        result["quality"] = {Path(name).name: losses(name, pairs) for name in encoders}
    whole = [row["whole"] for row in result["times"] if row["tokens"] == LENGTHS[-1]]
    gains = [1 - ms["bytes"] / ms["bfloat16"] for ms in whole]
    lost = [kinds["float32"]["spearman"] - kinds["bytes"]["spearman"] for kinds in result["quality"].values()]
    result["gate"] = {"gain": GAIN, "loss": LOSS, "gains": gains, "losses": lost}
    result["built"] = max(gains) >= GAIN and max(lost) <= LOSS
    write(out, result, markdown(result))


if __name__ == "__main__":
    main()
