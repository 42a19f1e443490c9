"""What sentences go beside one's own texts: random words alone, or real English sentences and random words.

    python -m fastflow.bench.research.background_choice --data DIR --out bench/results/background

Every fit is that of ``fastflow-train`` with the encoder in the package. The half of the sets that chooses the default
chose here too, by hand. Finished cells are kept beside OUT and read by the next run of the same command.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import fastflow
from fastflow import Runtime
from fastflow.bench.research.default_model import CORPORA as MIXTURE
from fastflow.bench.research.study import table, write
from fastflow.evaluation.classes import LabelledTexts
from fastflow.evaluation.evaluate import Pairs, Task, measure, read_task
from fastflow.train import reading
from fastflow.train.data.background import Words, words_of
from fastflow.train.data.corpus import clean, read_corpus

SEEDS = 3
SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
NEWS, OTHERS, EACH = (
    "leipzig-eng-news-2016-10k.txt",
    {"novels": ["eltec-eng-novels.txt.gz"], "wiki": ["wikipedia-core.txt.gz"], "mix": [*MIXTURE]},
    9_000,
)
CHOOSING = ("STS12", "STS13", "STS14", "banking77", "agnews-titles", "cranfield", "cisi", "msrp")
CONFIRMING = (
    "STS15", "STS16", "STSb-test", "SICK-R-test", "clinc150", "agnews", "trec", "npl", "scifact", "quora-duplicates",
)  # fmt: skip


def subsets(*names: str) -> tuple[str, ...]:
    """``SET/SUBSET`` of these sets."""
    return tuple(f"{name}/{part}" for name in names for part in SUBSETS[name])


ALL, ALL_NEWS = 0, -9_000  # texts that are fitted: all of the set's own, N of them, or -N of news
PARTS: dict[str, tuple[tuple[str, ...], int | str]] = {  # heading: the sets, the texts that are fitted; or the corpus
    "Confirms: subsets of STS15 and STS16, on their own texts": (subsets("STS15", "STS16"), ALL),
    "Confirms: 300 of a set's own texts": (CONFIRMING, 300),
    "Confirms: a set's own texts": (CONFIRMING, ALL),
    "Confirms: 300 sentences of news": (CONFIRMING, -300),
    "Confirms: 9,000 sentences of news": (CONFIRMING, ALL_NEWS),
    "Confirms: 9,000 sentences of novels": (CONFIRMING, "novels"),
    "Confirms: 9,000 sentences of Wikipedia": (CONFIRMING, "wiki"),
    "Confirms: 45,000 sentences of five kinds": (CONFIRMING, "mix"),
    "Chooses: subsets of STS12 to STS14, on their own texts": (subsets("STS12", "STS13", "STS14"), ALL),
    "Chooses: 300 of a set's own texts": (CHOOSING[3:], 300),
    "Chooses: a set's own texts": (CHOOSING, ALL),
}
GROUPS = {  # of CONFIRMING
    "STS": CONFIRMING[:4], "clusters": CONFIRMING[4:7], "documents": CONFIRMING[7:9], "duplicates": CONFIRMING[9:],
}  # fmt: skip
MAIN = {"pairs": "ap", "retrieval": "ndcg@10"}
KINDS = ("random words", "real sentences too")
PLAIN: dict[str, dict[str, Any]] = {  # what is not calibrated
    "raw": {"method": "none", "pooling": "first-last", "token_weights": "none"},
    "weights": {"method": "none", "pooling": "words", "token_weights": "sif"},
}


def find(data: Path, name: str) -> Task:
    """The set ``name``, or the pairs of one of its subsets, ``SET/SUBSET``."""
    whole, _, part = name.partition("/")
    places = [data / "sts", *(data / "tasks" / kind for kind in ("classes", "pairs", "retrieval"))]
    task = read_task(next(p for place in places for p in (place / f"{whole}.tsv", place / whole) if p.exists()))
    if not part or not isinstance(task, Pairs):
        return task
    rows = [row for row, subset in enumerate(task.subsets) if subset == part]
    first, second = ([side[row] for row in rows] for side in (task.first, task.second))
    return Pairs(name, [part] * len(rows), task.scores[rows], first, second)


def figure(task: Task, vectors: NDArray[Any]) -> float:
    """The main figure of a task."""
    if isinstance(task, LabelledTexts):
        return task.clusters(vectors).value
    return measure(task, vectors)["all" if isinstance(task, Pairs) else MAIN[task.kind]]


def drawn(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """``count`` of the distinct ``texts`` by chance, in their order; 0: all."""
    own = list(dict.fromkeys(clean(texts)))
    if not count:
        return own
    rows = np.sort(np.random.default_rng(seed).choice(len(own), count, replace=False))
    return [own[row] for row in rows]


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """What ``path`` holds, made if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        value = make()
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps(value))
        unfinished.replace(path)
    return json.loads(path.read_text())


