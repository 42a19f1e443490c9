"""What is shipped: the wheel, the sdist, the default model's size, and that README and CI say the same."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.places import ROOT

ROOMS = {"fastflow": "fastflow", "fastflow.kernels": "kernels", "fastflow.train": "train", "fastflow.bench": "bench"}
RESEARCH = ROOT / "bench" / "research"  # studies: in the checkout alone
SCRATCH = shutil.ignore_patterns(
    ".git", "build", "dist", "*.egg-info", "__pycache__", "*.so", "_cpu.c", ".*_cache", ".hypothesis"
)


PURE = pytest.param("FASTFLOW_NO_EXT", id="pure")
COMPILED = pytest.param("FASTFLOW_REQUIRE_EXT", id="compiled", marks=pytest.mark.whole)


@pytest.fixture(scope="module", params=[PURE, COMPILED])
def variable(request):
    """What setup.py is told: to leave the extension out, which takes most of a build, or that it must be there."""
    return request.param


@pytest.fixture(scope="module")
def built(variable, tmp_path_factory):
    """(wheel, sdist) as ``python -m build`` makes them, the wheel by way of the sdist."""
    source, dist = tmp_path_factory.mktemp("source") / "fastflow", tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, source, ignore=SCRATCH)
    compiler = dist.with_name("cc")  # what is shipped does not depend on -O3, and that takes three times as long
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    environment = os.environ | {"CC": str(compiler), variable: "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=dist, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(built, variable, tmp_path_factory):
    """The wheel unpacked into a folder of its own; the extension of this checkout stands for one left out."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(built[0])]
    subprocess.run(command, check=True, capture_output=True)
    if variable == "FASTFLOW_NO_EXT":
        shutil.copy(find_spec("fastflow.kernels._cpu").origin, target / "fastflow" / "kernels")
    return target


def test_readme_and_ci_run_the_same_commands():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    commands = re.search(r"```bash\n(.*?)```", readme, re.S)[1].strip().splitlines()
    assert len(commands) == 2
    for command in commands:
        assert re.search(rf"^{re.escape(command)}( >.*)?$", ci, re.M), command


def requirements(lines: list[str], python: str) -> list[Requirement]:
    """What ``lines`` ask for on Linux under that Python."""
    where = {"python_version": python, "python_full_version": f"{python}.0", "platform_system": "Linux"}
    where |= {"platform_machine": "x86_64", "sys_platform": "linux"}
    found = map(Requirement, lines)
    return [each for each in found if each.marker is None or each.marker.evaluate(where)]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_requirement_of_every_extra_is_pinned_once(python):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = requirements([line for line in lines if line], python)
    for extra, asked in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for each in requirements(asked, python):
            found = [str(pin.specifier) for pin in pins if pin.name == each.name]
            if each.name != "fastflow":
                assert len(found) == 1, f"{extra}: {each.name} has {len(found)} pins in constraints.txt"
                assert each.specifier.contains(found[0].removeprefix("==")), f"{extra}: {each}, and pinned {found[0]}"
    torch, zentorch = (next(str(p.specifier) for p in pins if p.name == name) for name in ("torch", "zentorch"))
    assert zentorch.split(".")[:2] == torch.split(".")[:2], "zentorch loads the torch of its own version alone"


