"""The sections of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.evaluation import analyses, evaluate
from fastflow.model import Model, tokenizer_of
from fastflow.model.encoder import encoder_shape, is_static, read_config
from fastflow.model.encoder.weights import load_weights
from fastflow.model.static.table import open_table
from fastflow.report import plots
from fastflow.report.models import MODEL, ReportColumn, find_baseline
from fastflow.report.verdict import HIGHEST, LOWEST, Line, Section, format_figure


def measure_similarity(subjects: Sequence[ReportColumn], sets: Sequence[evaluate.Pairs]) -> Section:
    """Measure Spearman of every set, over all pairs and averaged over subsets."""
    data, drawn_of = {subject.name: evaluate.evaluate(subject, sets) for subject in subjects}, {}
    averaged = data[MODEL]["average"]["sets"]
    for subject in subjects:
        found = [evaluate.draws(pairs, evaluate.similarities(subject, pairs), i) for i, pairs in enumerate(sets)]
        chosen = [each for each, pairs in zip(found, sets, strict=True) if pairs.name in averaged]
        found.append({key: np.mean([each[key] for each in chosen], axis=0) for key in ("all", "wmean")})
        drawn_of[subject.name] = found[-1]["all"]
        rows = [*data[subject.name]["rows"], data[subject.name]["average"]]
        for row, drawn in zip(rows, found, strict=True):
            row["intervals"] = {key: _round(analyses.interval_of(drawn[key], row[key])) for key in ("all", "wmean")}
    for name, result in data.items():
        lead = data[MODEL]["average"]["all"] - result["average"]["all"]
        result["average"]["model_leads_by"] = _round(analyses.interval_of(drawn_of[MODEL] - drawn_of[name], lead))
    means = {name: result["average"] for name, result in data.items()}
    every, apart = [], []
    for i, pairs in enumerate(sets):
        of = {name: result["rows"][i] for name, result in data.items()}
        every.append(_compare(f"{pairs.name}, {len(pairs.scores):,} pairs", "all", of))
        apart.append(_compare(f"{pairs.name}, wmean", "wmean", of))
    shown = [line for line, other in zip(apart, every, strict=True) if line.values != other.values]
    if len(sets) > 1:
        shown = [_compare(f"mean of {len(averaged)}, wmean", "wmean", means), *shown] if shown else []
    first = [_compare(f"mean of {len(averaged)}", "all", means)] if len(sets) > 1 else []
    series = {s.name: [line.values[s.name] for line in every] for s in subjects}
    over = "the paper's seven test sets" if averaged == list(evaluate.SEVEN) else "every set given"
    return Section(
        "similarity",
        "Similarity: agreement with human scores",
        "People scored how similar two sentences are; the model scores a pair by the cosine of its two vectors. "
        "Spearman ×100 compares both orders of the pairs: higher is better. 'wmean' ranks each subset of a set by "
        "itself (STSb and SICK-R are one each) and averages by size, as the paper (Li et al. 2020) does; the other "
        f"rows rank the pairs of a set together. The mean is over {over}.{_count_wins(every, 'higher', 'sets')}",
        data,
        [*first, *every, *shown],
        plots.draw_dots([pairs.name for pairs in sets], series, "Spearman ×100"),
        "Spearman ×100 of every set; further right is better.",
    )


def _round(interval: tuple[float, float]) -> list[float]:
    return [round(end, 2) for end in interval]


def _compare(name: str, key: str, rows: Mapping[str, Any]) -> Line:
    intervals = {subject: row["intervals"][key] for subject, row in rows.items()}
    return Line(name, {subject: row[key] for subject, row in rows.items()}, intervals=intervals)


def _count_wins(lines: Sequence[Line], better: str, unit: str) -> str:
    base = find_baseline(list(lines[0].values))
    if base is None:
        return ""
    count = sum(away[MODEL] < away[base] for away in (line.distances() for line in lines))
    return f" The model is {better} than {base} on {count} of {len(lines)} {unit}."


def measure_tasks(subjects: Sequence[ReportColumn], found: Sequence[evaluate.OtherTask]) -> Section:
    """Measure the tasks that are not scored pairs."""
    data = {subject.name: evaluate.evaluate_tasks(subject, found) for subject in subjects}
    lines = []
    for i, task in enumerate(found):
        for name, measured in data[MODEL][i]["measures"].items():
            of = {subject: rows[i]["measures"][name] for subject, rows in data.items()}
            values, intervals = ({subject: each[key] for subject, each in of.items()} for key in ("value", "interval"))
            bm25 = f" (BM25: {measured['bm25']:.2f})" if "bm25" in measured else ""
            lines.append(Line(f"{task.name}, {name}{bm25}", values, intervals=intervals))
    return Section(
        "tasks",
        "Tasks: pairs, classes and search",
        "Every measure is ×100, higher is better. ap: average precision of the cosine on labelled pairs. v_measure: "
        "k-means against the labels. knn and logistic: accuracy with 16 texts of a label to learn from. ndcg@10 and "
        "recall@100: retrieval; BM25 compares words alone. accuracy: the nearest sentence in another language is the "
        f"same.{_count_wins(lines, 'higher', 'measures')}",
        data,
        lines,
    )


def measure_qnli(subjects: Sequence[ReportColumn], pairs: evaluate.Labelled) -> Section:
    """Measure the AUC of the cosine of question and sentence (Li et al. 2020, table 4)."""
    positive = np.array([label == "entailment" for label in pairs.labels])
    data: dict[str, Any] = {}
    for subject in subjects:
        found = analyses.auc_of(positive, evaluate.similarities(subject, pairs))
        data[subject.name] = {"auc": found.value, "interval": _round(found.interval()), "pairs": len(positive)}
    values, intervals = ({name: found[key] for name, found in data.items()} for key in ("auc", "interval"))
    return Section(
        "qnli",
        "QNLI: does the sentence answer the question?",
        "AUC ×100 is the chance that a sentence that answers its question has a higher cosine with it than one that "
        f"does not: 100 is always, 50 is chance; ties count half. {positive.sum():,} of {len(positive):,} pairs are "
        "answers.",
        data,
        [Line(f"{pairs.name}, AUC", values, intervals=intervals)],
    )


def measure_lexical(subjects: Sequence[ReportColumn], sets: Sequence[evaluate.Pairs]) -> Section:
    """Measure Spearman with edit distance (Li et al. 2020, table 6)."""
    lines, data, drawn, caption = [], {}, "", ""
    closest = next((p for name in ("STSb-dev", "STSb-test") for p in sets if p.name == name), None)
    shown = closest or max(sets, key=lambda pairs: len(pairs.scores))
    for pairs in sets:
        edits = analyses.edit_distances(pairs.first, pairs.second)
        cosines = {subject.name: evaluate.similarities(subject, pairs) for subject in subjects}
        measured = {name: analyses.lexical_bias(edits, values, pairs.scores) for name, values in cosines.items()}
        gold = 100 * analyses.spearman(edits, pairs.scores)
        data[pairs.name] = {"gold": gold, "subjects": measured}
        edit = {name: found["edit"] for name, found in measured.items()}
        lines.append(Line(f"{pairs.name}, edit distance (people: {format_figure(gold, 1)})", edit, round(gold, 1), 1))
        few = edits <= analyses.SMALL
        if pairs is shown and few.sum() > 1:
            panels = {name: values[few] for name, values in cosines.items()}
            among = ", ".join(f"{name} {found['small_gold']:.1f}" for name, found in measured.items())
            drawn = plots.draw_scatter(edits[few], panels, pairs.scores[few])
            caption = (
                f"{pairs.name}, the {few.sum():,} pairs that differ by at most {analyses.SMALL} words: cosine against "
                "edit distance, coloured by the human score. Where cosine follows meaning, red lies above blue within "
                f"each column. Spearman ×100 of cosine with the human score among these pairs: {among}."
            )
    return Section(
        "lexical",
        "Lexical bias: words or meaning?",
        "The edit distance of two sentences counts the words and punctuation marks to change. The table shows its "
        "Spearman ×100 with the human score ('people') and with each cosine. A cosine whose value is more negative "
        "than people's follows shared words more than people do, one whose value is less negative less."
        + _count_wins(lines, "nearer to people", "sets"),
        data,
        lines,
        drawn,
        caption,
    )


def measure_isotropy(subjects: Sequence[ReportColumn], texts: Sequence[str], seed: int) -> Section:
    """Measure the mean cosine of random pairs, IsoScore and the singular values."""
    data: dict[str, Any] = {}
    for subject in subjects:
        x = subject(texts).astype(np.float64)
        spectrum = analyses.singular_values(x)
        data[subject.name] = {
            "mean_cosine": analyses.mean_cosine(x, seed),
            "isoscore": analyses.isoscore(x),
            "top_share": float(spectrum[0] ** 2 / np.square(spectrum).sum()),
            "singular_values": [float(f"{value:.6g}") for value in spectrum],
        }
    lines = (
        Line("mean cosine", {name: d["mean_cosine"] for name, d in data.items()}, 0.0, 3),
        Line("IsoScore", {name: d["isoscore"] for name, d in data.items()}, HIGHEST, 3),
        Line("largest's share, %", {name: 100 * d["top_share"] for name, d in data.items()}, LOWEST, 1),
    )
    return Section(
        "isotropy",
        "Isotropy: do the vectors use their whole space?",
        f"Measured on {len(texts):,} sentences. Mean cosine of random pairs: near 1 in a narrow cone, 0 where all "
        "directions occur. IsoScore: 1 where the variance about the mean is even, 0 where it lies on one axis. "
        "Largest's share: the largest squared singular value over the sum of all. Isotropy is no goal in itself: "
        f"judge by similarity where there are scores.{_count_wins(lines, 'more isotropic', 'measures')}",
        data,
        lines,
        plots.draw_spectra({name: d["singular_values"] for name, d in data.items()}),
        "Singular values over the largest of each, in descending order: a flat line is even. A line ends where the "
        f"rest is below {plots.LEAST:f}.",
    )


def measure_words(model: Model, texts: Sequence[str], source: str, seed: int) -> Section:
    """Measure the encoder's word vectors by frequency in ``texts``."""
    table, tokenize = _read_word_vectors(model.encoder), tokenizer_of(model.encoder, model.max_length)
    counts = np.bincount(tokenize(texts).ids, minlength=len(table))
    counts[tokenize([""]).ids] = 0  # special tokens occur in every text
    data = analyses.word_bands(table, counts, seed)
    norms = ", ".join(f"{row['norm']:.3f} (ranks {row['ranks']})" for row in data)
    return Section(
        "words",
        "Word frequency: the encoder's input embeddings",
        f"Mean norm of the encoder's word vectors by how often a word piece occurs in {source}: {norms}. In BERT rare "
        "words have larger norms and lie farther from their neighbours; the paper (Li et al. 2020) sees in this a "
        "cause of anisotropic sentence embeddings. Calibration does not change these vectors. --json has the distances "
        "to the nearest words too.",
        data,
    )


def _read_word_vectors(encoder: Path) -> NDArray[Any]:
    if is_static(encoder):
        table = open_table(encoder)
        return table.vectors(np.arange(table.vocabulary), np.float32)
    config = read_config(encoder)
    return load_weights(encoder, config, encoder_shape(config, encoder), np.float32)["word"]
