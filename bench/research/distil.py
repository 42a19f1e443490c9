"""Tables distilled from teachers, by several methods on several sizes of a corpus, and by model2vec's own.

python -m fastflow.bench.research.distil --data DIR --teacher NAME=DIR... --cache DIR --out bench/results/distill
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from fastflow.bench.research.distil_corpus import CORPORA, mixture
from fastflow.bench.research.study import read, table, write
from fastflow.evaluation.evaluate import SEVEN, Task, find_tasks, measure
from fastflow.runtime import Runtime
from fastflow.session import Session
from fastflow.train.distil import ridge
from fastflow.train.distil.choosing import Held, choose_prior, fit_table
from fastflow.train.distil.gathering import SHARD, Gathered, gather
from fastflow.train.distil.run import Settings, embed_single_tokens, make_student
from fastflow.train.distil.sums import Floats, Sums
from fastflow.train.distil.teacher import Teacher
from fastflow.train.progress import COMMAND

CLUSTERS = ("banking77", "clinc150", "agnews-titles")  # V-measure
FOUND = ("quora-duplicates", "cranfield")  # retrieval, nDCG@10
METHODS = (
    "tokens alone",  # the teacher's vector of each token, SIF weights, one number
    "prior alone",  # the same mapped linearly
    "ridge without a prior",
    "ridge, lengths as they are",  # rows of X are not divided by the lengths of their vectors
    "fastflow distill",
)
ALONE, PRIOR, WITHOUT, LONG, WHOLE = METHODS
SCALED = 1e9  # a firmness at which the prior's map is one number
FIELDS = ("teacher", "texts", "target", "method")  # what distinguishes a row from another


class Cached(Teacher):
    """A teacher whose vectors of ``corpus`` lie in ``cache`` as NAME.npy (n, D), computed once, in bfloat16."""

    def __init__(self, name: str, directory: str, corpus: Sequence[str], cache: Path) -> None:
        super().__init__(directory)
        self.opened = Session(self.model, "auto", "bfloat16", None, "auto", False)
        self._known: dict[str, int] = {}
        if len(self.targets) == 1:  # a calibrated model in the package is as fast
            path = cache / f"{name}.npy"
            if not path.exists():
                parts = (corpus[i : i + SHARD] for i in range(0, len(corpus), SHARD))
                np.save(path, np.concatenate([super(Cached, self).__call__(part)["vectors"] for part in parts]))
            self._known = {text: i for i, text in enumerate(corpus)}
            self._vectors = np.load(path, mmap_mode="r")

    def __call__(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """As the teacher's."""
        if self._known and all(text in self._known for text in texts):
            return {"vectors": self._vectors[[self._known[text] for text in texts]]}
        return super().__call__(texts)


