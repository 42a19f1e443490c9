"""A fork while another thread makes, or imports, what a Runtime needs late: the child has the right numbers."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.late import late, making

from support.places import ROOT
from support.static_dirs import byte_level, model2vec_dir, static_embedding_dir

LONG = "the dog sleeps near it. " * 300  # more characters than any limit
AGREE = 1e-5  # of a backend that computes with other threads in the child
AT_FORK: list[Callable[[], None]] = []  # called before a fork, ahead of what fastflow does then
os.register_at_fork(before=lambda: [call() for call in AT_FORK])
QUIET = pytest.mark.filterwarnings("ignore::fastflow.FastflowWarning", "ignore:.*multi-threaded, use of fork")


class Late(NamedTuple):
    """A function or module ``target`` that makes a late thing, and the one of USES that needs it."""

    model: str
    target: str
    use: str
    options: dict[str, Any] = {}  # noqa: RUF012 - of Runtime, and never changed


USES: dict[str, Callable[[Runtime], Any]] = {
    "encode": lambda rt: rt.encode(["a dog", LONG]),
    "cut": lambda rt: rt.transform(np.ones((3, 32)), truncate_dim=5),
    "pieces": lambda rt: [piece.id for piece in rt.tokenizer.describe(["a dog"])[0]],
    "fingerprint": lambda rt: [int(rt.fingerprint, 16) % 2**32],
    "similarity": lambda rt: rt.similarity(["a dog"], ["a cat"]),
}
LIBRARY = "fastflow.model.tokenizer.files.SavedTokenizer.library"
LONG_TEXTS, CUTS = "fastflow.model.tokenizer.cuts.LongTexts.__init__", "fastflow.model.tokenizer.cuts.find_cuts"
CASES = [
    Late("flow", LIBRARY, "pieces"),
    Late("vectors", "fastflow.backends.cpu.fold", "cut"),
    Late("roberta", LONG_TEXTS, "encode"),
    Late("roberta", CUTS, "encode"),
    Late("roberta", CUTS, "encode", {"backend": "torch"}),
    Late("model2vec", LIBRARY, "pieces"),
    Late("model2vec", "fastflow.model.hashing.combine_hashes", "fingerprint"),
    Late("model2vec of BPE", LONG_TEXTS, "encode"),
    Late("StaticEmbedding", LIBRARY, "pieces"),
    Late("StaticEmbedding of BPE", LONG_TEXTS, "encode"),
]
IMPORTS = [
    Late("roberta", "fastflow.model.tokenizer.cuts", "encode"),
    Late("flow", "fastflow.transforms.vectors", "similarity"),
    Late("flow", "fastflow.model.tokenizer.languages", "encode"),
]
MODELS: dict[str, Callable[[Path], Path]] = {
    "model2vec": lambda path: model2vec_dir(path, seq_length=16),
    "model2vec of BPE": lambda path: model2vec_dir(path, byte_level(), seq_length=16),
    "StaticEmbedding": static_embedding_dir,
    "StaticEmbedding of BPE": lambda path: static_embedding_dir(path, tokenizer=byte_level()),
}


def name_case(case: Late) -> str:
    return " ".join([case.model, *map(str, case.options.values()), case.target.rpartition(".")[2], case.use])


@pytest.fixture(scope="module")
def models(tmp_path_factory, model, vector_model, encoders) -> Callable[[str], Any]:
    made = {"flow": model, "vectors": vector_model}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = MODELS[name](tmp_path_factory.mktemp("late") / "m") if name in MODELS else encoders(name)
        return made[name]

    return get


class Inside:
    """The first thread that calls ``reach`` waits until another one forks, and a little longer."""

    def __init__(self) -> None:
        self.first = True
        self.there, self.forking, self.forked = threading.Event(), threading.Event(), threading.Event()

    def reach(self) -> None:
        if not self.first:
            return
        self.first = False
        self.there.set()
        assert self.forking.wait(20)
        self.forked.wait(0.05)  # a fork that does not wait happens now


@pytest.fixture
def inside() -> Iterator[Inside]:
    found = Inside()
    AT_FORK.append(found.forking.set)
    yield found
    AT_FORK.clear()


def patch_call(monkeypatch, target: str, inside: Inside) -> None:
    """Reach ``inside`` when the function ``target`` is called."""
    place, _, name = target.rpartition(".")
    owner = getattr(import_module(place.rpartition(".")[0]), place.rpartition(".")[2], None) or import_module(place)
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **options: inside.reach() or real(*given, **options))


def patch_import(monkeypatch, target: str, inside: Inside) -> None:
    real = SourceFileLoader.exec_module

    def load(self: Any, module: Any) -> None:
        if module.__name__ == target:
            inside.reach()
        real(self, module)

    monkeypatch.setattr(SourceFileLoader, "exec_module", load)
    monkeypatch.delitem(sys.modules, target)


@QUIET
@pytest.mark.parametrize(
    ("case", "patch"),
    [pytest.param(case, patch_call, id=name_case(case)) for case in CASES]
    + [pytest.param(case, patch_import, id=name_case(case)) for case in IMPORTS],
)
def test_a_fork_while_a_late_thing_is_made_or_imported(models, monkeypatch, inside, case, patch):
    """Fork while another thread is in it: child and parent must have the numbers of a Runtime without forks."""
    use = USES[case.use]
    wanted = np.asarray(use(Runtime(models(case.model), **case.options)))
    rt = Runtime(models(case.model), threads=1, **case.options)
    patch(monkeypatch, case.target, inside)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(use(rt)))
    thread.start()
    assert inside.there.wait(20)
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # ends a child that waits for a thread it has not inherited
        os._exit(0 if np.abs(np.asarray(use(rt)) - wanted).max() <= AGREE else 3)
    inside.forked.set()
    status = os.waitpid(pid, 0)[1]
    thread.join()
    assert status == 0, f"the child ended with {status}; {int(signal.SIGALRM)} is a child that hung"
    assert np.abs(np.asarray(found[0]) - wanted).max() <= AGREE


def test_a_fork_by_the_thread_that_makes_something_and_a_failure_that_is_tried_again():
    class Subject:
        tries = 0

        @late
        def child(self) -> int:
            """The child's id."""
            self.tries += 1
            if self.tries == 1:
                raise KeyError
            if (pid := os.fork()) == 0:
                with making:
                    os._exit(0)
            return pid

    subject = Subject()
    with pytest.raises(KeyError):
        subject.child  # noqa: B018
    assert os.waitpid(subject.child, 0)[1] == 0
    assert subject.__dict__ == {"tries": 2, "child": subject.child}
    assert Subject.child.__doc__ == "The child's id."


LOCKS = {  # the locks that a Runtime holds while it computes, and why no child waits for them
    "fastflow/late.py": ["RLock"],  # a fork waits for it
    "fastflow/backends/triton.py": ["RLock"],  # a child is refused before
    "fastflow/serve/engine.py": ["Lock", "Condition", "Lock"],  # a server does not fork
}


def test_nothing_else_has_a_lock():
    paths = [path for room in ("fastflow", "kernels") for path in sorted((ROOT / room).rglob("*.py"))]
    kinds = re.compile(r"(?:import .*|threading\.)\b(cached_property|Lock|RLock|Condition|Semaphore)\b")
    found = {str(path.relative_to(ROOT)): kinds.findall(path.read_text(encoding="utf-8")) for path in paths}
    assert {path: locks for path, locks in found.items() if locks} == LOCKS
