"""The sections of a report that score similarity: STS sets, edit distance, QNLI, nearest neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastflow.evaluation.analyses import SMALL, auc_of, edit_distances, interval_of, lexical_bias, spearman
from fastflow.evaluation.evaluate import (
    SEVEN,
    Labelled,
    OtherTask,
    Pairs,
    draws,
    evaluate,
    evaluate_tasks,
    similarities,
)
from fastflow.report import plots
from fastflow.report.parts import Line, Neighbour, Plot, Section, comparison, figure
from fastflow.report.subjects import MODEL, Subject, baseline
from fastflow.stages.vectors import cosine

NEIGHBOURS = 3
BOLD = "Bold: the highest. Small: the 95 % interval, with other pairs or texts of the same kind."
QUERY_WORDS = (5, 14)  # neighbours of shorter or longer sentences are hard to judge


def similarity(subjects: Sequence[Subject], sets: Sequence[Pairs]) -> Section:
    """Spearman of every set, in both aggregations."""
    data = {subject.name: evaluate(subject, sets) for subject in subjects}
    averaged = data[MODEL]["average"]["sets"]
    drawn_of = {subject.name: _draws(subject, sets, averaged) for subject in subjects}
    for name, found in data.items():
        _with_intervals(found, drawn_of[name], drawn_of[MODEL], data[MODEL]["average"]["all"])
    tables, lines = [], {}
    for key, caption in (
        ("all", "'all': a set's pairs ranked together"),
        ("wmean", "'wmean': its subsets apart; other sets as above"),
    ):
        average = _line(f"mean of {len(averaged)}", key, {name: result["average"] for name, result in data.items()})
        lines[key] = [
            _line(pairs.name, key, {n: result["rows"][i] for n, result in data.items()}, f"{len(pairs.scores):,}")
            for i, pairs in enumerate(sets)
        ]
        apart = lines[key]
        if key == "wmean":  # a set without subsets stands in the first table
            apart = [line for line, other in zip(apart, lines["all"], strict=True) if line.values != other.values]
        if not apart:
            continue
        shown = apart if len(sets) == 1 else [average, *apart]
        note = "pairs" if key == "all" else ""
        tables.append(comparison(f"{caption}. {BOLD}", "set", shown, note))
    names = [pairs.name for pairs in sets]
    series = {s.name: [line.values[s.name] for line in lines["all"]] for s in subjects}
    drawn = plots.dots(names, series, "Spearman ×100")
    over = "the paper's seven test sets" if averaged == list(SEVEN) else "every set given"
    return Section(
        "similarity",
        "Similarity: agreement with human scores",
        "People scored how similar two sentences are; the model scores a pair by the cosine of its two vectors. "
        "Spearman ×100 compares both orders of the pairs: higher is better. 'all' ranks the pairs of a set together; "
        "'wmean' ranks each subset of a set by itself (STSb and SICK-R are one each) and averages by size, as the "
        f"paper (Li et al. 2020) does. The mean is over {over}.{_counted(lines['all'], 'higher', 'sets')}",
        data,
        tables,
        [Plot(drawn, "Spearman ×100 ('all') of every set; further right is better.")],
    )


def _draws(
    subject: Subject, sets: Sequence[Pairs], averaged: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The draws of each set, and of the mean over the ``averaged`` ones."""
    found = [draws(pairs, similarities(subject, pairs), i) for i, pairs in enumerate(sets)]
    chosen = [each for each, pairs in zip(found, sets, strict=True) if pairs.name in averaged]
    return found, {key: np.mean([each[key] for each in chosen], axis=0) for key in ("all", "wmean")}


def _with_intervals(found: dict[str, Any], drawn: Any, drawn_of_model: Any, own: float) -> None:
    """Add to the rows and the average of ``found`` their ``intervals``, and to the average that of the model's lead."""
    for row, draw in zip([*found["rows"], found["average"]], [*drawn[0], drawn[1]], strict=True):
        row["intervals"] = {
            key: [round(end, 2) for end in interval_of(draw[key], row[key])] for key in ("all", "wmean")
        }
    lead = interval_of(drawn_of_model[1]["all"] - drawn[1]["all"], own - found["average"]["all"])
    found["average"]["model_leads_by"] = [round(end, 2) for end in lead]


def _line(name: str, key: str, rows: Mapping[str, Any], note: str = "") -> Line:
    """The line of one set, whose row each subject has."""
    values = {subject: row[key] for subject, row in rows.items()}
    return Line(name, values, note=note, intervals={subject: row["intervals"][key] for subject, row in rows.items()})


def tasks(subjects: Sequence[Subject], found: Sequence[OtherTask]) -> Section:
    """Every measure of the tasks of ``--eval`` that are not scored pairs, as ``fastflow eval`` has them."""
    data = {subject.name: evaluate_tasks(subject, found) for subject in subjects}
    lines = []
    for i, task in enumerate(found):
        for name, measured in data[MODEL][i]["measures"].items():
            values = {subject: rows[i]["measures"][name]["value"] for subject, rows in data.items()}
            bm25 = figure(measured["bm25"], 2) if "bm25" in measured else ""
            between = {subject: rows[i]["measures"][name]["interval"] for subject, rows in data.items()}
            lines.append(Line(f"{task.name}, {name}", values, note=bm25, intervals=between))
    note = "BM25" if any(line.note for line in lines) else ""
    return Section(
        "tasks",
        "Tasks: pairs, classes and search",
        "Every measure is ×100, higher is better. ap: average precision of the cosine on labelled pairs. v_measure: "
        "k-means against the labels. knn and logistic: accuracy with 16 texts of a label to learn from. ndcg@10 and "
        f"recall@100: retrieval; BM25 compares words alone.{_counted(lines, 'higher', 'measures')}",
        data,
        [comparison(BOLD, "set, measure", lines, note)],
    )


