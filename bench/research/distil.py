"""Tables distilled from teachers: the prior alone, ridge without a prior, ridge about the prior; on sizes of a corpus.

python -m fastflow.bench.research.distil --data DIR --corpus FILE.txt... --teacher NAME=DIR... --cache DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.study import table, write
from fastflow.evaluation.evaluate import SEVEN, find_tasks, measure
from fastflow.train.data.corpus import read_texts
from fastflow.train.distil import ridge
from fastflow.train.distil.choosing import Held, fit_table
from fastflow.train.distil.gathering import gather
from fastflow.train.distil.run import Settings, priors, student_of
from fastflow.train.distil.sums import Floats
from fastflow.train.distil.teacher import Teacher, following
from fastflow.train.progress import COMMAND

TASKS = ("quora-duplicates", "cranfield", "scifact")  # retrieval, by nDCG@10


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
    """``count`` texts of all files, as many of each as it has of the whole."""
    found = [list(read_texts([str(file)])) for file in files]
    share = min(1.0, count / sum(map(len, found)))
    return [text for texts in found for text in texts[: round(share * len(texts))]]


def measured(
    name: str, teacher: Teacher, texts: list[str], tasks: Sequence[Any], most: bool
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each method and target; tasks other than scored pairs only for the last method, with ``most``."""
    student, rows = student_of(teacher, lambda: texts, Settings(), COMMAND), []
    found = gather(texts, teacher, student.bags, 0, COMMAND, None)
    alone, wanted = priors(teacher, student), teacher(found.held)["vectors"]
    for target, bags in student.bags.items():
        sums = found.sums[target]
        held = Held(bags(found.held), wanted, partial(teacher.finish, target))
        start = ridge.prior(alone[target], found.counts, sums, bags.uniform)
        without = fit_table(target, sums, np.zeros_like(start), held, None, COMMAND)
        about = fit_table(target, sums, start, held, None, COMMAND)
        for method, vectors, penalty in (
            ("prior alone", start + sums.mean, None),
            ("ridge without a prior", without.vectors, without.penalty),
            ("ridge about the prior", about.vectors, about.penalty),
        ):
            made = _encoder(teacher, target, bags, vectors)
            row = {"teacher": name, "texts": found.texts, "target": target, "method": method, "penalty": penalty,
                   "held": following(made(found.held), wanted)}  # fmt: skip
            last = most and method == "ridge about the prior"
            rows.append(row | figures(made, [task for task in tasks if task.name in SEVEN or last]))
            COMMAND.say(str(rows[-1]))
    return rows


def _encoder(teacher: Teacher, target: str, bags: Any, vectors: Floats) -> Any:
    return lambda texts: teacher.finish(target, (bags(texts) @ vectors).astype(np.float32))


def figures(made: Any, tasks: Sequence[Any]) -> dict[str, float]:
    """The mean of the seven sets, ``all``, and the main measure of each other task."""
    found = {task.name: measure(task, made(task.texts)) for task in tasks}
    out = {"seven": float(np.mean([values["all"] for name, values in found.items() if name in SEVEN]))}
    return out | {name: found[name]["ndcg@10"] for name in TASKS if name in found}


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    heads = ["teacher", "sentences", "follows its", "method", "penalty", "held-out cosine", "seven sets", *TASKS]
    cells = [
        [row["teacher"], f"{row['texts']:,}", row["target"], row["method"],
         "" if row["penalty"] is None else f"{row['penalty']:g}", f"{row['held']:.4f}", f"{row['seven']:.2f}",
         *("" if row.get(name) is None else f"{row[name]:.1f}" for name in TASKS)]
        for row in result["rows"]
    ]  # fmt: skip
    return HEAD.format(command=result["command"]) + table(heads, cells) + "\n"


HEAD = """# Distilled tables

A table of token vectors that follows a teacher. *Held-out cosine* is the mean cosine to the teacher on sentences of the
corpus that the regression did not see; penalties were chosen by it. *Seven sets* is the mean Spearman x100 of cosine,
`all`, over STS12 to 16, STSb and SICK-R; then nDCG@10, x100, of the ridge about the prior. Nothing was chosen by these.
Made by

    {command}

"""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts/ and tasks/.")
@click.option("--corpus", "files", required=True, multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--teacher", "teachers", required=True, multiple=True, metavar="NAME=DIR")
@click.option("--size", "sizes", multiple=True, type=int, default=(10_000, 1_000_000), help="Sentences, at most.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Keeps the teachers' vectors.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(
    data: Path, files: tuple[Path, ...], teachers: tuple[str, ...], sizes: tuple[int, ...], cache: Path, out: Path
) -> None:
    """Measure the tables of every teacher on every size of the corpus."""
    places = [data / "sts" / f"{name}.tsv" for name in SEVEN] + [data / "tasks" / "retrieval" / name for name in TASKS]
    tasks, rows = find_tasks(places), list[dict[str, Any]]()
    for name, _, directory in (given.partition("=") for given in teachers):
        teacher = Cached(name, directory, files, cache)
        for size in sizes:
            rows += measured(name, teacher, part(files, size), tasks, size == max(sizes))
    named = " ".join([*(f"--corpus {file.name}" for file in files), *(f"--teacher {given}" for given in teachers)])
    command = f"python -m fastflow.bench.research.distil --data .../data {named} --cache CACHE --out {out}"
    write(out, {"command": command, "rows": rows}, markdown)


if __name__ == "__main__":
    main()
