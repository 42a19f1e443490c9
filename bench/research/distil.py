"""The parts of making and comparing tables: a teacher with kept vectors, the tasks, and model2vec's own ``distill``."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.bench.research.distil_corpus import mix_corpora
from fastflow.evaluation.evaluate import SEVEN, Task, find_tasks, measure
from fastflow.session import Count, Session
from fastflow.train.distil.gathering import SHARD
from fastflow.train.distil.teacher import Teacher

CLUSTERS = ("banking77", "clinc150", "agnews-titles")  # V-measure
FOUND = ("quora-duplicates", "cranfield")  # retrieval, nDCG@10


class CachedTeacher(Teacher):
    """A teacher whose vectors (n, D) of ``corpus`` are kept in ``cache`` as NAME.npy, computed in bfloat16."""

    def __init__(self, name: str, directory: str, corpus: Sequence[str], cache: Path) -> None:
        super().__init__(directory)
        self.opened = Session(self.model, "auto", "bfloat16", None, "auto", False)
        self._known: dict[str, int] = {}
        if len(self.targets) == 1:  # a calibrated model in the package is as fast
            path = cache / f"{name}.npy"
            if not path.exists():
                parts = (corpus[i : i + SHARD] for i in range(0, len(corpus), SHARD))
                np.save(path, np.concatenate([super(CachedTeacher, self).__call__(part)["vectors"] for part in parts]))
            self._known = {text: i for i, text in enumerate(corpus)}
            self._vectors = np.load(path, mmap_mode="r")

    def __call__(self, texts: Sequence[str], count: Count | None = None) -> dict[str, NDArray[np.float32]]:
        """Return the teacher's vectors."""
        if self._known and all(text in self._known for text in texts):
            return {"vectors": self._vectors[[self._known[text] for text in texts]]}
        return super().__call__(texts, count)


def score(made: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, float]:
    """Return the mean of the seven sets, ``all``, and the main measure of the other tasks; ``made``: their vectors."""
    found = {task.name: measure(task, made[task.name]) for task in tasks}
    out = {"seven": float(np.mean([values["all"] for name, values in found.items() if name in SEVEN]))}
    return out | {name: next(iter(found[name].values())) for name in (*CLUSTERS, *FOUND)}


def distil_by_model2vec(python: str, name: str, directory: str, cache: Path) -> str:
    """Make the table of model2vec's own ``distill`` by an interpreter that has it; return its directory."""
    out = cache / f"{name}.model2vec"
    if not out.exists():
        program = (
            "import sys; from model2vec.distill import distill\n"
            "distill(sys.argv[1], device='cpu').save_pretrained(sys.argv[2])"
        )
        subprocess.run([python, "-c", program, directory, str(out)], check=True)
    return str(out)


def read_tasks(data: Path) -> list[Task]:
    """Return the seven sets, and the tasks of CLUSTERS and FOUND."""
    places = [data / "sts" / f"{name}.tsv" for name in SEVEN] + [data / "tasks/retrieval" / name for name in FOUND]
    return find_tasks([*places, *(data / "tasks/classes" / f"{name}.tsv" for name in CLUSTERS)])


def keep_corpus(data: Path, cache: Path) -> list[str]:
    """Return the sentences of ``distil_corpus``, made once."""
    path = cache / "corpus.txt"
    cache.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text("".join(f"{text}\n" for text in mix_corpora(data)), encoding="utf-8")
    return path.read_text(encoding="utf-8").split("\n")[:-1]
