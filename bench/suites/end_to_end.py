"""The end-to-end suite: a list of texts in, vectors out, tokenisation included, in one call.

The texts are real and of every length. fastflow gets the list as a user gives it, and returns calibrated vectors;
Sentence Transformers too, in its defaults; the engines that want padded ids get them as their users would: the same
fast tokenizer, sorted by length, cut into batches. Peers stop at the pooled vectors, which is a little less work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastflow.bench.measure.row import Row
from fastflow.bench.measure.timing import Effort, alternate
from fastflow.bench.peers.encoder import PEERS, Engine, chosen, left_out, missing, open_peers, said
from fastflow.bench.peers.pytorch import settings
from fastflow.bench.report.ratios_encoder import ragged_ratios
from fastflow.bench.suites.encoder import DTYPES, Say, body_of
from fastflow.bench.suites.flow import Results
from fastflow.bench.suites.workbench import Array, Subject, Workbench, least_cosine, reference
from fastflow.errors import FastflowError
from fastflow.model.tokens import Tokenizer
from fastflow.runtime import Runtime

CHECKOUT = Path(__file__).resolve().parent.parent.parent
STSB = CHECKOUT.parent / "shared" / "data" / "sts" / "STSb-test.tsv"
LINES = CHECKOUT / "examples" / "novels.txt"
QUICK_TEXTS = 128
BATCH = 32  # texts in a padded batch: Sentence Transformers' default
CHECKED = 64  # texts, spread over the list, whose vectors are compared with PyTorch's
PADDED = ("torch-eager", "onnxruntime", "openvino")
ONCE_FLOP = 1e12  # a call of more is timed once: it lasts many seconds, and averages over the machine's moods
Embed = Callable[[Sequence[str]], Array]


def run_end_to_end(bench: Workbench, against: Sequence[str] | None, quick: bool, threads: int, say: Say) -> Results:
    """Run the suite on BERT-base with random weights and on the model given, else the one in the package."""
    families, results = chosen(against), Results()
    texts, source = real_texts(quick)
    for subject in (bench.named(), bench.base()):
        with settings(threads):
            run_subject(subject, texts, source, families, threads, say, results)
    results.ratios = ragged_ratios(results.rows)
    return results


def real_texts(quick: bool) -> tuple[list[str], str]:
    """The sentences of STSb-test where the data are, else lines of novels; and what they are, in words."""
    if STSB.is_file():
        lines = STSB.read_text(encoding="utf-8").splitlines()[1:]
        texts, source = [text for line in lines for text in line.split("\t")[2:4]], "the sentences of STSb-test"
    elif LINES.is_file():
        texts, source = LINES.read_text(encoding="utf-8").splitlines(), "the lines of examples/novels.txt"
    else:
        raise FastflowError(f"bench: no texts for the end-to-end suite: neither {STSB} nor {LINES} is there")
    if quick:
        texts, source = texts[:: max(1, len(texts) // QUICK_TEXTS)][:QUICK_TEXTS], f"some of {source}"
    return texts, source


def run_subject(
    subject: Subject, texts: list[str], source: str, families: Sequence[str], threads: int, say: Say, results: Results
) -> None:
    """Check and time everybody on ``texts``; adds to ``results``."""
    say(f"end-to-end: {subject.label}: opening the engines")
    tokenize = Tokenizer(subject.encoder, subject.max_length)
    lengths = np.diff(tokenize(texts).offsets)
    inputs = f"{source}: {len(texts)} texts, {int(lengths.sum())} tokens, {lengths.min()} to {lengths.max()} a text"
    results.subjects.append({"subject": subject.label, "inputs": f"{inputs}; peers stop at pooled vectors"})
    sample = np.unique(np.linspace(0, len(texts) - 1, min(CHECKED, len(texts))).astype(int))
    few = [texts[i] for i in sample]
    candidates = [*_ours(subject, threads)]
    wanted = [(family, dtype) for family in PADDED if family in families for dtype in PEERS[family][1]]
    for engine in open_peers(subject, wanted, threads, results.skipped):
        embed = padded(lambda ids, mask, e=engine: e.prepare(ids, mask)(), tokenize)  # type: ignore[misc]
        candidates.append((engine, embed, embed, None))
    if "sentence-transformers" in families:
        candidates += _sentence_transformers(subject, results.skipped)
    exact = {layers: padded(reference(subject, layers), tokenize)(few) for layers in {entry[3] for entry in candidates}}
    calls, found = {}, {}
    for engine, embed, pooled, layers in candidates:
        key = f"{engine.name} {engine.dtype}"
        try:
            z = np.array(pooled(few))
            found[key] = (
                engine,
                least_cosine(engine.name, engine.dtype, z, exact[layers]),
                float(np.abs(z - exact[layers]).max()),
            )
            embed(few)  # warmed up, all the way
        except Exception as error:  # named with its reason, whoever raised it; ours must not fail
            if engine.name == "fastflow":
                raise
            reason = str(error) if isinstance(error, FastflowError) else f"its call failed: {said(error)}"
            results.skipped.append(left_out(subject, engine.name, engine.dtype, reason))
            continue
        calls[key] = _on(embed, texts)
    say(f"end-to-end: {subject.label}: {len(texts)} texts, {len(calls)} candidates")
    flop = sum(subject.flop(1, int(length)) for length in lengths)
    runs = 1 if flop > ONCE_FLOP else 3
    timings = alternate(calls, Effort(budget_s=0, min_runs=runs, max_runs=runs, sample_s=0, pause_s=5e-2))
    results.add(
        Row.timed(
            timings[key], suite="end-to-end", subject=subject.label, name=engine.name, backend=engine.backend,
            dtype=engine.dtype, threads=threads, batch=len(texts), tokens=int(lengths.sum()), max_abs_err=off,
            least_cosine=cosine, texts_per_s=len(texts) / timings[key].median_ms * 1e3,
            gflops=flop / timings[key].median_ms / 1e6,
        )
        for key, (engine, cosine, off) in found.items()
    )  # fmt: skip


def _on(embed: Embed, texts: Sequence[str]) -> Callable[[], Any]:
    return lambda: embed(texts)


def _nothing(ids: Array, mask: Array) -> Callable[[], Any]:
    raise FastflowError("bench: this candidate takes texts")


# who, texts -> vectors, texts -> pooled vectors, the layers of a plain mean or None for the subject's own pooling
Entry = tuple[Engine, Embed, Embed, tuple[int, ...] | None]


def _ours(subject: Subject, threads: int) -> list[Entry]:
    out: list[Entry] = []
    for dtype in DTYPES:
        runtime = Runtime(subject.model, "cpu", dtype, threads, backend="cpu")
        engine = Engine("fastflow", dtype, f"cpu {body_of(dtype)}", _nothing)
        out.append((engine, runtime.encode, runtime.pool, None))
    return out


def padded(run: Callable[[Array, Array], Any], tokenize: Tokenizer) -> Embed:
    """``run`` on padded batches of texts sorted by length, results in the texts' order."""

    def embed(texts: Sequence[str]) -> Array:
        tokens = tokenize(texts)
        lengths = np.diff(tokens.offsets)
        order, out = np.argsort(-lengths, kind="stable"), None
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            mask = (np.arange(lengths[rows].max()) < lengths[rows, None]).astype(np.int64)
            ids = np.zeros_like(mask)
            ids[mask.astype(bool)] = tokens.select(rows).ids
            z = run(ids, mask)
            out = np.empty((len(texts), z.shape[1]), np.float32) if out is None else out
            out[rows] = z
        return np.zeros((0, 0), np.float32) if out is None else out

    return embed


def _sentence_transformers(subject: Subject, skipped: list[dict[str, Any]]) -> list[Entry]:
    """SentenceTransformer on the plain encoder directory, which gives it the mean of the last layer."""
    name, dtype = "sentence-transformers", "float32"
    reason = missing(name, dtype)
    if reason is None:
        try:
            from sentence_transformers import SentenceTransformer

            from fastflow.bench.suites.workbench import quiet

            with quiet():
                model = SentenceTransformer(
                    str(subject.encoder), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"}
                )
            model.max_seq_length = subject.max_length
            embed: Embed = lambda texts: np.asarray(model.encode(list(texts), show_progress_bar=False))  # noqa: E731
            return [(Engine(name, dtype, "torch", _nothing), embed, embed, (subject.depth,))]
        except Exception as error:  # somebody else's loader raises anything; the run goes on without it
            reason = f"it cannot be opened: {said(error)}"
    skipped.append(left_out(subject, name, dtype, reason))
    return []
