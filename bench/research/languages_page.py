"""The page of ``languages``: a table for each encoder and corpus, and what the default gains over raw pooling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from fastflow.bench.research.study import table

Found = dict[str, Any]
NAMES = {"package": "The encoder of the package", "second": "A second English encoder", "german": "A German encoder"}
RAW = "raw, first-last"


def markdown(result: Found) -> str:
    """The page."""
    text = [HEAD.format(command=result["command"])]
    for found in result["encoders"]:
        text += [f"## {NAMES[found['encoder']]}", state(found["training"]), *_tables(found), _warned(found)]
    return "\n\n".join([*text, "## What the default gains", GAINS, _gains(result["encoders"])]) + "\n"


def state(training: Found | None) -> str:
    """How far the encoder was trained."""
    if training is None:
        return PACKAGE
    case = "lower-cased" if training["lowercase"] else "cased"
    return (
        f"{training['layers']} layers of {training['width']}, {training['vocabulary']:,} pieces, {case}; trained for "
        f"{training['step']:,} steps on {training['tokens']:,} tokens, masked-LM loss {training['loss']:.2f} nats."
    )


def value(found: Found, corpus: str, words: str, candidate: str, column: str) -> float:
    """The mean over the sets of ``column``; NaN if the candidate was not measured."""
    sets = found["columns"][column]
    values = [
        row["value"]
        for row in found["rows"]
        if (row["corpus"], row["words"], row["candidate"]) == (corpus, words, candidate) and row["set"] in sets
    ]
    return float(np.mean(values)) if values else float("nan")


def fits(found: Found) -> Iterable[tuple[str, str]]:
    """(corpus, list of words) of every fit."""
    return dict.fromkeys((row["corpus"], row["words"]) for row in found["rows"] if row["corpus"])


def _tables(found: Found) -> list[str]:
    columns, rows = list(found["columns"]), found["rows"]
    out = []
    for corpus in dict.fromkeys(row["corpus"] for row in rows):
        head = f"Fitted on {OF.get(corpus, corpus)}:" if corpus else "Without a fit:"
        lines = []
        for words, name in dict.fromkeys((row["words"], row["candidate"]) for row in rows if row["corpus"] == corpus):
            label = f"{name}, words: {words}" if corpus else name
            lines.append([label, *(f"{value(found, corpus, words, name, column):.1f}" for column in columns)])
        out += [head, table(["candidate", *columns], lines)]
    return out


def _warned(found: Found) -> str:
    """The warnings of the command, by list of words."""
    lines = [f"- words: {words}; {warning}" for words, warnings in found["warnings"].items() for warning in warnings]
    return "\n".join(["Warnings of the command:", "", *lines]) if lines else "The command warns of nothing here."


def _gains(encoders: list[Found]) -> str:
    """Default less raw pooling, the least over columns, and whether the command warns."""
    rows = []
    for found in encoders:
        for corpus, words in fits(found):
            columns = list(found["columns"])
            default = np.array([value(found, corpus, words, "default", column) for column in columns])
            others = {name: np.array([value(found, *key, name, column) for column in columns])
                      for name, key in ((RAW, ("", "none")), ("soft whitening", (corpus, words)))}  # fmt: skip
            cells = []
            for other in others.values():
                gain = default - other
                cells += [f"{gain.mean():+.1f}", f"{gain.min():+.1f} ({columns[int(gain.argmin())]})"]
            if np.isnan(others[RAW]).any():
                cells[:2] = ["", ""]
            of = [w for w in found["warnings"].get(words, ()) if corpus == "own texts" or w.startswith(f"{corpus}: ")]
            rows.append([f"{found['encoder']}, {corpus}, words: {words}", *cells, "yes" if of else "no"])
    return table(["encoder, corpus, words", "over raw", "least", "over soft whitening", "least", "warned of"], rows)


OF = {"own texts": "the set's own texts"}
PACKAGE = "mini-mlm-uncased: 4 layers of 256, 30,522 pieces, lower-cased; trained on 66 M tokens, loss 3.53 nats."
HEAD = """# The default over encoders and languages

Made by

    {command}

*words* is the list of words that decides token weights and random sentences, as `--background-words` gives it: none,
the 16,000 English words of the package, German words counted on German novels of 1840-1920, or these in lower case and
without punctuation. For German texts without a list the command takes none. *weights*: the word embeddings, weighted,
no calibration. *default*: that of fastflow-train, fitted to all texts of its corpus; it now draws 2,500. *soft
whitening*: `whiten,recolour`. STS: Spearman x100, `all`. agnews-titles, trec, 10kGNAD: V-measure
of k-means; *logistic*: accuracy of a logistic regression, 16 texts a class. cranfield, quora: nDCG@10. One seed.
SECOND and GERMAN were made by `python -m fastflow.bench.research.pretrain`, whose words start from the mutual
information of their corpus: small encoders, trained briefly, far below a published BERT."""
GAINS = """The default less raw pooling of the first and last layer, and less soft whitening: the mean over the columns,
and the least."""
