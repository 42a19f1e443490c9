"""The rerank suite: a query and its documents to logits by a cross-encoder, tokenization included.

Documents are random words of one token each. All engines have the same weights; the correlation of their scores with
PyTorch's in float32 is checked. Engines of padded ids get sorted batches of the same tokenizer.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastflow.bench.measure.compare import Deviation
from fastflow.bench.measure.row import Array, Results, Subject
from fastflow.bench.measure.timing import Effort, Timing
from fastflow.bench.peers.encoder import TextCandidate, choose, list_wanted, open_peers, open_reference
from fastflow.bench.peers.gpu import settings
from fastflow.bench.report.ratios import RERANK, compute_encoder_ratios
from fastflow.bench.suites.encoder import DTYPES, find_instructions
from fastflow.bench.suites.texts import Lists, compare_texts, embed_padded, to_texts
from fastflow.bench.suites.workbench import SEED, SuiteRun
from fastflow.errors import FastflowError
from fastflow.evaluation.agreement import quiet
from fastflow.model.encoder import encoder_shape, max_tokens, read_config
from fastflow.model.tokenizer.files import load_tokenizer
from fastflow.reranker import Reranker

PEERS = ("sentence-transformers", "onnxruntime", "openvino", "fastembed")
QUERY, OWN = 8, 5  # words of the query; different words of a document, without which long ones have nearly one score
LEAST = {"float32": 0.99999, "bfloat16": 0.99, "int8": 0.95}  # correlation of scores with float32's
EFFORT = Effort(budget_s=0, min_runs=3, sample_s=0, pause_s=5e-3)


def run_rerank(request: SuiteRun) -> Results:
    """Run the suite on the cross-encoder given, else on random weights."""
    results, families = Results(), choose(request.against, PEERS, "the rerank suite")
    subject, threads = make_subject(request), request.threads
    inputs = "a query of 8 words and documents of random words, to logits, with tokenization"
    results.subjects.append({"subject": subject.label, "inputs": inputs})
    with settings(threads):
        reference = embed_padded(open_reference(subject), Reranker(subject.encoder).model.pairing.pair)
        candidates = [*open_engines(request, subject, families, results)]
        for documents, tokens in request.sizes.rerank:
            request.say(f"rerank: {documents} documents of {tokens} tokens, {len(candidates)} engines")
            pairs = make_pairs(subject, documents, tokens)
            size = {"batch": documents, "tokens": tokens}

            def add_rate(timing: Timing, size: dict[str, int] = size) -> dict[str, Any]:
                return {**size, "texts_per_s": size["batch"] / timing.median_ms * 1e3}

            judge = partial(check_scores, pairs, reference(pairs))
            of_pairs = Lists(pairs), EFFORT, threads, (add_rate,), results
            compare_texts("rerank", subject.label, candidates, judge, *of_pairs)
    results.ratios = compute_encoder_ratios(results.rows, "rerank {} x {}", RERANK)
    return results


def open_engines(
    request: SuiteRun, subject: Subject, families: Sequence[str], results: Results
) -> Iterator[TextCandidate]:
    """Yield fastflow in every precision, and the peers."""
    for dtype in DTYPES:
        reranker = Reranker(subject.encoder, dtype=dtype, threads=request.threads)
        predict = partial(reranker.predict, activation_fn=torch.nn.Identity())
        yield TextCandidate("fastflow", dtype, f"cpu {find_instructions(dtype)}", predict)
    wanted = [each for of_texts in (False, True) for each in list_wanted(families, of_texts)]
    for engine in open_peers(subject, wanted, request.threads, results):
        yield engine if isinstance(engine, TextCandidate) else to_texts(engine, reranker.model.pairing.pair)


def check_scores(pairs: Sequence[Any], exact: Array, candidate: TextCandidate) -> Deviation:
    """Return the agreement of a candidate's logits with ``exact`` (B, 1); raise a FastflowError if it is wrong."""
    found, wanted = np.ravel(candidate.embed(pairs)), exact[:, 0]
    correlation = float(np.corrcoef(found, wanted)[0, 1])
    if not correlation >= LEAST[candidate.dtype]:
        raise FastflowError(
            f"bench: {candidate.key} has a correlation of {correlation:.5f} with PyTorch in float32, and at least "
            f"{LEAST[candidate.dtype]} is asked; it is not timed, since a wrong result has no speed"
        )
    return Deviation(correlation, float(np.abs(found - wanted).max()))


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
        settings = '{"tokenizer_class": "BertTokenizer", "pad_token": "[PAD]"}'
        (directory / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    shape = encoder_shape(read_config(directory), directory)
    folder = request.bench.folder / "made-rerank"
    folder.mkdir(exist_ok=True)
    said = f"{label}, a cross-encoder: {shape.layers} layers, {shape.hidden} wide"
    return Subject(said, str(directory), directory, (shape.layers,), max_tokens(shape), shape, folder, pairs=True)


def make_pairs(subject: Subject, documents: int, tokens: int) -> list[tuple[str, str]]:
    """Draw a query and documents of ``tokens`` words, each a token of the vocabulary; a document has OWN words."""
    words = sorted(word for word in load_tokenizer(subject.encoder).get_vocab() if word.isascii() and word.isalpha())
    rng = np.random.default_rng(SEED)
    query = " ".join(rng.choice(words, QUERY))
    return [(query, " ".join(rng.choice(rng.choice(words, OWN), tokens))) for _ in range(documents)]
