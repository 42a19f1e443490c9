"""The rerank suite: a query and its documents to logits by a cross-encoder, tokenization included.

Documents are random words of one token each. All engines have the same weights; the correlation of their scores with
PyTorch's in float32 is checked.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastflow.bench.measure.compare import Candidate, Deviation, compare
from fastflow.bench.measure.row import Array, Results, Subject, make_row
from fastflow.bench.measure.timing import Call, Effort, Timing, alternate
from fastflow.bench.peers.encoder import choose, excuse, first_line, missing
from fastflow.bench.peers.engines import BATCH, fuse, make_session_options, quantise, silence
from fastflow.bench.peers.gpu import settings
from fastflow.bench.report.ratios import compute_rerank_ratios
from fastflow.bench.suites.encoder import DTYPES, find_instructions
from fastflow.bench.suites.workbench import SEED, SuiteRun
from fastflow.errors import FastflowError
from fastflow.evaluation.agreement import quiet
from fastflow.model.encoder import encoder_shape, max_tokens, read_config
from fastflow.model.tokenizer.files import load_tokenizer
from fastflow.reranker import Reranker

PEERS = {"sentence-transformers": ("float32", "bfloat16"), "onnxruntime": ("float32", "int8")}
NAMES = ("input_ids", "attention_mask", "token_type_ids")
QUERY, OWN = 8, 5  # words of the query; different words of a document, without which long ones have nearly one score
LEAST = {"float32": 0.99999, "bfloat16": 0.99, "int8": 0.95}  # correlation of scores with float32's
EFFORT = Effort(budget_s=0, min_runs=3, sample_s=0, pause_s=5e-3)
Pairs = Sequence[tuple[str, str]]
Score = Callable[[Pairs], Array]  # pairs -> logits (B,) float32


@dataclass(frozen=True)
class PairCandidate(Candidate):
    """An engine that scores pairs."""

    score: Score


def run_rerank(request: SuiteRun) -> Results:
    """Run the suite on the cross-encoder given, else on random weights."""
    results, families = Results(), choose(request.against, PEERS, "the rerank suite")
    subject = make_subject(request)
    inputs = "a query of 8 words and documents of random words, to logits, with tokenization"
    results.subjects.append({"subject": subject.label, "inputs": inputs})
    with settings(request.threads):
        candidates = [
            PairCandidate(
                "fastflow", dtype, f"cpu {find_instructions(dtype)}", open_ours(subject, dtype, request.threads)
            )
            for dtype in DTYPES
        ]
        for family, dtype in [(name, each) for name in families for each in PEERS[name]]:
            if (reason := missing(family, dtype)) is None:
                try:
                    score = OPENS[family](subject, dtype, request.threads)
                    candidates.append(PairCandidate(family, dtype, family.partition("-")[0], score))
                except Exception as error:
                    reason = f"it cannot be opened: {first_line(error)}"
            if reason is not None:
                results.leave_out(subject.label, f"{family} {dtype}", reason)
        exact = open_cross_encoder(subject, "float32", request.threads)
        for documents, tokens in request.sizes.rerank:
            request.say(f"rerank: {documents} documents of {tokens} tokens, {len(candidates)} engines")
            pairs = make_pairs(subject, documents, tokens)
            results.add(measure_pairs(subject, candidates, pairs, exact(pairs), tokens, request.threads, results))
    results.ratios = compute_rerank_ratios(results.rows)
    return results


def measure_pairs(
    subject: Subject, candidates: list[PairCandidate], pairs: Pairs, exact: Array, tokens: int, threads: int,
    results: Results,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the rows of one list of pairs; a wrong or failing peer leaves ``candidates``."""

    def admit(candidate: PairCandidate) -> tuple[Call, Deviation]:
        found = candidate.score(pairs)
        correlation = float(np.corrcoef(found, exact)[0, 1])
        if not correlation >= LEAST[candidate.dtype]:
            raise FastflowError(
                f"bench: {candidate.key} has a correlation of {correlation:.5f} with PyTorch in float32, and at least "
                f"{LEAST[candidate.dtype]} is asked; it is not timed, since a wrong result has no speed"
            )
        return partial(candidate.score, pairs), Deviation(correlation, float(np.abs(found - exact).max()))

    def leave_out(candidate: PairCandidate, reason: str) -> None:
        results.leave_out(subject.label, candidate.key, f"{len(pairs)} x {tokens}: {reason}")
        candidates.remove(candidate)

    def time_all(calls: Mapping[str, Call]) -> Mapping[str, Timing]:
        return alternate(calls, EFFORT)

    return [
        make_row(
            "rerank", subject=subject.label, **candidate.as_fields(), threads=threads, batch=len(pairs), tokens=tokens,
            **timing._asdict(), **accuracy._asdict(), texts_per_s=len(pairs) / timing.median_ms * 1e3,
        )
        for candidate, accuracy, timing in compare(list(candidates), admit, time_all, excuse, leave_out)
    ]  # fmt: skip


