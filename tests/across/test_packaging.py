"""What is shipped: the wheel, the sdist, the default model's size, and that README and CI say the same."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from hashlib import sha256
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
def checkout(tmp_path_factory):
    """A copy of the checkout, the same for every build while somebody edits the files."""
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("checkout") / "fastflow", ignore=SCRATCH)


def build(checkout: Path, folder: Path, variable: str, elsewhere: bool = False) -> tuple[Path, Path]:
    """(wheel, sdist) as ``python -m build`` makes them of a copy of the checkout in ``folder``.

    ``elsewhere``: as another person has it, of other dates and modes.
    """
    source, dist, compiler = folder / "fastflow", folder / "dist", folder / "cc"
    shutil.copytree(checkout, source)
    for path in source.rglob("*") if elsewhere else ():
        os.utime(path, (1e9, 1e9))
        path.chmod(path.stat().st_mode & 0o700)
    # what is shipped does not depend on -O3, and that takes three times as long
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    environment = os.environ | {"CC": str(compiler), variable: "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, umask=0o077 if elsewhere else -1
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def built(checkout, variable, tmp_path_factory):
    return build(checkout, tmp_path_factory.mktemp("built"), variable)


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


def test_every_folder_with_python_files_is_a_package():
    for package, folder in packages().items():
        assert (folder / "__init__.py").is_file(), f"{package}: setup.py ships folders with an __init__.py"


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


def test_wheel_carries_every_file_of_the_checkout(built):
    """Modules, and what they read: models, pages, data."""
    with zipfile.ZipFile(built[0]) as wheel:
        held = {name: wheel.read(name) for name in wheel.namelist()}
    for package, folder in packages().items():
        for path in folder.glob("*.py"):
            assert held[f"{package.replace('.', '/')}/{path.name}"] == path.read_bytes()
    count = 0
    for package in ("fastflow", "fastflow.train"):
        for path in (ROOT / ROOMS[package]).rglob("*"):
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                name = f"{package.replace('.', '/')}/{path.relative_to(ROOT / ROOMS[package]).as_posix()}"
                assert held.get(name) == path.read_bytes(), f"{name}: package-data of pyproject.toml leaves it out"
                count += 1
    assert count >= 13


def test_sdist_holds_the_sources_and_no_more(built):
    """Without tests, which need the whole checkout, and without the C that Cython makes."""
    with tarfile.open(built[1]) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames()}
    for name in (
        "setup.py",
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "kernels/_cpu.pyx",
    ):
        assert name in names
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels" / "c").rglob("*.*")}
    assert {Path(name).suffix for name in sources} == {".c", ".h", ".inc", ".pxi"}
    assert sources <= names
    assert not [
        name for name in names if name.startswith(("tests", "bench/results", "bench/research", "kernels/_cpu.c"))
    ]


@pytest.mark.whole
@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")
@pytest.mark.parametrize("variable", [COMPILED], indirect=True, scope="module")
def test_the_extension_needs_the_c_library_alone_and_no_folder_of_its_builder(built, tmp_path):
    with zipfile.ZipFile(built[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".so"))
        found = subprocess.run(
            ["readelf", "-d", wheel.extract(name, tmp_path)], capture_output=True, text=True, check=True
        )
    needed = set(re.findall(r"\(NEEDED\) .*\[(\w+)[-.]", found.stdout))
    assert "libc" in needed
    assert needed <= {"libc", "libm", "libpthread", "ld"}
    assert "PATH)" not in found.stdout


@pytest.mark.whole
@pytest.mark.parametrize("variable", [COMPILED], indirect=True, scope="module")
def test_a_wheel_in_an_environment_of_its_own(built, tmp_path):
    """With its four dependencies and no extra: commands run, or name the package to install."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    program, constraints = tmp_path / "venv" / "bin", str(ROOT / "constraints.txt")
    command = [str(program / "pip"), "install", "-q", str(built[0]), "-c", constraints]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "in.txt").write_text("one text\nanother\n")
    runs = {
        "fastflow embed in.txt --quiet": '{"index": 0',
        "fastflow bench --help": "Usage: fastflow bench",
        "fastflow-train --help": "Usage: fastflow-train",
        "fastflow-train in.txt --encoder default -o model": "run pip install torch",
        "fastflow serve": "run pip install starlette",
        "fastflow embed in.txt -o out.parquet": "run pip install pyarrow",
        "fastflow report model -o page.html": "run pip install matplotlib",
    }
    for line, wanted in runs.items():
        name, *words = line.split()
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(
            [program / name, *words], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120
        )
        assert wanted in done.stdout + done.stderr, line
        assert done.returncode == ("run pip" in wanted), line


@pytest.mark.slow
def test_two_builds_have_the_same_bytes(checkout, built, variable, tmp_path):
    """In another folder, at another time, from files of other dates and modes, under another umask."""
    again = build(checkout, tmp_path, variable, elsewhere=True)
    assert [path.name for path in again] == [path.name for path in built]
    for one, other in zip(built, again, strict=True):
        assert sha256(one.read_bytes()).hexdigest() == sha256(other.read_bytes()).hexdigest(), one.name


def test_the_long_description_leads_to_files_of_this_version(built):
    metadata = message_from_string(wheel_text(built[0], "fastflow-0.1.0.dist-info/METADATA"))
    links = re.findall(r"(!?)\[[^\]]*\]\((\S+?)\)", metadata.get_payload())
    address = dict(line.split(", ") for line in metadata.get_all("Project-URL"))["Repository"]
    assert len(links) > 30
    for picture, link in links:
        kind = "raw" if picture else "blob"
        assert link.startswith(f"{address}/{kind}/v{metadata['Version']}/"), link
        assert (ROOT / link.split("/", 6)[6].partition("#")[0]).exists(), link


def test_the_wheel_has_a_bill_of_its_models_and_their_licences(built):
    bill = json.loads(wheel_text(built[0], "fastflow-0.1.0.dist-info/sboms/fastflow.cdx.json"))
    models = {part["name"]: part for part in bill["components"] if part["type"] == "machine-learning-model"}
    weights = sorted((ROOT / "fastflow").rglob("*.safetensors"))
    assert {f"fastflow/{path.relative_to(ROOT / 'fastflow').parts[0]}" for path in weights} == set(models)
    for name, model in models.items():
        assert "id" in model["licenses"][0]["license"], (
            f"{name}/README.md needs a line **Licence.** with an SPDX identifier"
        )
    named = {part["name"]: part["hashes"][0]["content"] for model in models.values() for part in model["components"]}
    for path in weights:
        assert named[path.relative_to(ROOT).as_posix()] == sha256(path.read_bytes()).hexdigest()
    needed = {part["name"] for part in bill["components"] if part.get("isExternal")}
    assert needed == {"numpy", "click", "tokenizers", "safetensors"}


def test_the_packages_can_be_uploaded(built):
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


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


@pytest.mark.parametrize(("name", "most"), [("default", 25_000_000), ("static", 9_000_000)])
def test_models_in_the_package_are_small_and_whole(name, most):
    from fastflow.model.artifact import PACKAGED, verify

    files = [p for p in PACKAGED[name].rglob("*") if p.is_file()]
    assert 0 < sum(p.stat().st_size for p in files) <= most
    assert any("fingerprint" in line for line in verify(PACKAGED[name]))


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