def test_the_hooks_have_the_pinned_versions():
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.M))
    hooks = re.findall(r"repo: \S+/([\w-]+)\n\s+rev: v(\S+)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert hooks == [("ruff-pre-commit", pins["ruff"]), ("codespell", pins["codespell"])]


def test_ci_lints_before_it_tests_and_types_what_the_readme_says():
    ci, readme = (ROOT / ".ci" / "run").read_text(), (ROOT / "README.md").read_text()
    commands = re.findall(r"^pip install -e .*$", readme, re.M)[:2]
    places = [ci.index(words) for words in (commands[0], "just lint", commands[1], "just slow")]
    assert places == sorted(places)


def packages() -> dict[str, Path]:
    """Package name -> folder, of every folder that holds Python files to be shipped."""
    folders = {path.parent for room in ROOMS.values() for path in (ROOT / room).rglob("*.py")} - {RESEARCH}
    named = {}
    for package, room in ROOMS.items():
        for folder in folders:
            if folder.is_relative_to(ROOT / room):
                named[".".join([package, *folder.relative_to(ROOT / room).parts])] = folder
    return named


def test_every_folder_with_python_files_is_a_declared_package():
    declared = re.search(r"^packages = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.S | re.M)[1]
    assert sorted(re.findall(r'"([^"]+)"', declared)) == sorted(packages()), "what is not declared is not in the wheel"
    for package, folder in packages().items():
        assert (folder / "__init__.py").is_file(), package


@pytest.mark.slow
def test_every_module_of_the_wheel_imports(installed, tmp_path):
    """Outside the checkout; a module may lack an extra that is not installed, and nothing of ours."""
    program = (
        "import importlib, pkgutil, sys, fastflow\n"
        "assert fastflow.__file__.startswith(sys.argv[1]), fastflow.__file__\n"
        "for found in pkgutil.walk_packages(fastflow.__path__, 'fastflow.'):\n"
        "    try:\n"
        "        importlib.import_module(found.name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if (error.name or 'fastflow').startswith('fastflow'): raise\n"
        "    print(found.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, installed], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    modules = {
        ".".join([package, path.stem]) for package, folder in packages().items() for path in folder.glob("[!_]*.py")
    }
    assert modules <= set(done.stdout.split())


def wheel_text(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as held:
        return held.read(name).decode("utf-8")


def test_wheel_holds_only_fastflow(built, variable):
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
    outside = [n for n in names if not n.startswith(("fastflow/", "fastflow-"))]
    assert outside == []
    assert [n for n in names if n.endswith((".pyx", ".pxi", ".c", ".h", ".inc")) or "research" in n] == []
    extensions = [n for n in names if "/kernels/_cpu" in n and n.endswith(".so")]
    assert len(extensions) == (variable != "FASTFLOW_NO_EXT")
    for name in ("py.typed", "runtime.py", "kernels/encoder/reference.py", "train/cli.py", "bench/__init__.py"):
        assert f"fastflow/{name}" in names
    name = "choice/probe.txt"
    assert wheel_text(built[0], f"fastflow/train/{name}") == (ROOT / "train" / name).read_text(encoding="utf-8")
    assert "fastflow/train/data/background.txt.gz" in names
    for name in ("page.html", "page.css", "page.js"):
        assert wheel_text(built[0], f"fastflow/serve/page/{name}") == (
            ROOT / "fastflow" / "serve" / "page" / name
        ).read_text(encoding="utf-8")
    for name in ("fastflow.json", "calibration.safetensors", "README.md", "0_Transformer/model.safetensors"):
        assert f"fastflow/default/{name}" in names


def test_wheel_carries_every_module_of_the_checkout(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
    for package, folder in packages().items():
        for path in folder.glob("*.py"):
            assert f"{package.replace('.', '/')}/{path.name}" in names


@pytest.mark.parametrize("variable", [COMPILED], indirect=True, scope="module")
def test_sdist_can_be_built_from(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md", "kernels/_cpu.pyx", "kernels/c/cpu.h"):
        assert name in names
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels" / "c").rglob("*.*")}
    assert {Path(name).suffix for name in sources} == {".c", ".h", ".inc", ".pxi"}
    assert sources <= names


@pytest.mark.slow
def test_installed_wheel_embeds_without_torch(installed, tmp_path):
    (tmp_path / "in.txt").write_text("one text\nanother\n")
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['scipy'] = None\n"
        "import fastflow; print(fastflow.__file__, file=sys.stderr)\n"
        "from fastflow.cli import main; main(['embed', 'in.txt', '--quiet'])"
    )
    env = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(installed) in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["one text", "another"]
    assert all(len(row["embedding"]) == 256 for row in rows)


def test_default_model_is_small_and_whole():
    from fastflow.model.artifact import DEFAULT, verify

    files = [p for p in DEFAULT.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) <= 25_000_000
    assert any("fingerprint" in line for line in verify(DEFAULT))


def test_import_is_light():
    program = (
        "import sys, fastflow\n"
        "heavy = {'torch', 'transformers', 'triton', 'numpy', 'scipy', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_extension_loaded_where_it_is_required():
    if os.environ.get("FASTFLOW_REQUIRE_EXT") != "1":
        pytest.skip("FASTFLOW_REQUIRE_EXT is not set: a build without a compiler is allowed here")
    from fastflow.kernels import _cpu

    assert _cpu.isas()
