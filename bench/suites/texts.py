"""Texts, checks and timing for the suites of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastflow.bench.measure.compare import Deviation, compare, measure_agreement
from fastflow.bench.measure.row import Array, Results, Subject, make_row
from fastflow.bench.measure.timing import Effort, Timing, alternate, summarise, take_turns
from fastflow.bench.peers.encoder import Embed, EncoderCandidate, TextCandidate, excuse, open_reference
from fastflow.bench.suites.workbench import SEED
from fastflow.errors import FastflowError
from fastflow.model.artifact import load_model
from fastflow.model.tokenizer import Tokens
from fastflow.model.tokenizer.files import load_tokenizer

CHECKOUT = Path(__file__).resolve().parent.parent.parent
STSB = CHECKOUT.parent / "shared" / "data" / "sts" / "STSb-test.tsv"
LINES = CHECKOUT / "examples" / "novels.txt"
BATCH = 32  # texts, Sentence Transformers' default
CHECKED = 64  # texts, spread over the list, that are compared with PyTorch
TEMPLATES = (
    "how do i {} the {} {} when the {} is {} by {}", "my {} {} does not {} after the last {} of {} and {}",
    "what is the best {} for {} {} with a {} {} or {}", "please {} the {} of our {} {}, it {} every {}",
    "{} {} and {} are {} than {} in {}", "the {} {} said that {} will {} its {} to {} this year",
)  # fmt: skip
ENDINGS = ("", " please", " today", " again", " now", " thanks", " quickly")
SLOTS, CHANGED = 6, 0.5  # words of a template, followed by an ending; share of texts that are others with one replaced
Tokenize = Callable[[Sequence[Any]], Tokens]
Judge = Callable[[TextCandidate], Deviation]  # raises if the candidate is wrong


def real_texts(most: int | None) -> tuple[list[str], str]:
    """Return ``most`` (None: all) sentences of STSb-test if present, else lines of novels, and the source."""
    if STSB.is_file():
        lines = STSB.read_text(encoding="utf-8").splitlines()[1:]
        texts, source = [text for line in lines for text in line.split("\t")[2:4]], "the sentences of STSb-test"
    elif LINES.is_file():
        texts, source = LINES.read_text(encoding="utf-8").splitlines(), "the lines of examples/novels.txt"
    else:
        raise FastflowError(f"bench: no texts for the end-to-end suite: neither {STSB} nor {LINES} is there")
    if most is not None:
        texts, source = texts[:: max(1, len(texts) // most)][:most], f"some of {source}"
    return texts, source


def make_near_texts(count: int) -> list[str]:
    """Draw ``count`` distinct texts: templates with words of the packaged vocabulary, or others with one replaced."""
    known = load_tokenizer(load_model("static").encoder).get_vocab()
    words = np.array(sorted(word for word in known if word.isascii() and word.isalpha() and len(word) > 3))
    rng, rows = np.random.default_rng(SEED), count + count // 10 + 10
    sizes = [*[len(words)] * SLOTS, len(ENDINGS), len(TEMPLATES)]
    drawn = rng.integers(sizes, size=(rows, len(sizes)))
    for row in np.flatnonzero(rng.random(rows) < CHANGED).tolist():
        new, place = drawn[row].copy(), rng.integers(SLOTS) if rng.random() < 0.5 else SLOTS
        drawn[row] = drawn[rng.integers(row + 1)]
        drawn[row, place] = new[place]
    of = zip(drawn.tolist(), words[drawn[:, :SLOTS]].tolist(), strict=True)
    texts = (TEMPLATES[kind].format(*some) + ENDINGS[ending] for (*_, ending, kind), some in of)
    return list(dict.fromkeys(texts))[:count]


def make_tokenizer(subject: Subject) -> Tokenize:
    """Return the model's tokenizer with its default prompt."""
    tokenize = load_model(subject.model).tokenizer()
    return lambda texts: tokenize([subject.prompt + text for text in texts])