class Case:
    """A teacher and a target on ``texts``: everything of which the methods make tables."""

    def __init__(self, name: str, teacher: Teacher, texts: list[str], target: str, bags: Any, tasks: Any) -> None:
        self.row = {"teacher": name, "texts": len(texts), "target": target}
        self._teacher, self._texts, self._target, self._bags, self._tasks = teacher, texts, target, bags, tasks

    def take(self, found: Gathered, alone: NDArray[np.float32], before: float) -> None:
        """Take one pass and each single token (V, D); ``before`` are seconds of processor time until then."""
        began = time.process_time()
        self.sums, held = found.sums[self._target], found.held
        self.row["texts"] = found.texts
        self._seen = [text for text in self._texts if text not in set(held)]
        self.held = Held(self._bags(held), self._teacher(held)["vectors"], partial(self._teacher.finish, self._target))
        self.prior = ridge.Prior(alone, found.counts, self.sums, self._bags.uniform)
        self.begin = choose_prior(self.prior, self.sums, self.held)
        self._before = before + time.process_time() - began

    @cached_property
    def plain(self) -> Sums:
        """The sums of bags that are divided by no length."""
        parts = [self._seen[i : i + SHARD] for i in range(0, len(self._seen), SHARD)]
        found = Sums.of(self._bags(parts[0]), self._teacher(parts[0])[self._target])
        for part in parts[1:]:
            found.merge(Sums.of(self._bags(part), self._teacher(part)[self._target]))
        return found

    @cached_property
    def texts_of(self) -> dict[str, sparse.csr_array]:
        """The bags of each task's texts."""
        return {task.name: self._bags(task.texts) for task in self._tasks}

    def measured(self, method: str) -> dict[str, Any]:
        """The row of ``method``."""
        sums = self.plain if method == LONG else self.sums  # made before the clock starts
        began, penalty, vectors = time.process_time(), None, self.begin + self.sums.mean
        if method == ALONE:
            vectors = self.prior(SCALED) + self.sums.mean
        elif method != PRIOR:
            begin = np.zeros_like(self.begin) if method == WITHOUT else self.begin
            fitted = fit_table(self._target, sums, begin, self.held, None, COMMAND)
            penalty, vectors = fitted.penalty, fitted.vectors
        seconds = time.process_time() - began
        row = {"method": method, "penalty": penalty, "held": self.held.measure(vectors), "seconds": seconds,
               "all": self._before + seconds, "gib": peak()}  # fmt: skip
        return self.row | row | self._figures(vectors)

    def _figures(self, vectors: Floats) -> dict[str, float]:
        made = {name: self._teacher.finish(self._target, (bags @ vectors).astype(np.float32))
                for name, bags in self.texts_of.items()}  # fmt: skip
        return figures(made, self._tasks)


def peak() -> float:
    """GiB of memory that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def figures(made: dict[str, Any], tasks: Sequence[Any]) -> dict[str, float]:
    """The mean of the seven sets, ``all``, and the main measure of each other task; ``made``: vectors by task."""
    found = {task.name: measure(task, made[task.name]) for task in tasks}
    out = {"seven": float(np.mean([values["all"] for name, values in found.items() if name in SEVEN]))}
    return out | {name: next(iter(found[name].values())) for name in (*CLUSTERS, *FOUND)}


def measured(
    name: str, teacher: Teacher, texts: list[str], methods: Sequence[str], tasks: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    """A row for each target and method."""
    began = time.process_time()
    student = make_student(teacher, lambda: texts, Settings(), COMMAND)
    alone = embed_single_tokens(teacher, student)
    found = gather(texts, teacher, student.bags, alone, 0, COMMAND, None)
    before = time.process_time() - began
    for target, bags in student.bags.items():
        case = Case(name, teacher, texts, target, bags, tasks)
        case.take(found, alone[target], before)
        for method in methods:
            if not (method == LONG and target != "vectors"):  # the bags of other targets are divided by no length
                yield case.measured(method)


def whole(name: str, directory: str, tasks: Sequence[Any]) -> dict[str, Any]:
    """The row of a finished model."""
    runtime = Runtime(directory)
    row = {"teacher": "", "texts": None, "target": "", "method": name, "penalty": None, "held": None}
    row |= {"seconds": None, "all": None, "gib": None}
    return row | figures({task.name: runtime.encode(task.texts) for task in tasks}, tasks)


def model2vec(python: str, name: str, directory: str, cache: Path) -> str:
    """The directory of the table that model2vec's own ``distill`` makes, by an interpreter that has it."""
    out = cache / f"{name}.model2vec"
    if not out.exists():
        program = (
            "import sys; from model2vec.distill import distill\n"
            "distill(sys.argv[1], device='cpu').save_pretrained(sys.argv[2])"
        )
        subprocess.run([python, "-c", program, directory, str(out)], check=True)
    return str(out)


