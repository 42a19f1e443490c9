"""The default over encoders and languages: with words of the corpus's language, of another language, and with none.

    python -m fastflow.bench.research.languages --data DIR --package DIR --second DIR --german DIR
        --out bench/results/languages

The second English encoder and the German one are made by ``pretrain``, whose training.json has their state. Finished
cells are kept beside OUT and read by the next run of the same command; a new state of an encoder needs a new OUT.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.default import OWN, kept
from fastflow.bench.research.default_fits import Candidate, Lab
from fastflow.bench.research.languages_page import markdown
from fastflow.bench.research.study import write
from fastflow.evaluation.evaluate import SEVEN, measure
from fastflow.model.fragmentation import unsuited
from fastflow.model.tokens import Tokenizer
from fastflow.train.data.background import caseless, english, read_words, unlike
from fastflow.train.data.corpus import read_texts

GERMAN_TEXTS = "tasks/corpora/eltec-deu-novels.txt.zst"
WORD = re.compile(r"[^\W_]+|[^\w\s]")
NO_LIST, LOWER = "none", "German, lower case"
FITLESS = {
    "last layer": Candidate("last", None, "none"),
    "raw, first-last": Candidate("first-last", None, "none"),
    "words, no weights": Candidate(prior=None, method="none"),
}
FITTED = {"weights": Candidate(method="none"), "soft whitening": Candidate(method="whiten,recolour", background="all"),
          "default": Candidate(background="all")}  # fmt: skip


Columns = dict[str, tuple[str, ...]]


class Plan(NamedTuple):
    """The figures of an encoder: column -> its sets; corpus -> the lists of words that are tried on it."""

    columns: Columns
    corpora: dict[str, tuple[str, ...]]
    fitless: tuple[str, ...] = tuple(FITLESS)


ENGLISH: Columns = {
    "STS, mean of 7": SEVEN, "agnews-titles": ("agnews-titles",), "trec": ("trec",), "cranfield": ("cranfield",),
    "quora": ("quora-duplicates",),
}  # fmt: skip
GERMAN: Columns = {
    "STSb-test": ("STSb-test-de",), "10kGNAD, V": ("10kgnad-test-de",),
    "10kGNAD, logistic": ("10kgnad-test-de, logistic",),
}  # fmt: skip
NEWS = ("English", NO_LIST, "German")
LISTS = (NO_LIST, "German", LOWER, "English")
PLANS = {
    "package": Plan(ENGLISH, {"news": NEWS}, ("words, no weights",)),  # bench/results/default.md has its raw pooling
    "second": Plan(ENGLISH, {"news": NEWS}),
    "german": Plan(GERMAN, {"German novels": LISTS, OWN: tuple(w for w in LISTS if w != LOWER)}),
}


def cells(plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    """(corpus, list of words, candidate, set) of every figure; a candidate that needs no fit has no corpus."""
    tasks = [task for sets in plan.columns.values() for task in sets]
    yield from (("", NO_LIST, name, task) for name in plan.fitless for task in tasks)
    for corpus, lists in plan.corpora.items():
        yield from ((corpus, words, name, task) for words in lists for name in FITTED for task in tasks)


def candidate(name: str, words: str) -> Candidate:
    """The candidate ``name``, which without a list of words has the frequencies of its corpus and no random words."""
    found = (FITLESS | FITTED)[name]
    return replace(found, prior=0.0, background="none") if words == NO_LIST and name in FITTED else found


def write_lists(data: Path, folder: Path) -> dict[str, Path]:
    """The lists of words in ``folder``: English of the package, German counted on novels, and that in lower case."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = Counter(word for text in read_texts([str(data / GERMAN_TEXTS)]) for word in WORD.findall(text))
    lower: Counter[str] = Counter()
    for word, count in counts.items():
        if word.isalpha():
            lower[word.lower()] += count
    found = {}
    for name, words in (("English", english().shares), ("German", counts), (LOWER, lower)):
        found[name] = folder / f"{name.replace(', ', '-').replace(' ', '-')}.txt"
        found[name].write_text("".join(f"{word} {count}\n" for word, count in words.items()), encoding="utf-8")
    return found


@lru_cache(maxsize=1)
def vectors(lab: Lab, corpus: str, words: str, name: str, of: str) -> NDArray[np.float64]:
    """(n, D) of the texts of the set ``of``; of the last cell, whose set may have another figure."""
    return lab.vectors(corpus or OWN, candidate(name, words), 0, of)


def figure(lab: Lab, corpus: str, words: str, name: str, task: str) -> float:
    """The figure of a cell: the main one of the set, or the one named after it."""
    of, _, other = task.partition(", ")
    found = vectors(lab, corpus, words, name, of)
    if other:
        return measure(lab.task(of), found)[other]
    return lab.main_figure(of, found)


def warnings(lab: Lab, plan: Plan) -> list[str]:
    """What the command warns of when it fits to each corpus with the lab's list: corpus and sentence."""
    tokenizer, found = Tokenizer(Path(lab.encoder), 128), []
    for corpus in plan.corpora:
        names = [corpus] if corpus != OWN else [sets[0].partition(", ")[0] for sets in plan.columns.values()]
        for name in dict.fromkeys(names):
            texts = lab.texts(name)
            doubts = [unsuited(tokenizer, texts)]
            if lab.words:
                words = read_words(Path(lab.words))
                doubts += [unlike(words, texts), caseless(words, texts, tokenizer)]
            found += [f"{name}: {warning}" for warning in doubts if warning]
    return found


def measured(encoder: str, name: str, data: Path, folder: Path, lists: dict[str, Path]) -> dict[str, Any]:
    """Every figure of an encoder, its state, and the warnings by list of words."""

    @cache
    def lab(words: str) -> Lab:
        return Lab(encoder, data, None if words == NO_LIST else str(lists[words]))

    rows, plan = [], PLANS[name]
    for corpus, words, chosen, task in cells(plan):
        file = folder / f"{name}-{corpus}-{words}-{chosen}-{task}.json".replace(" ", "_").replace(",", "")
        args = (corpus, words, chosen, task)
        value = kept(file, lambda a=args: figure(lab(a[1]), *a))  # type: ignore[misc]
        click.echo(f"{name}: {corpus}, {words}, {chosen}, {task}: {value:.1f}")
        rows.append({"corpus": corpus, "words": words, "candidate": chosen, "set": task, "value": value})
    state = Path(encoder) / "training.json"
    return {
        "encoder": name,
        "training": json.loads(state.read_text()) if state.exists() else None,
        "columns": plan.columns,
        "warnings": {words: warnings(lab(words), plan) for words in plan.corpora[next(iter(plan.corpora))]},
        "rows": rows,
    }


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts, corpora, tasks.")
@click.option("--package", required=True, help="The encoder of the package.")
@click.option("--second", required=True, help="Another English encoder.")
@click.option("--german", required=True, help="A German encoder.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
@click.option("--only", multiple=True, type=click.Choice(list(PLANS)), help="These encoders, and no page.")
def main(data: Path, out: Path, only: tuple[str, ...], **encoders: str) -> None:
    """Measure the default of every encoder with each list of words."""
    folder = out.with_suffix(".cells")
    lists = write_lists(data, folder)
    found = [measured(encoders[name], name, data, folder, lists) for name in only or PLANS]
    if not only:
        command = "python -m fastflow.bench.research.languages --data .../data --package .../mini-mlm-uncased"
        command += f" --second SECOND --german GERMAN --out {out}"
        write(out, {"command": command, "encoders": found}, markdown)


if __name__ == "__main__":
    main()