class PooledCheck:
    """Compares pooled vectors of CHECKED texts with PyTorch's."""

    def __init__(self, subject: Subject, texts: Sequence[str], tokenize: Tokenize) -> None:
        self.subject, self.tokenize = subject, tokenize
        self.few = [texts[i] for i in np.unique(np.linspace(0, len(texts) - 1, min(CHECKED, len(texts))).astype(int))]
        self._exact: dict[tuple[int, ...] | None, Array] = {}

    def __call__(self, candidate: TextCandidate) -> Deviation:
        if candidate.layers not in self._exact:
            run = open_reference(self.subject, candidate.layers)
            self._exact[candidate.layers] = embed_padded(run, self.tokenize)(self.few)
        embed = candidate.embed if candidate.pool is None else candidate.pool
        z = np.concatenate([embed([text]) for text in self.few]) if candidate.alone else np.array(embed(self.few))
        return measure_agreement(candidate, z, self._exact[candidate.layers])


def to_texts(candidate: EncoderCandidate, tokenize: Tokenize) -> TextCandidate:
    """Turn a candidate of padded ids into a candidate of texts."""
    embed = embed_padded(lambda *given: candidate.prepare(*given)(), tokenize)
    return TextCandidate(candidate.name, candidate.dtype, candidate.backend, embed)


def embed_padded(run: Callable[..., Any], tokenize: Tokenize) -> Embed:
    """Return a function that sorts texts by length and calls ``run`` on padded batches; vectors keep the order.

    Of pairs ``run`` gets token types too.
    """

    def embed(texts: Sequence[Any]) -> Array:
        tokens = tokenize(texts)
        lengths = np.diff(tokens.offsets)
        order, out = np.argsort(-lengths, kind="stable"), None
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            mask = (np.arange(lengths[rows].max()) < lengths[rows, None]).astype(np.int64)
            ids = np.zeros_like(mask)
            ids[mask.astype(bool)] = tokens.select(rows).ids
            types = () if tokens.seconds is None else (mask * (mask.cumsum(axis=1) > tokens.seconds[rows, None]),)
            z = run(ids, mask, *types)
            out = np.empty((len(texts), z.shape[1]), np.float32) if out is None else out
            out[rows] = z
        return np.zeros((0, 0), np.float32) if out is None else out

    return embed


class Lists(NamedTuple):
    """The texts: ``together`` in one call, ``few`` one at a time, ``long`` in one call too."""

    together: Sequence[Any]
    few: Sequence[str] = ()
    long: Sequence[str] = ()
    wake: bool = False  # an untimed call precedes each timed one
    quantiles: Mapping[str, float] = {}


Fields = Callable[[Timing], dict[str, Any]]


def compare_texts(
    suite: str, label: str, candidates: Sequence[TextCandidate], judge: Judge, lists: Lists, effort: Effort,
    threads: int, fields: tuple[Fields, ...], results: Results,
) -> None:  # fmt: skip
    """Check ``candidates``, time them on ``lists``, add rows; ``fields``: of ``together``, ``few`` and ``long``."""
    by_key = {candidate.key: candidate for candidate in candidates}

    def admit(candidate: TextCandidate) -> tuple[Embed, Deviation]:
        return candidate.embed, judge(candidate)

    def time_all(calls: Mapping[str, Embed]) -> dict[str, tuple[Timing | None, Timing | None, list[float]]]:
        alone = take_turns(calls, [[text] for text in lists.few], lists.wake) if lists.few else {}
        bulk, long = (
            alternate({key: by_key[key].prepare(texts) for key in calls if texts and not by_key[key].alone}, effort)
            for texts in (lists.together, lists.long)
        )
        return {key: (bulk.get(key), long.get(key), alone.get(key, [])) for key in calls}

    def leave_out(candidate: TextCandidate, reason: str) -> None:
        results.leave_out(label, candidate.key, reason)

    def add(candidate: TextCandidate, accuracy: Deviation, timing: Timing, more: dict[str, Any]) -> None:
        who = {"subject": label, "threads": threads, **candidate.as_fields()}
        results.add([make_row(suite, **who, **accuracy._asdict(), **timing._asdict(), **more)])

    measured = compare(candidates, admit, time_all, excuse, leave_out)
    for number in range(2):
        for candidate, accuracy, (bulk, long, _) in measured:
            if (timing := (bulk, long)[number]) is not None:
                add(candidate, accuracy, timing, fields[2 * number](timing))
    for candidate, accuracy, (*_, seconds) in measured:
        if seconds:
            of_one = summarise(seconds)
            more = {key: float(np.quantile(seconds, q)) * 1e3 for key, q in lists.quantiles.items()}
            add(candidate, accuracy, of_one, fields[1](of_one) | more)
