"""Fixtures of the suite: tiny random encoders, a small calibrated model, texts, and the evaluation data if present."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from support.places import DATA, USERS  # first: it sets the environment
from support.processes import run_limited

NUMBERS = count()  # of tests
ARM64, X86_64 = ("neon", "neon-mm"), ("avx2", "avx512", "amx", "amx-emulated")
ISAS = ("portable", *(ARM64 if platform.machine() in ("aarch64", "arm64") else X86_64))


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "of each parametrized test: the first case and N - 1 drawn by the commit (0: all)"
    parser.addoption("--cases", type=int, default=2, metavar="N", help=help)


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.register_profile("fastflow", deadline=None)
    hypothesis.settings.load_profile("fastflow")
    if platform.machine() == "aarch64":  # OpenBLAS raises flags of numbers that it does not return
        config.addinivalue_line("filterwarnings", "ignore:.* encountered in matmul:RuntimeWarning")


@pytest.hookimpl(trylast=True)  # after the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep ``--cases`` of each test, unless a case is named."""
    most = config.getoption("--cases")
    if not most or any("[" in argument for argument in config.args):
        return
    from support.quick import list_touched, pick_cases, read_commit

    kept = pick_cases(items, most, read_commit(), list_touched())
    names = {item.nodeid for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    failed = {report.nodeid for kind in ("failed", "error") for report in terminalreporter.getreports(kind)}
    if cases := sorted(name for name in failed if "[" in name):
        terminalreporter.write_line(f"The same cases again: {shlex.join(['pytest', '-m', '', *cases])}")


def require_isa(isa: str) -> str:
    """Return ``isa``; skip if this machine lacks it, and fail if FASTFLOW_REQUIRE_ISA names it."""
    from fastflow.kernels import processor

    known = processor.isas()
    assert set(known) <= {"portable", *ARM64, *X86_64}, "an instruction set that no test would name"
    if isa not in known or not known[isa][1]:
        required = os.environ.get("FASTFLOW_REQUIRE_ISA", "").split()
        assert isa not in required, f"{isa} is required here and cannot run"
        pytest.skip(f"this machine has no {isa}")
    return isa


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Every instruction set; a case that this machine lacks is skipped."""
    return require_isa(request.param)


@pytest.fixture(params=[name for name in ISAS if not name.startswith("amx")])
def float_isa(request: pytest.FixtureRequest) -> str:
    """Every instruction set with its own float32 kernels."""
    return require_isa(request.param)


@pytest.fixture
def forced_isa(isa: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set, by the variable FASTFLOW_ISA."""
    monkeypatch.setenv("FASTFLOW_ISA", isa)
    return isa


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    from support.builders import make_sentences

    return make_sentences(256)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    """The sentences as a txt file, one a line."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``encoders(family)``: the directory of a random encoder of builders.FAMILIES, made once. Do not change it."""
    from support.builders import make_encoder

    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_encoder(tmp_path_factory.mktemp("encoder") / family, family)
        return made[family]

    return get


@pytest.fixture(scope="session")
def bert(encoders: Callable[[str], Path]) -> Path:
    """A BERT encoder: 3 layers, 32 wide, 4 heads, 128 positions. Do not change it."""
    return encoders("bert")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, bert: Path, sentences: list[str]) -> Path:
    """A saved model, flow over the default pooling of ``bert``, limited to 64 tokens. Do not change it."""
    from support.builders import make_model

    return make_model(tmp_path_factory.mktemp("model") / "flow", bert, sentences)


@pytest.fixture(scope="session")
def weighted_model(tmp_path_factory: pytest.TempPathFactory, bert: Path, sentences: list[str]) -> Path:
    """The same with tokens weighed by their frequency in ``sentences``. Do not change it."""
    from support.builders import make_model

    return make_model(tmp_path_factory.mktemp("weighted") / "flow", bert, sentences, weighted=True)


@pytest.fixture(scope="session")
def vector_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model without an encoder, the latent of a flow of 32 dimensions. Do not change it."""
    from support.matrices import make_vector_model

    return make_vector_model(tmp_path_factory.mktemp("vectors") / "flow", "flow", batch_size=32, latent=True)


# copies to spoil
@pytest.fixture
def model_copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


@pytest.fixture
def vectors_copy(vector_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(vector_model, tmp_path / "vectors"))


@pytest.fixture
def bert_copy(bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert, tmp_path / "bert"))


@pytest.fixture(params=["cpu", "reference", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that runs texts on this machine."""
    if request.param == "cpu" and find_spec("fastflow.kernels._cpu") is None:
        pytest.skip("the cpu backend is not compiled here")
    return str(request.param)


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Any:
    from support.gpu_standin import use_standin

    return use_standin(monkeypatch)


@pytest.fixture(autouse=True)
def _no_trial_from_before(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test finds no trial of int8 that another one made, and leaves none in the user's cache."""
    folder = tmp_path_factory.getbasetemp() / "trials" / str(next(NUMBERS))
    monkeypatch.setattr("fastflow.backends.precision.cache_directory", lambda: folder)


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_python(code, *arguments, **options of run_limited)`` in a new interpreter, outside the checkout."""

    def run(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        given = {"cwd": tmp_path, "env": USERS | {"XDG_CACHE_HOME": str(tmp_path / "cache")}}
        return run_limited(command, **{**given, **options})

    return run


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The evaluation data next to the checkout, for tests marked ``data``."""
    if not DATA.is_dir():
        reason = f"needs the evaluation data in {DATA}, which are not shipped"
        if os.environ.get("FASTFLOW_REQUIRE_DATA") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return DATA
