"""A row has the same vector, whatever the other rows, threads, processes, windows, formats and services.

A compiled backend gives the same bits; NumPy and PyTorch sum in an order that depends on the other rows.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.files.write.outputs import WRITERS

from support.builders import make_sentences
from support.commands import run
from support.exports import fitted, fitted_table, modules, table
from support.matrices import make_vector_model, make_vectors
from support.sentence_dirs import NORMALIZE, dense, pooling
from support.servers import serving
from support.static_dirs import static_embedding_dir
from support.tolerances import COMPANY
from support.written import read_back

pytestmark = [
    pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]
TEXTS = [*make_sentences(12), "", "☃", "dog", "the dog " * 40]  # models with a limit cut the last one
VECTORS = make_vectors(16, seed=4)
DENSITY = 1e-9  # of a density in float64, which NumPy computes
DENSE = [("Dense", {"out_features": 8}), ("Normalize", {})]


class Subject(NamedTuple):
    """A model; options of its Runtime, and of the call; ``call``: encode, log_prob or transform."""

    make: Callable[..., Path] | None
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    call: str = "encode"

    @property
    def rows(self) -> Any:
        return VECTORS if self.call == "transform" else TEXTS

    @property
    def exact(self) -> bool:
        """Whether bits are compared: NumPy and PyTorch sum in an order that depends on the company."""
        return self.options.get("backend", "cpu") == "cpu" and self.call != "log_prob"


FLOW, WORDS = fitted("flow", ordered=True), fitted("flow", pooling="words")
SUBJECTS = {
    "saved": Subject(None),  # the fixture ``model``
    "flow": Subject(FLOW),
    "words": Subject(WORDS),
    "words, raw": Subject(fitted("none", pooling="words")),
    "words, whitened": Subject(fitted("whiten:7", pooling="words")),
    "words, density": Subject(WORDS, call="log_prob"),
    "table, density": Subject(fitted_table("flow"), call="log_prob"),
    "flow, int8": Subject(FLOW, {"dtype": "int8"}),
    "flow, reference": Subject(FLOW, {"backend": "reference"}),
    "flow, torch": Subject(FLOW, {"backend": "torch"}),
    "flow, cut": Subject(FLOW, settings={"truncate_dim": 9}),
    "flow, unit": Subject(FLOW, settings={"normalize_embeddings": True, "prompt": "a dog "}),
    "flow, float16": Subject(FLOW, settings={"precision": "float16"}),
    "density": Subject(FLOW, call="log_prob"),
    "raw": Subject(lambda path, encoders, texts: encoders("roberta")),
    "modernbert": Subject(lambda path, encoders, texts: encoders("modernbert")),
    "modules": Subject(modules("bert", pooling("mean", "max"), dense(20), NORMALIZE)),
    "table": Subject(table(dtype=np.int8, weights=np.float32, normalize=True)),
    "table, reference": Subject(table(normalize=True), {"backend": "reference"}),
    "table, calibrated": Subject(fitted_table("flow", weighted=True)),
    "bag": Subject(lambda path, encoders, texts: static_embedding_dir(path, DENSE, dtype=np.float16)),
    "vectors": Subject(lambda path, encoders, texts: make_vector_model(path, "flow", batch_size=32), call="transform"),
}


class Open:
    """A subject with its vectors, and ways to compute them again."""

    def __init__(self, name: str, path: Path) -> None:
        self.subject, self.path = SUBJECTS[name], path
        self.rows, self.runtime = self.subject.rows, self.open(threads=2)
        self.wanted = self.compute()

    def open(self, **options: Any) -> Runtime:
        return Runtime(self.path, "cpu", **{"backend": "cpu", **self.subject.options, **options})

    def compute(self, rows: Any = None, runtime: Runtime | None = None, **options: Any) -> np.ndarray:
        call = getattr(runtime or self.runtime, self.subject.call)
        return np.asarray(call(self.rows if rows is None else rows, **{**self.subject.settings, **options}))

    def check(self, name: str, found: Any, wanted: Any = None) -> None:
        """``found`` are the vectors, to the bit if the backend promises that."""
        wanted = self.wanted if wanted is None else wanted
        found = np.asarray(found)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
        if self.subject.exact:
            assert np.array_equal(found, wanted), name
        else:
            scale = max(1, np.abs(wanted).max())
            limit = DENSITY if self.subject.call == "log_prob" else COMPANY["float32"]
            assert np.abs(found - wanted).max() <= limit * scale, name


def company(of: Open) -> Iterator[tuple[str, Any]]:
    yield "one by one", np.concatenate([of.compute(of.rows[i : i + 1]) for i in range(len(of.rows))])
    yield "reversed", of.compute(of.rows[::-1])[::-1]
    yield "twice", of.compute([*of.rows, *of.rows])[len(of.rows) :]
    if of.subject.call == "transform":
        return
    for size in (1, 3, 100):
        yield f"batches of {size}", of.compute(of.rows, batch_size=size)
    for kind in (iter, tuple, np.array, lambda rows: dict(enumerate(rows)).values()):
        yield f"from {kind}", of.compute(kind(of.rows))
    if of.subject.call == "encode":
        yield "a list of vectors", of.compute(of.rows, convert_to_numpy=False)


def threads(of: Open) -> Iterator[tuple[str, Any]]:
    """Other numbers of threads, and callers at once."""
    for count in (1, 3):
        yield f"{count} threads", of.compute(runtime=of.open(threads=count))
    found: list[Any] = [None] * 8
    start = threading.Barrier(len(found))

    def work(number: int) -> None:
        start.wait()
        found[number] = [of.compute(of.rows[number::8]) for _ in range(3)]

    callers = [threading.Thread(target=work, args=(number,)) for number in range(len(found))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for turn in range(3):
        both = np.empty_like(of.wanted)
        for number, each in enumerate(found):
            both[number::8] = each[turn]
        yield f"eight callers, turn {turn}", both


def processes(of: Open) -> Iterator[tuple[str, Any]]:
    yield "pickled", of.compute(runtime=pickle.loads(pickle.dumps(of.runtime)))
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        signal.alarm(60)  # ends a child that waits for threads it has not inherited
        try:
            with os.fdopen(write, "wb") as pipe:
                pipe.write(of.compute().tobytes())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    yield "in a child", np.frombuffer(data, of.wanted.dtype).reshape(of.wanted.shape)
    yield "in its parent", of.compute()


def streams(of: Open) -> Iterator[tuple[str, Any]]:
    if of.subject.call == "transform":
        return
    settings = of.subject.settings
    for window in (1, 7, None) if of.subject.call == "encode" else ():
        blocks = list(of.runtime.stream(iter(of.rows), window=window, **settings))
        starts = np.cumsum([0, *(len(block[1]) for block in blocks)]).tolist()
        assert [block[0] for block in blocks] == starts[:-1]
        yield f"windows of {window}", np.concatenate([block[-1] for block in blocks])
    if "prompt" not in settings:
        of_vectors = of.runtime.log_prob if of.subject.call == "log_prob" else of.runtime.transform
        yield "in two steps", of_vectors(of.runtime.pool(of.rows), **settings)


def files(of: Open, folder: Path) -> Iterator[tuple[str, Any]]:
    source, model = folder / "in.txt", ("-m", of.path, "--quiet")
    source.write_text("".join(f"{text}\n" for text in of.rows), encoding="utf-8")

    def embed(*words: object) -> str:
        done = run(*words)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    for suffix in WRITERS:
        embed("embed", source, *model, "-o", folder / f"x{suffix}")
        yield suffix, read_back(folder / f"x{suffix}")[0]
    lines = [json.loads(line)["embedding"] for line in embed("embed", source, *model).splitlines()]
    yield "standard output", np.array(lines, np.float32)
    for how in (["--dedupe"], ["--cache", folder / "c.db"], ["--cache", folder / "c.db"]):
        embed("embed", source, *model, *how, "-o", folder / "x.npy")
        yield f"{how[0]}", np.load(folder / "x.npy")
    for shard in ("1/2", "2/2"):
        embed("embed", source, *model, "--shard", shard, "-o", folder / "parts")
    embed("merge", folder / "parts", "-o", folder / "merged.npy")
    yield "merged shards", np.load(folder / "merged.npy")


def services(of: Open, folder: Path) -> Iterator[tuple[str, Any]]:
    with serving(of.path) as server:
        answer = server.post("/embed", {"inputs": of.rows, "normalize": False, "truncate": True})
    assert answer.status == 200, answer.body
    yield "a server", np.array(answer.json, np.float32)


QUICK = ("saved", "words", "table", "bag", "vectors")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in SUBJECTS]
OF_FILES = ("saved", "words", "raw", "modules", "table", "table, calibrated", "bag")  # of the command's own settings


@pytest.fixture(scope="module")
def opened(tmp_path_factory, encoders, sentences, model):
    paths, made = {None: model}, {}

    def get(name):
        make = SUBJECTS[name].make
        if make not in paths:
            paths[make] = make(tmp_path_factory.mktemp("same") / "m", encoders, sentences)
        if name not in made:
            made[name] = Open(name, paths[make])
        return made[name]

    return get


@pytest.mark.parametrize("disturb", [company, threads, processes, streams], ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_whatever_disturbs_a_runtime(opened, name, disturb):
    of = opened(name)
    for how, found in disturb(of):
        of.check(how, found)


@pytest.mark.slow
@pytest.mark.parametrize("disturb", [files, services], ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", OF_FILES)
def test_whatever_the_file_or_the_service(opened, name, disturb, tmp_path):
    of = opened(name)
    for how, found in disturb(of, tmp_path):
        of.check(how, found)