def markdown(result: dict[str, Any]) -> str:
    """The page."""
    tasks = (*CLUSTERS, *FOUND)
    heads = ["teacher", "sentences", "follows its", "method", "penalty", "held-out cosine", "solving, s",
             "all steps, s", "peak GiB", "seven sets", *tasks]  # fmt: skip
    forms = {"texts": ",", "penalty": "g", "held": ".4f", "seconds": ".0f", "all": ".0f"}
    names = ("teacher", "texts", "target", "method", "penalty", "held", "seconds", "all", "gib", "seven", *tasks)

    def cell(name: str, value: Any) -> str:
        return "" if value is None else value if isinstance(value, str) else format(value, forms.get(name, ".1f"))

    cells = [[cell(name, row[name]) for name in names] for row in result["rows"]]
    corpora = "; ".join(f"at most {most:,} {what}" for most, what in CORPORA.values())
    page = HEAD.format(command=COMMAND_LINE, corpora=corpora) + table(heads, cells) + "\n"
    return page


HEAD = """# Distilled tables

A table of token vectors that follows a teacher. *Held-out cosine* is the mean cosine to the teacher on sentences of the
corpus that the regression did not see; everything was chosen by it. Seconds are processor time on a machine in use:
*solving* with every penalty that was tried; *all steps* from the texts to the table, without the teacher's pass over
the sentences, whose vectors were kept in bfloat16. *Peak* is the memory of the process, with the tasks' texts. *Seven
sets* is the mean Spearman x100 of cosine, `all`, over STS12 to 16, STSb and SICK-R; then V-measure of three sets and
nDCG@10 of two, x100. Nothing was chosen by these. Rows without a teacher are finished models.

| method | is |
| --- | --- |
| tokens alone | the teacher's vector of each token alone, centred, with SIF weights |
| prior alone | the same, put through the linear map that fits the sentences best |
| ridge without a prior | a ridge regression about zero |
| ridge, lengths as they are | about the prior, without dividing each bag by the length of its vector |
| fastflow distill | about the prior, each bag divided |
| model2vec distill | `model2vec.distill.distill` of model2vec 0.10 with its defaults, PCA to 256 numbers among them |
| before: | the regression of commit ab233a2 on another mixture: tokens alone for the prior, no bag divided |

A calibrated teacher has two targets. Its *vectors* are followed by a table alone, its *pooled* state by a table with
the teacher's calibration after it. `fastflow distill` keeps the target with the higher held-out cosine.

Sentences: {corpora}. They hold no labels; SNLI holds some sentences of STSb and SICK-R. The row of 445,626 has at most
60,000, 90,000, 180,000 and 100,000 of the last four, and its teacher computed in int8. **More sentences stopped
helping**: held-out cosine, of other sentences, rises; the seven sets do not (74.8, 74.7). Prose alone is added: a
likely cause, which was not tried apart.

Tried with all-MiniLM-L6-v2 in int8 on 20,640 sentences, and left out: mean cosine to the teacher on 1,360 held-out
sentences; rank correlation with the teacher's cosines, over pairs of each sentence with ten near ones and ten others.
Penalty 0.05. Made by `bench/research/distil_tried.py`; its scripts are last in commit 0a78013.

| change | held-out cosine | pairs |
| --- | ---: | ---: |
| none | 0.8321 | 0.8916 |
| lengths by the whole table, in a second pass of the teacher | 0.8325 | 0.8920 |
| a penalty for each direction by its signal and noise, half of that | 0.8296, 0.8316 | 0.8907, 0.8914 |
| a lower penalty for pieces of words | 0.8318 | 0.8916 |
| a lower, or a higher penalty for rare tokens | 0.8297, 0.8283 | 0.8905, 0.8897 |
| `--words 4000`, of which 3,942 occur twice | 0.8329 | 0.8916 |
| in the prior also the mean vector of a token's sentences, drawn to zero by 1 | 0.8234 | 0.8890 |
| the same, drawn to zero by 10 sentences | 0.8320 | 0.8923 |
| the prior alone | 0.8016 | 0.8743 |
| the prior alone, with that mean | 0.8163, 0.8213 | 0.8851, 0.8872 |

A weight for each token within a bag is in the length of its row already. A finished table of 292,912 sentences was also
tuned, by hand, to the teacher's cosines within batches of 1,024 (squared errors, Adam, one pass, steps of 1e-4 to
1e-3, a quarter or half of a batch neighbours or none, with and without the cosine to the teacher): held-out cosine fell
from 0.8666 to between 0.8638 and 0.8660, pairs from 0.9096 to between 0.9051 and 0.9070. A power of
the covariance, put on the vectors of the table in the package, by hand: pairs 0.9121 without, 0.9108 and 0.9111 with
-0.1 and 0.1, less beyond; 0.9066 and 0.8910 with half and all of the mean taken out. Made, a few cases at a time,
by

    {command}

"""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="corpora/, sts/, tasks/.")
@click.option("--teacher", "teachers", multiple=True, metavar="NAME=DIR")
@click.option("--model", "models", multiple=True, metavar="NAME=DIR", help="A finished model, for comparison.")
@click.option("--model2vec", "python", metavar="PYTHON", help="An interpreter that has model2vec[distill].")
@click.option("--size", "sizes", multiple=True, type=int, default=(10_000, 30_000, 90_000, 300_000), help="Sentences.")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS), default=METHODS)
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Keeps sentences and teachers' vectors.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Adds its rows to OUT.md and OUT.json.")
def main(
    data: Path,
    teachers: tuple[str, ...],
    models: tuple[str, ...],
    python: str | None,
    sizes: tuple[int, ...],
    methods: tuple[str, ...],
    cache: Path,
    out: Path,
) -> None:
    """Measure the tables of every teacher on every size of the corpus."""
    tasks = tasks_of(data)
    corpus = kept_mixture(data, cache)
    named = [(name, directory) for name, _, directory in (given.partition("=") for given in teachers)]
    for name, _, directory in (given.partition("=") for given in models):
        add(out, whole(name, directory, tasks))
    for name, directory in named:
        if python:
            made = model2vec(python, name, directory, cache)
            add(out, whole(f"model2vec distill: {name}", made, tasks))
        else:
            teacher = Cached(name, directory, corpus, cache)
            for size in sizes:
                for row in measured(name, teacher, corpus[:size], methods, tasks):
                    add(out, row)


