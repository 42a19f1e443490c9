"""The page of ``default``: the choice, its confirmation, and each goal with the figure that decides it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from fastflow.bench.research.study import table

KINDS = {
    "STS": ("STS12", "STS13", "STS14", "STS15", "STS16", "STSb-test", "SICK-R-test"),
    "clusters": ("banking77", "agnews-titles", "clinc150", "agnews", "trec"),
    "documents": ("cranfield", "cisi", "npl", "scifact"),
    "duplicates": ("msrp", "quora-duplicates"),
}
Figures = dict[tuple[str, str, str, str], list[float]]  # (half, corpus, candidate, set) -> a figure a seed


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    found: Figures = defaultdict(list)
    for row in result["rows"]:
        found[row["half"], row["corpus"], row["candidate"], row["set"]].append(row["value"])
    text = [HEAD.format(command=result["command"]), "## The choice", CHOICE]
    for corpus in _corpora(found, "choosing"):
        text += [f"Fitted on {NAMES.get(corpus, corpus)}:", _choice(found, corpus)]
    text += ["## The confirmation", CONFIRMATION]
    for corpus in _corpora(found, "confirming"):
        text += [f"Fitted on {NAMES.get(corpus, corpus)}:", _sets(found, corpus)]
    return "\n\n".join([*text, "## Goals", _goals(found), TAIL]) + "\n"


def _corpora(found: Figures, half: str) -> list[str]:
    return list(dict.fromkeys(corpus for part, corpus, _, _ in found if part == half))


def _mean(found: Figures, half: str, corpus: str, candidate: str, sets: Any) -> float:
    """The mean over the sets of the half among ``sets``, of the mean over seeds."""
    values = [np.mean(found[key]) for s in sets if (key := (half, corpus, candidate, s)) in found]
    return float(np.mean(values)) if values else float("nan")


def _choice(found: Figures, corpus: str) -> str:
    """Candidates by kind of set, the best mean over kinds first."""
    candidates = dict.fromkeys(c for part, of, c, _ in found if (part, of) == ("choosing", corpus))
    rows = []
    for candidate in candidates:
        kinds = [_mean(found, "choosing", corpus, candidate, sets) for sets in KINDS.values()]
        rows.append((float(np.mean(kinds)), candidate, kinds))
    rows.sort(reverse=True)
    return table(
        ["candidate", *KINDS, "mean"],
        [[name, *(f"{value:.1f}" for value in kinds), f"{mean:.1f}"] for mean, name, kinds in rows],
    )


def _sets(found: Figures, corpus: str) -> str:
    """Every set by candidate; of several seeds the mean and the range."""
    candidates = list(dict.fromkeys(c for part, of, c, _ in found if (part, of) == ("confirming", corpus)))
    sets = list(dict.fromkeys(s for part, of, _, s in found if (part, of) == ("confirming", corpus)))
    rows = [[s, *(_cell(found["confirming", corpus, c, s]) for c in candidates)] for s in sets]
    return table(["set", *candidates], rows)


def _cell(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else ""
    return f"{np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _goals(found: Figures) -> str:
    """The default over raw pooling by kind, and its worst set against the better of raw pooling and the weights."""
    rows = []
    for corpus in _corpora(found, "confirming"):
        gains = [
            _mean(found, "confirming", corpus, "default", sets) - _mean(found, "confirming", corpus, "raw", sets)
            for sets in KINDS.values()
        ]
        sets = [s for part, of, c, s in found if (part, of, c) == ("confirming", corpus, "default")]
        worst = min((_margin(found, corpus, s), s) for s in sets)
        rows.append([corpus, *(f"{gain:+.1f}" for gain in gains), f"{worst[0]:+.1f} ({worst[1]})"])
    return table(["fitted on", *(f"{kind}, over raw" for kind in KINDS), "worst against raw and weights"], rows)


def _margin(found: Figures, corpus: str, name: str) -> float:
    """How far the default is above the better of raw pooling and the weights alone on the set ``name``."""
    raw, weights, default = (np.mean(found["confirming", corpus, c, name]) for c in ("raw", "weights", "default"))
    return float(default - max(raw, weights))


NAMES = {
    "own texts": "the set's own texts", "own texts, 300": "300 of the set's own texts",
    "news, 300": "300 sentences of news", "news, 1000": "1,000 sentences of news",
}  # fmt: skip
HEAD = """# The default

Made by

    {command}

The encoder is mini-mlm-uncased. STS: Spearman x100, `all`. Clusters: V-measure of k-means. Documents and questions:
nDCG@10. msrp: average precision. The measures are those of `fastflow eval`. *raw*: the paper's first and last layer,
every token alike. *weights*: the word embeddings without positions, weighted, no calibration. *soft whitening*:
`whiten,recolour`. *default*: the default of `fastflow-train`."""
CHOICE = """The choice looked at half of the sets, picked by kind before any figure of this study was seen. **Not
blind**: the engineers knew figures of other candidates on all sets, and that the word embeddings without positions do
well. A candidate is the default with one thing changed, if its name does not say more. Seed 0. The default was fixed
on a first build of these cells, without the rule that constant directions stay 0. It is not the best row, but the rows
above it lead by clusters, whose V-measure moves by more between seeds (agnews below), or by documents. On the other
half soft whitening is level with it, and better on the own texts of STS15, SICK-R and agnews."""
CONFIRMATION = "The other half of the sets. Nothing was chosen on them."
TAIL = """Long texts, by hand with a closed form fitted on *mix*: cranfield and cisi have 27.1, 27.4, 26.1, 26.2 and
32.8, 33.4, 34.6, 34.0 if texts are cut at 64, 128, 256 and 512 tokens, and 26.6 and 30.6 if the embedding of a text is
the mean of its sentences'. So a paragraph is embedded whole, cut at 128 tokens."""
