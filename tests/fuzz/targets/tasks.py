"""The files of `fastflow eval`: scored and labelled pairs, labelled texts, a folder of documents and queries, a bitext.

Bytes: the file, the two of a bitext or the three of a folder, with NULs between.
"""

import numpy as np
from harness import Finding, check_contract, scratch

from fastflow.evaluation.evaluate import Pairs, find_tasks, measure

FOLDER = scratch()
FILES = ("corpus.tsv", "queries.tsv", "qrels.tsv")


def one(data: bytes) -> None:
    path = FOLDER / "task.tsv"
    parts = data.split(b"\0")
    if len(parts) == 2:
        paths = [FOLDER / "x.txt", FOLDER / "y.txt"]
        for each, part in zip(paths, parts, strict=True):
            each.write_bytes(part)
        check_contract(lambda: read(*paths))
        return
    if len(parts) == len(FILES):
        path = FOLDER / "task"
        path.mkdir(exist_ok=True)
        for name, part in zip(FILES, parts, strict=True):
            (path / name).write_bytes(part)
    else:
        path.write_bytes(data)
    check_contract(lambda: read(path))


def read(*paths) -> None:
    """The task, and the measures of vectors that have nothing to do with it."""
    (task,) = find_tasks(paths)
    texts = [*task.first, *task.second] if isinstance(task, Pairs) else task.texts
    if not all(isinstance(text, str) for text in texts):
        raise Finding("a text is no str")
    if isinstance(task, Pairs) or len(texts) > 200:
        return
    found = measure(task, np.random.default_rng(0).normal(size=(len(texts), 4)))
    if not all(isinstance(value, float) for value in found.values()):
        raise Finding(f"measures that are no numbers: {found}")


def seeds() -> list[bytes]:
    return [
        b"subset\tscore\tsentence1\tsentence2\na\t1\tx\ty\na\t2.5\tx y\tz\n",
        b"split\tlabel\tsentence1\tsentence2\ntest\t1\tx\ty\ntest\t0\tx y\tz\n",
        b"split\tlabel\ttext\ntrain\ta\tx\ntrain\tb\ty\ntest\ta\tz\ntest\tb\tw\n",
        b"id\ttitle\ttext\n1\t-\tx\n2\tt\ty\n\0id\ttext\nq\tz\n\0query\tdoc\tgrade\nq\t1\t1\n",
        b"x\ny z\n\0a\nb c\n",
    ]