def _counted(lines: Sequence[Line], better: str, what: str) -> str:
    """On how many lines the model is strictly better than its baseline, as a sentence; empty without a baseline."""
    base = baseline(list(lines[0].values))
    if base is None:
        return ""
    count = sum(line.wins(MODEL, base) for line in lines)
    return f" The model is {better} than {base} on {count} of {len(lines)} {what}."


def lexical(subjects: Sequence[Subject], sets: Sequence[Pairs]) -> Section:
    """Spearman with edit distance, and the scatter of pairs that differ by few words."""
    lines, data, drawn = [], {}, []
    closest = next((p for name in ("STSb-dev", "STSb-test") for p in sets if p.name == name), None)
    shown = closest or max(sets, key=lambda pairs: len(pairs.scores))
    for pairs in sets:
        edits = edit_distances(pairs.first, pairs.second)
        cosines = {subject.name: similarities(subject, pairs) for subject in subjects}
        measured = {name: lexical_bias(edits, values, pairs.scores) for name, values in cosines.items()}
        gold = 100 * spearman(edits, pairs.scores)
        data[pairs.name] = {"gold": gold, "subjects": measured}
        edit = {name: found["edit"] for name, found in measured.items()}
        lines.append(Line(pairs.name, edit, round(gold, 1), 1, figure(gold, 1)))
        if pairs is shown and (edits <= SMALL).sum() > 1:
            drawn = [_closely(pairs, edits, cosines, measured)]
    return Section(
        "lexical",
        "Lexical bias: words or meaning?",
        "The edit distance of two sentences counts the words and punctuation marks to change. The table shows its "
        "Spearman ×100 with the human score ('people') and with each cosine. A cosine whose value is more negative "
        "than people's follows shared words more than people do, one whose value is less negative less."
        + _counted(lines, "nearer to people", "sets"),
        data,
        [comparison("Edit distance against each. Bold: nearest to people.", "set", lines, "people", beside=True)],
        drawn,
        folded=True,
    )


def _closely(pairs: Pairs, edits: Any, cosines: dict[str, Any], measured: dict[str, Any]) -> Plot:
    """The scatter of the pairs that differ by at most SMALL words."""
    few = edits <= SMALL
    panels = {name: values[few] for name, values in cosines.items()}
    among = ", ".join(f"{name} {found['small_gold']:.1f}" for name, found in measured.items())
    return Plot(
        plots.scatter(edits[few], panels, pairs.scores[few]),
        f"{pairs.name}, the {few.sum():,} pairs that differ by at most {SMALL} words: cosine against edit distance, "
        "coloured by the human score. Where cosine follows meaning, red lies above blue within each column. "
        f"Spearman ×100 of cosine with the human score among these pairs: {among}.",
    )


def entailment(subjects: Sequence[Subject], pairs: Labelled) -> Section:
    """AUC of cosine between question and sentence (Li et al. 2020, table 4)."""
    positive = np.array([label == "entailment" for label in pairs.labels])
    data: dict[str, Any] = {}
    for subject in subjects:
        cosines = similarities(subject, pairs)
        found = auc_of(positive, cosines)
        between = [round(end, 2) for end in found.interval()]
        data[subject.name] = {"auc": found.value, "interval": between, "pairs": len(positive)}
    values, intervals = ({name: found[key] for name, found in data.items()} for key in ("auc", "interval"))
    line = Line("AUC", values, intervals=intervals)
    return Section(
        "qnli",
        "QNLI: does the sentence answer the question?",
        "AUC ×100 is the chance that a sentence that answers its question has a higher cosine with it than one that "
        f"does not: 100 is always, 50 is chance; ties count half. {positive.sum():,} of {len(positive):,} pairs are "
        "answers.",
        data,
        [comparison(f"{pairs.name}. {BOLD}", "", [line])],
    )


def neighbours(subjects: Sequence[Subject], texts: Sequence[str], queries: int, seed: int) -> Section:
    """The nearest sentences of a few, by each subject."""
    fit = [i for i, text in enumerate(texts) if QUERY_WORDS[0] <= len(text.split()) <= QUERY_WORDS[1]]
    chosen = fit or range(len(texts))
    drawn = np.sort(np.random.default_rng(seed).choice(chosen, min(queries, len(chosen)), replace=False))
    found: dict[int, list[tuple[str, list[Neighbour]]]] = {int(i): [] for i in drawn}
    data: list[dict[str, Any]] = [{"text": texts[i], "nearest": {}} for i in drawn]
    for subject in subjects:
        vectors = subject(texts)
        cosines = cosine(vectors[drawn], vectors)
        cosines[np.arange(len(drawn)), drawn] = -np.inf
        for at, i in enumerate(drawn):
            best = np.argsort(-cosines[at], kind="stable")[: min(NEIGHBOURS, len(texts) - 1)]
            found[int(i)].append((subject.name, [(f"{cosines[at, j]:.2f}", texts[j]) for j in best]))
            data[at]["nearest"][subject.name] = [{"text": texts[j], "cosine": float(cosines[at, j])} for j in best]
    words = f", all of {QUERY_WORDS[0]} to {QUERY_WORDS[1]} words" if fit else ""
    return Section(
        "neighbours",
        "Nearest neighbours",
        f"For each of {len(drawn)} sentences drawn at random{words}: the nearest of the other {len(texts) - 1:,} by "
        "cosine, which stands before the text.",
        data,
        lists=[(texts[i], found[int(i)]) for i in drawn],
    )