def tasks_of(data: Path) -> list[Task]:
    """The seven sets, and the tasks of CLUSTERS and FOUND."""
    places = [data / "sts" / f"{name}.tsv" for name in SEVEN] + [data / "tasks/retrieval" / name for name in FOUND]
    return find_tasks([*places, *(data / "tasks/classes" / f"{name}.tsv" for name in CLUSTERS)])


def kept_mixture(data: Path, cache: Path) -> list[str]:
    """``mixture``, made once."""
    path = cache / "corpus.txt"
    cache.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text("".join(f"{text}\n" for text in mixture(data)), encoding="utf-8")
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def add(out: Path, row: dict[str, Any]) -> None:
    """Put ``row`` into the page, in place of an earlier one of the same case."""
    place = out.with_suffix(".json")
    rows = [row, *(read(place)["rows"] if place.exists() else [])]
    cases = {tuple(one[field] for field in FIELDS): one for one in reversed(rows)}
    rank = {method: i for i, method in enumerate(METHODS)}
    ordered = sorted(cases, key=lambda case: (case[0], case[1] or 0, case[2], rank.get(case[3], 0), case[3]))
    write(out, {"command": COMMAND_LINE, "rows": [cases[case] for case in ordered]}, markdown)
    COMMAND.say(str(row))


COMMAND_LINE = (
    "python -m fastflow.bench.research.distil --data .../data --teacher NAME=DIR... [--model2vec PYTHON] "
    "--model NAME=DIR... --cache CACHE --out bench/results/distill"
)

if __name__ == "__main__":
    main()