def make_subject(request: SuiteRun) -> Subject:
    """Return the directory given, or a random BERT with a head of one label."""
    directory, label = Path(request.bench.model or request.bench.folder / "judge"), "the model given"
    if request.bench.model is None:
        import transformers

        base = request.bench.base()
        label = base.label.partition(":")[0]
        with quiet():
            torch.manual_seed(SEED)
            config = transformers.AutoConfig.from_pretrained(base.encoder, num_labels=1, initializer_range=0.05)
            transformers.BertForSequenceClassification(config).eval().save_pretrained(directory)
        shutil.copy(base.encoder / "tokenizer.json", directory)
        (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', encoding="utf-8")
    shape = encoder_shape(read_config(directory), directory)
    folder = request.bench.folder / "made-rerank"
    folder.mkdir(exist_ok=True)
    said = f"{label}, a cross-encoder: {shape.layers} layers, {shape.hidden} wide"
    return Subject(said, str(directory), directory, (shape.layers,), max_tokens(shape), shape, folder, mode="cls")


def make_pairs(subject: Subject, documents: int, tokens: int) -> list[tuple[str, str]]:
    """Draw a query and documents of ``tokens`` words, each a token of the vocabulary; a document has OWN words."""
    words = sorted(word for word in load_tokenizer(subject.encoder).get_vocab() if word.isascii() and word.isalpha())
    rng = np.random.default_rng(SEED)
    query = " ".join(rng.choice(words, QUERY))
    return [(query, " ".join(rng.choice(rng.choice(words, OWN), tokens))) for _ in range(documents)]


def open_ours(subject: Subject, dtype: Any, threads: int) -> Score:
    """Open fastflow's Reranker."""
    reranker = Reranker(subject.encoder, dtype=dtype, threads=threads)
    return lambda pairs: np.asarray(reranker.predict(pairs, activation_fn=torch.nn.Identity()))


def open_cross_encoder(subject: Subject, dtype: str, _: int) -> Score:
    """Open CrossEncoder as users call it."""
    from sentence_transformers import CrossEncoder

    with quiet():
        model = CrossEncoder(str(subject.encoder), device="cpu", local_files_only=True, model_kwargs={"dtype": dtype})
    given: Any = {"batch_size": BATCH, "show_progress_bar": False, "activation_fn": torch.nn.Identity()}
    return lambda pairs: np.asarray(model.predict(list(pairs), **given), np.float32)


def open_onnxruntime(subject: Subject, dtype: str, threads: int) -> Score:
    """Open ONNX Runtime on the fused graph, with the library of tokenizers."""
    import onnxruntime as library
    import transformers

    path = subject.folder / "model.onnx"
    if not path.exists():
        with quiet():
            model = transformers.AutoModelForSequenceClassification.from_pretrained(
                subject.encoder, attn_implementation="eager", dtype=torch.float32
            )
        ids = torch.randint(5, 100, (2, 8))
        free = {name: {0: "batch", 1: "tokens"} for name in NAMES} | {"logits": {0: "batch"}}
        with torch.inference_mode(False), torch.no_grad(), silence():
            torch.onnx.export(
                model.eval(), (ids, torch.ones_like(ids), torch.zeros_like(ids)), str(path), input_names=list(NAMES),
                output_names=["logits"], dynamic_axes=free, opset_version=17, dynamo=False,
            )  # fmt: skip
    graph = quantise(subject) if dtype == "int8" else fuse(subject)
    session = library.InferenceSession(str(graph), make_session_options(threads), providers=["CPUExecutionProvider"])
    tokenizer = load_tokenizer(subject.encoder)
    tokenizer.enable_truncation(subject.max_length)
    tokenizer.enable_padding()

    def score(pairs: Pairs) -> Array:
        found = []
        for start in range(0, len(pairs), BATCH):
            encodings = tokenizer.encode_batch_fast(list(pairs[start : start + BATCH]))
            fields = ([getattr(each, name) for each in encodings] for name in ("ids", "attention_mask", "type_ids"))
            given = dict(zip(NAMES, map(np.array, fields), strict=True))
            found.append(session.run(None, given)[0][:, 0])
        return np.concatenate(found)

    return score


OPENS = {"sentence-transformers": open_cross_encoder, "onnxruntime": open_onnxruntime}