def words_alone(texts: Sequence[str], given: str | None = None) -> Words | None:
    """English without its sentences, for the default before: random words, four sentences of them a text."""
    words = words_of(texts, given)
    return words and words._replace(sentences=())


def corpus(data: Path, name: str) -> list[str]:
    """EACH sentences of every file of the corpus ``name``, or all that it has."""
    found: list[str] = []
    for file in OTHERS[name]:
        texts = list(dict.fromkeys(clean(read_corpus([str(data / "corpora" / file)], sample=10_000), cut=True)))
        found += random.Random(0).sample(texts, min(EACH, len(texts)))
    return found


def fits(data: Path, names: Sequence[str], count: int | str, kind: str, seed: int) -> dict[str, float]:
    """{set: its figure} of fits to ``count`` texts beside a background of ``kind``, or not calibrated."""
    setattr(reading, "words_of", words_alone if kind == "random words" else words_of)  # noqa: B010
    found, made = {}, None
    for name in names:
        task = find(data, name)
        if made is None or (isinstance(count, int) and count >= 0):
            if isinstance(count, str):
                texts = corpus(data, count)
            elif count < 0:
                texts = drawn((data / "corpora" / NEWS).read_text(encoding="utf-8").splitlines(), -count, seed)
            else:
                texts = drawn(task.texts, count, seed)
            made = fastflow.fit(texts, "default", seed=seed, progress=False, **PLAIN.get(kind, {}))
        with made.runtime() as runtime:
            found[name] = figure(task, runtime.encode(list(task.texts)))
    return found


def package(data: Path, names: Sequence[str]) -> dict[str, float]:
    """{set: the figure of the model in the package}."""
    with Runtime() as runtime:
        return {name: figure(task, runtime.encode(list(task.texts))) for name in names for task in [find(data, name)]}


