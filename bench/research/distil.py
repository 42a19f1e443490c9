"""Tables distilled from teachers: the prior alone, ridge without a prior, ridge about the prior; on sizes of a corpus.

python -m fastflow.bench.research.distil --data DIR --corpus FILE.txt... --teacher NAME=DIR... --cache DIR --out OUT
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.study import read, table, write
from fastflow.evaluation.evaluate import SEVEN, find_tasks, measure
from fastflow.runtime import Runtime
from fastflow.train.data.corpus import read_texts
from fastflow.train.distil import ridge
from fastflow.train.distil.choosing import Held, fit_table
from fastflow.train.distil.gathering import gather
from fastflow.train.distil.run import Settings, priors, student_of
from fastflow.train.distil.sums import Floats
from fastflow.train.distil.teacher import Teacher, following
from fastflow.train.progress import COMMAND

CLUSTERS = ("banking77", "clinc150", "agnews-titles")  # V-measure
FOUND = ("quora-duplicates", "cranfield")  # retrieval, nDCG@10
PRIOR, WITHOUT, ABOUT = METHODS = ("prior alone", "ridge without a prior", "ridge about the prior")
FIELDS = ("teacher", "texts", "target", "method")  # what tells a row from another


class Cached(Teacher):
    """A teacher whose vectors of each corpus file lie in ``cache`` as NAME.STEM.npy (n, D), computed once."""

    def __init__(self, name: str, directory: str, files: Sequence[Path], cache: Path) -> None:
        super().__init__(directory)
        self._known: dict[str, NDArray[np.float32]] = {}
        for file in files if len(self.targets) == 1 else ():  # a calibrated model in the package is as fast
            path, texts = cache / f"{name}.{file.stem}.npy", list(read_texts([str(file)]))
            if not path.exists():
                np.save(path, super().__call__(texts)["vectors"])
            self._known |= dict(zip(texts, np.load(path, mmap_mode="r"), strict=True))

    def __call__(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """As the teacher's."""
        if self._known and all(text in self._known for text in texts):
            return {"vectors": np.stack([self._known[text] for text in texts])}
        return super().__call__(texts)


def part(files: Sequence[Path], count: int) -> list[str]:
    """``count`` texts of all files, as many of each as it has of the whole, mixed."""
    found = [list(read_texts([str(file)])) for file in files]
    share = min(1.0, count / sum(map(len, found)))
    texts = [text for texts in found for text in texts[: round(share * len(texts))]]
    random.Random(0).shuffle(texts)
    return texts


