"""The default of fastflow-train: chosen on one half of the tasks, confirmed on the other.

    python -m fastflow.bench.research.default --encoder DIR --data DIR --out bench/results/default

Every fit is made of fastflow-train's own functions, every figure of fastflow eval's. The halves were fixed before any
figure of them was looked at. Finished cells are kept beside OUT and read by the next run of the same command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click

from fastflow.bench.research.default_fits import Candidate, Lab
from fastflow.bench.research.default_page import markdown
from fastflow.bench.research.study import write
from fastflow.evaluation.evaluate import SEVEN

CHOOSING = ("STS12", "STS13", "STS14", "banking77", "agnews-titles", "cranfield", "cisi", "msrp")
CONFIRMING = (
    "STS15", "STS16", "STSb-test", "SICK-R-test", "clinc150", "agnews", "trec", "npl", "scifact", "quora-duplicates",
)  # fmt: skip
OWN = "own texts"
RAW = Candidate(pooling="first-last", prior=None, method="none")
WEIGHTS, DEFAULT = Candidate(method="none"), Candidate()
ALL = Candidate(background="all")
SOFT = replace(ALL, method="whiten,recolour")
COLUMNS = {"raw": RAW, "weights": WEIGHTS, "soft whitening": SOFT, "all texts": ALL, "default": DEFAULT}
TRIED = {  # candidates of the choice
    **COLUMNS,
    "words, every token alike": Candidate(prior=None, method="none"),
    "components:1": replace(ALL, method="components:1"),
    **{
        f"{method}, spectrum {g:g}, mean share {c:g}, {d} demoted": replace(ALL, method=method, colour=(g, c, d))
        for method, (g, c, d) in product(
            ("flow", "whiten,recolour"), ((0.25, 0.1, 0), (0.5, 0.1, 0), (0.5, 0.2, 0), (0.5, 0.1, 2), (0.75, 0.1, 0))
        )
        if (g, c, d) != DEFAULT.colour
    },
    **{f"flow on {pooling}": replace(ALL, pooling=pooling) for pooling in ("words-first-last", "embedding-first-last")},
    **{f"flow, frequencies of the {name}": replace(ALL, prior=p) for name, p in (("corpus", 0.0), ("language", 1e9))},
    "flow, words 5 times the corpus": replace(ALL, prior=5.0),
    "flow without random words": Candidate(background="none"),
}
FITTED = {"choosing": (OWN,), "confirming": (OWN, "news", "novels", "wiki", "mix")}
FEW = {"confirming": ("news, 300", "news, 1000", "own texts, 300")}
DEFAULT_ON = (OWN, "news", "news, 300", "own texts, 300")  # the other corpora confirm *all texts* alone
SEEDS = {OWN: 3, "news": 3, "mix": 3}  # runs of *all texts*, and of the default on MOVING; the others have one
MOVING = ("agnews", "trec")  # sets whose figure moves most from seed to seed


def cells() -> Iterator[tuple[str, str, str, int, str]]:
    """(half, corpus, candidate, seed, set) of every figure."""
    for corpus, task, candidate in product(FITTED["choosing"], CHOOSING, TRIED):
        yield "choosing", corpus, candidate, 0, task
    for corpus, candidate, task in product((*FITTED["confirming"], *FEW["confirming"]), COLUMNS, CONFIRMING):
        if candidate == "default" and corpus not in DEFAULT_ON:
            continue
        repeated = candidate == "all texts" or (candidate == "default" and corpus == OWN and task in MOVING)
        for seed in range(SEEDS.get(corpus, 1) if repeated else 1):
            yield "confirming", corpus, candidate, seed, task


def seven() -> Iterator[tuple[str, str, int, str]]:
    """(corpus, candidate, seed, set) of the table of the paper's seven sets."""
    for corpus, candidate, seed in product((OWN, "snli", "news", "mix"), ("weights", "all texts"), range(3)):
        if candidate == "all texts" or not seed:
            yield from ((corpus, candidate, seed, task) for task in SEVEN)


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """What ``path`` holds, made if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        value = make()
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps(value))
        unfinished.replace(path)
    return json.loads(path.read_text())


def _file(folder: Path, corpus: str, name: str, seed: int, task: str) -> Path:
    if TRIED[name].fitless:
        corpus = OWN
    return folder / f"{corpus}-{name}-{seed}-{task}.json".replace(" ", "_").replace(",", "")


@click.command()
@click.option("--encoder", required=True, help="Encoder directory.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts, corpora, tasks.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
@click.option("--half", type=click.Choice(["choosing", "confirming"]), help="Only this half, and no page.")
def main(encoder: str, data: Path, out: Path, half: str | None) -> None:
    """Choose the default and confirm it."""
    lab, folder = Lab(encoder, data), out.with_suffix(".cells")
    rows = []
    for part, corpus, name, seed, task in cells():
        if half not in (None, part):
            continue
        file = _file(folder, corpus, name, seed, task)
        value = kept(file, lambda c=corpus, n=name, s=seed, t=task: lab.figure(c, TRIED[n], s, t))  # type: ignore[misc]
        rows.append({"half": part, "corpus": corpus, "candidate": name, "seed": seed, "set": task, "value": value})
    runs = []
    for corpus, name, seed, task in seven() if half is None else ():
        file = _file(folder / "seven", corpus, name, seed, task)
        scores = kept(file, lambda c=corpus, n=name, s=seed, t=task: lab.both(c, TRIED[n], s, t))  # type: ignore[misc]
        runs.append({"corpus": corpus, "candidate": name, "seed": seed, "set": task, "scores": scores})
    if half is None:
        command = f"python -m fastflow.bench.research.default --encoder .../{Path(encoder).name} --data .../{data.name}"
        write(out, {"command": f"{command} --out {out}", "rows": rows, "seven": runs}, markdown)


if __name__ == "__main__":
    main()
