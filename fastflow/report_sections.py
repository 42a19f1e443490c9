"""The sections of a report that score similarity: STS sets, edit distance, QNLI, nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastflow import report_plots as plots
from fastflow.analysis_lexical import SMALL, bias, distances
from fastflow.evaluate import Labelled, Pairs, auc, evaluate, similarities, spearman
from fastflow.report_subjects import Subject
from fastflow.vectors import cosine

NEIGHBOURS = 3
QUERY_WORDS = (5, 14)  # neighbours of very short or very long sentences say little


@dataclass
class Table:
    """Columns and rows of text; the first column is the row's name."""

    caption: str
    columns: list[str]
    rows: list[list[str]]


@dataclass
class Plot:
    """A drawing as SVG, and what it shows in words."""

    svg: str
    caption: str


@dataclass
class Section:
    """A titled part of the page; ``data`` is what --json holds under ``id``."""

    id: str
    title: str
    text: str
    data: Any
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    lists: list[tuple[str, list[tuple[str, list[str]]]]] = field(default_factory=list)  # heading, then named lists


def similarity(subjects: Sequence[Subject], sets: Sequence[Pairs]) -> Section:
    """Spearman of every set, in both aggregations."""
    data = {subject.name: evaluate(subject, sets) for subject in subjects}
    names = [pairs.name for pairs in sets]
    scored = {name: {row["set"]: row for row in result["rows"]} for name, result in data.items()}
    rows = []
    for pairs in sets:
        cells = [f"{row['all']:.2f} / {row['wmean']:.2f}" for row in (scored[s.name][pairs.name] for s in subjects)]
        rows.append([pairs.name, *cells, f"{len(pairs.scores):,}"])
    averages = [data[s.name]["average"] for s in subjects]
    rows.append(
        [f"mean of {len(averages[0]['sets'])}", *(f"{mean['all']:.2f} / {mean['wmean']:.2f}" for mean in averages), ""]
    )
    drawn = plots.dots(
        names, {s.name: [scored[s.name][n]["all"] for n in names] for s in subjects}, "Spearman x100, all"
    )
    return Section(
        "similarity",
        "Similarity: Spearman with human scores",
        "Spearman ×100 of cosine against gold. 'all' ranks a set's pairs together; 'wmean' averages its subsets by "
        "size, as the paper does. The mean is over STS12-16, STSb-test and SICK-R-test when all seven are given.",
        data,
        [Table("all / wmean", ["set", *(s.name for s in subjects), "pairs"], rows)],
        [Plot(drawn, "Spearman ×100 ('all') of every set; further right is better.")],
    )


def lexical(subjects: Sequence[Subject], sets: Sequence[Pairs]) -> Section:
    """Spearman with edit distance, and the scatter of pairs that differ by few words."""
    rows, data, drawn = [], {}, []
    closest = next((p for name in ("STSb-dev", "STSb-test") for p in sets if p.name == name), None)
    shown = closest or max(sets, key=lambda pairs: len(pairs.scores))
    for pairs in sets:
        edits = distances(pairs)
        cosines = {subject.name: similarities(subject, pairs) for subject in subjects}
        measured = {name: bias(pairs, edits, values) for name, values in cosines.items()}
        gold = 100 * spearman(edits, pairs.scores)
        data[pairs.name] = {"gold": gold, "subjects": measured}
        rows.append([pairs.name, f"{gold:.1f}", *(f"{measured[s.name]['edit']:.1f}" for s in subjects)])
        few = edits <= SMALL
        if pairs is shown and few.sum() > 1:
            panels = {name: values[few] for name, values in cosines.items()}
            drawn = [
                Plot(
                    plots.scatter(edits[few], panels, pairs.scores[few]),
                    f"{pairs.name}, the {few.sum():,} pairs that differ by at most {SMALL} words: cosine against edit "
                    "distance, coloured by the human score. Where cosine follows meaning, colours part from bottom "
                    "to top within each column. Spearman ×100 with the human score among these pairs: "
                    + ", ".join(f"{s.name} {measured[s.name]['small_gold']:.1f}" for s in subjects)
                    + ".",
                )
            ]
    return Section(
        "lexical",
        "Lexical bias: Spearman with edit distance",
        "Spearman ×100 of edit distance (in lower-cased words and punctuation marks) with the human score and with the "
        "cosine. A cosine much more negative than the human score judges by words rather than by meaning.",
        data,
        [Table("edit distance against", ["set", "human score", *(s.name for s in subjects)], rows)],
        drawn,
    )


def entailment(subjects: Sequence[Subject], pairs: Labelled) -> Section:
    """AUC of cosine between question and sentence (Li et al. 2020, table 4)."""
    positive = np.array([label == "entailment" for label in pairs.labels])
    data = {s.name: {"auc": 100 * auc(positive, similarities(s, pairs)), "pairs": len(positive)} for s in subjects}
    rows = [[s.name, f"{data[s.name]['auc']:.2f}"] for s in subjects]
    return Section(
        "qnli",
        "QNLI: does the sentence answer the question?",
        f"Area under the ROC curve ×100 of the cosine of question and sentence, {positive.sum():,} of "
        f"{len(positive):,} pairs being entailments. 50 is chance; ties count half.",
        data,
        [Table(pairs.name, ["", "AUC"], rows)],
    )


def neighbours(subjects: Sequence[Subject], texts: Sequence[str], queries: int, seed: int) -> Section:
    """The nearest sentences of a few, by each subject."""
    fit = [i for i, text in enumerate(texts) if QUERY_WORDS[0] <= len(text.split()) <= QUERY_WORDS[1]]
    chosen = fit or range(len(texts))
    drawn = np.sort(np.random.default_rng(seed).choice(chosen, min(queries, len(chosen)), replace=False))
    found: dict[int, list[tuple[str, list[str]]]] = {int(i): [] for i in drawn}
    data: list[dict[str, Any]] = [{"text": texts[i], "nearest": {}} for i in drawn]
    for subject in subjects:
        vectors = subject(texts)
        cosines = cosine(vectors[drawn], vectors)
        cosines[np.arange(len(drawn)), drawn] = -np.inf
        for at, i in enumerate(drawn):
            best = np.argsort(-cosines[at], kind="stable")[: min(NEIGHBOURS, len(texts) - 1)]
            found[int(i)].append((subject.name, [f"{texts[j]} ({cosines[at, j]:.2f})" for j in best]))
            data[at]["nearest"][subject.name] = [{"text": texts[j], "cosine": float(cosines[at, j])} for j in best]
    return Section(
        "neighbours",
        "Nearest neighbours",
        f"The nearest of {len(texts):,} sentences to a few drawn at random, with their cosines.",
        data,
        lists=[(texts[i], found[int(i)]) for i in drawn],
    )