def measured(
    name: str, teacher: Teacher, texts: list[str], methods: Sequence[str], tasks: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    """A row for each target and method."""
    student = student_of(teacher, lambda: texts, Settings(), COMMAND)
    found = gather(texts, teacher, student.bags, 0, COMMAND, None)
    alone, wanted = priors(teacher, student), teacher(found.held)["vectors"]
    for target, bags in student.bags.items():
        sums = found.sums[target]
        held = Held(bags(found.held), wanted, partial(teacher.finish, target))
        start = ridge.prior(alone[target], found.counts, sums, bags.uniform)
        for method in methods:
            began, penalty, vectors = time.monotonic(), None, start + sums.mean
            if method != PRIOR:
                begin = start if method == ABOUT else np.zeros_like(start)
                fitted = fit_table(target, sums, begin, held, None, COMMAND)
                penalty, vectors = fitted.penalty, fitted.vectors
            seconds, made = time.monotonic() - began, _encoder(teacher, target, bags, vectors)
            row = {"teacher": name, "texts": found.texts, "target": target, "method": method, "penalty": penalty,
                   "held": following(made(found.held), wanted), "seconds": seconds, "gib": peak()}  # fmt: skip
            yield row | figures(made, tasks)


def _encoder(teacher: Teacher, target: str, bags: Any, vectors: Floats) -> Any:
    return lambda texts: teacher.finish(target, (bags(texts) @ vectors).astype(np.float32))


def whole(name: str, directory: str, tasks: Sequence[Any]) -> dict[str, Any]:
    """The row of a finished model."""
    made = figures(Runtime(directory).encode, tasks)
    return {"teacher": "", "texts": None, "target": "", "method": name, "penalty": None, "held": None,
            "seconds": None, "gib": None} | made  # fmt: skip


def peak() -> float:
    """GiB of memory that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def figures(made: Callable[[Sequence[str]], Any], tasks: Sequence[Any]) -> dict[str, float]:
    """The mean of the seven sets, ``all``, and the main measure of each other task."""
    found = {task.name: measure(task, made(task.texts)) for task in tasks}
    out = {"seven": float(np.mean([values["all"] for name, values in found.items() if name in SEVEN]))}
    return out | {name: next(iter(found[name].values())) for name in (*CLUSTERS, *FOUND)}


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    heads = ["teacher", "sentences", "follows its", "method", "penalty", "held-out cosine", "seconds", "peak GiB",
             "seven sets", *CLUSTERS, *FOUND]  # fmt: skip
    forms = {"texts": ",", "penalty": "g", "held": ".4f", "seconds": ".0f", "gib": ".1f"}
    names = ("teacher", "texts", "target", "method", *list(forms)[1:], "seven", *CLUSTERS, *FOUND)

    def cell(name: str, value: Any) -> str:
        return "" if value is None else value if isinstance(value, str) else format(value, forms.get(name, ".1f"))

    cells = [[cell(name, row[name]) for name in names] for row in result["rows"]]
    return HEAD.format(command=result["command"]) + table(heads, cells) + "\n"


HEAD = """# Distilled tables

A table of token vectors that follows a teacher. *Held-out cosine* is the mean cosine to the teacher on sentences of the
corpus that the regression did not see; penalties were chosen by it. *Seconds* are those of solving, every penalty that
was tried included, on one core of a machine in use; *peak* is the memory of the whole process. *Seven sets* is the mean
Spearman x100 of cosine, `all`, over STS12 to 16, STSb and SICK-R; then V-measure of three sets and nDCG@10 of two,
x100. Nothing was chosen by these. Rows without a teacher are finished models. The corpus holds SNLI, from which some
sentences of STSb and SICK-R come, without its labels. Made, a few methods at a time, by

    {command}

"""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts/ and tasks/.")
@click.option("--corpus", "files", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--teacher", "teachers", multiple=True, metavar="NAME=DIR")
@click.option("--model", "models", multiple=True, metavar="NAME=DIR", help="A finished model, for comparison.")
@click.option("--size", "sizes", multiple=True, type=int, default=(5_000, 90_000), help="Sentences, at most.")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS), default=METHODS)
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Keeps the teachers' vectors.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Adds its rows to OUT.md and OUT.json.")
def main(
    data: Path,
    files: tuple[Path, ...],
    teachers: tuple[str, ...],
    models: tuple[str, ...],
    sizes: tuple[int, ...],
    methods: tuple[str, ...],
    cache: Path,
    out: Path,
) -> None:
    """Measure the tables of every teacher on every size of the corpus."""
    places = [data / "sts" / f"{name}.tsv" for name in SEVEN] + [data / "tasks/retrieval" / name for name in FOUND]
    tasks = find_tasks([*places, *(data / "tasks/classes" / f"{name}.tsv" for name in CLUSTERS)])
    for name, _, directory in (given.partition("=") for given in models):
        add(out, whole(name, directory, tasks))
    for name, _, directory in (given.partition("=") for given in teachers):
        teacher = Cached(name, directory, files, cache)
        for size in sizes:
            for row in measured(name, teacher, part(files, size), methods, tasks):
                add(out, row)


def add(out: Path, row: dict[str, Any]) -> None:
    """Put ``row`` into the page, in place of an earlier one of the same case."""
    place = out.with_suffix(".json")
    rows = [row, *(read(place)["rows"] if place.exists() else [])]
    cases = {tuple(one[field] for field in FIELDS): one for one in reversed(rows)}
    ordered = sorted(cases, key=lambda case: (case[0], case[1] or 0, case[2], case[3]))
    write(out, {"command": COMMAND_LINE, "rows": [cases[case] for case in ordered]}, markdown)
    COMMAND.say(str(row))


COMMAND_LINE = (
    "python -m fastflow.bench.research.distil --data .../data --corpus FILE.txt... --teacher NAME=DIR... "
    "--model NAME=DIR... --cache CACHE --out bench/results/distill"
)

if __name__ == "__main__":
    main()