def means(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """{candidate: {set: the figures of its seeds}}."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row["background"], {}).setdefault(row["set"], []).append(row["value"])
    return found


def of_part(rows: Sequence[dict[str, Any]]) -> str:
    """The table of a part: the mean of the seeds, and their least and largest."""
    value = means(rows)
    kinds = ("package", *PLAIN, *KINDS)
    cells = []
    for name in value["package"]:
        spread = [f"{np.mean(v):.1f} ({min(v):.1f} to {max(v):.1f})" for v in (value[kind][name] for kind in KINDS)]
        cells.append([name, *(f"{value[kind][name][0]:.1f}" for kind in ("package", *PLAIN)), *spread])
    mean = {kind: {name: float(np.mean(found)) for name, found in value[kind].items()} for kind in kinds}
    cells.append(["mean", *(f"{np.mean(list(mean[kind].values())):.1f}" for kind in kinds)])
    worst = [min(found - mean["package"][name] for name, found in mean[kind].items()) for kind in kinds]
    cells.append(["worst against package", *(f"{each:+.1f}" for each in worst)])
    return table(["set", *kinds], cells)


def over_raw(rows: Sequence[dict[str, Any]]) -> str:
    """By kind of task, the confirming half over raw pooling, and the worst set against raw pooling or the weights."""
    cells = []
    for part, (names, _) in PARTS.items():
        if names != CONFIRMING:
            continue
        value = means([row for row in rows if row["part"] == part])
        mean = {kind: {name: float(np.mean(found)) for name, found in value[kind].items()} for kind in value}
        for kind in KINDS:
            gains = [np.mean([mean[kind][name] - mean["raw"][name] for name in group]) for group in GROUPS.values()]
            apart = {name: mean[kind][name] - max(mean[plain][name] for plain in PLAIN) for name in names}
            worst = min(apart, key=lambda name: apart[name])
            fitted = part.removeprefix("Confirms: ")
            cells.append([fitted, kind, *(f"{gain:+.1f}" for gain in gains), f"{apart[worst]:+.1f} ({worst})"])
    return table(["fitted on", "background", *GROUPS, "worst against raw and weights"], cells)


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    rows = result["rows"]
    text = [HEAD.format(command=result["command"]), "## Over raw pooling, the confirming half", over_raw(rows)]
    for part in PARTS:
        text += [f"## {part}", of_part([row for row in rows if row["part"] == part])]
    return "\n\n".join([*text, READING]) + "\n"


HEAD = """# Real sentences beside one's own texts

Made by

    {command}

What should stand beside one's own texts in a fit, so that they outweigh nothing? *random words*: the default before:
sentences of random words, four a text, 3,000 to 10,000, and at most 2,500 texts. *real sentences too*: the default:
5,000 English sentences of five kinds of text (none is a text of a scored set), which token weights count with the
corpus, and 5,000 of random words, with at most 1,250 texts. *package*: the model in the package. *raw*: the mean of the
first and the last layer, every token alike. *weights*: the default's pooling and token weights, no calibration. The
encoder is that in the package. Three seeds, two of the whole sets, one of corpora other than news: the mean, the least
and the largest. STS: Spearman x100, `all`. Labelled texts: V-measure. Documents and questions: nDCG@10. msrp: average
precision."""
READING = """## How it was chosen

By hand, on the half that chooses, before any figure of the other half, by the worst loss against the package first:

- Thirteen subsets of STS12 to STS14, one seed, mean and worst loss: random words alone 63.7 and -5.8; 10,000 real
  sentences of novels, Wikipedia and textbooks 64.1 and -2.3; with token weights that count such sentences too 64.2 and
  -1.7; of both kinds half, 64.2 and -1.5.
- At most 300, 600, 1,250 and 2,500 texts of one's own: banking77 67.2, 66.8, 66.2, 64.3; STS13 74.0, 74.5, 75.8, 77.2.
- What the couplings add counted half: banking77 whole 66.4 in place of 66.2, STS13 75.1 and 75.8, the titles of agnews
  24.7 and 28.7.
- Language frequencies that count 60, 100 or 200 times the corpus in place of 20, without the real sentences: as good on
  four subsets, images 72.0, 71.9, 72.3 and 71.2.

It was fixed before that the change is taken if no mean of the confirming half is lower by more than 0.1, and no worst
loss against the package larger by more than 0.3. **A first form failed that**: with token weights of the corpus and
the frequencies alone, answers-students lost 4.7 points in place of 4.1, while every mean rose. So this page's form was
chosen knowing those figures; it was next in line on the half that chooses.

## Reading

- **Taken.** On the parts of the confirming half that have seeds every mean rises, by 0.0 to 0.3, and every worst loss
  against the package falls: 4.0 to 2.0 on subsets, 1.5 to 0.4 on 300 texts, 3.5 to 2.0 on whole sets.
- Novels, Wikipedia and the mix, one seed each, were looked at later: the first two gain 0.2 and 0.1, the mix, which is
  of the same five kinds as the sentences, nothing.
- **The price** is paid where a set is large and its own texts help: STS13 loses 1.8, and is 3.2 above the package
  still; agnews loses 1.2, scifact 1.1.
- **A loss of at most 1 against the package is not reached everywhere**: nine of 57 fits to a set's own texts lose
  more, the worst 4.0 (300 titles of agnews); with random words eleven, the worst 4.9. On answers-students raw pooling
  has 69.1 and the weights 69.5: every calibration loses there."""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora, sts, tasks.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
@click.option("--part", multiple=True, type=int, help="Of PARTS, by number; none: all, and the page.")
def main(data: Path, out: Path, part: tuple[int, ...]) -> None:
    """Fit every set in every way."""
    rows = []
    for number, (heading, (names, count)) in enumerate(PARTS.items()):
        if part and number not in part:
            continue
        groups = [names] if isinstance(count, str) or count < 0 else [(name,) for name in names]
        for group in groups:
            label = group[0].replace("/", "~") if len(group) == 1 else "all"
            cell = out.with_suffix(".cells") / f"{label}-{count}"
            found = [("package", 0, kept(cell.with_name(f"{cell.name}-package.json"), partial(package, data, group)))]
            for kind in PLAIN:
                make = partial(fits, data, group, count, kind, 0)
                found.append((kind, 0, kept(cell.with_name(f"{cell.name}-{kind}.json"), make)))
            for kind in KINDS:
                for seed in range(1 if isinstance(count, str) else SEEDS if count or "/" in group[0] else 2):
                    make = partial(fits, data, group, count, kind, seed)
                    found.append((kind, seed, kept(cell.with_name(f"{cell.name}-{kind[:4]}-{seed}.json"), make)))
            for kind, seed, values in found:
                for name, value in values.items():
                    rows.append({"part": heading, "set": name, "background": kind, "seed": seed, "value": value})
                    click.echo(f"{heading[:30]}: {name}, {kind}, {seed}: {value:.1f}")
    if not part:
        command = f"python -m fastflow.bench.research.background_choice --data .../{data.name} --out {out}"
        write(out, {"command": command, "rows": rows}, markdown)


if __name__ == "__main__":
    main()
