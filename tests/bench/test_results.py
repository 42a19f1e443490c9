"""The kept results have their rows and commands, and the folders of the bench import one another in one direction."""

import re
from importlib.util import find_spec

import pytest

from fastflow.bench.every import RANGES, RUNS

from support.arrows import GRAPH
from support.places import ROOT

RESULTS = ROOT / "bench" / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
KEPT = sorted(path for path in RESULTS.iterdir() if path.name != "README.md" and path.is_file())
MACHINES = sorted(path.name for path in RESULTS.iterdir() if path.is_dir())


def listed():
    """The names of the table's first column; an ending alone, as in `.json`, belongs to every name before it."""
    names = set()
    for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE):
        words = re.findall(r"`([^`]+)`", row)
        endings = [word for word in words if re.fullmatch(r"\.\w+", word)]
        whole = [word for word in words if word not in endings]
        names |= {*whole, *(name.rpartition(".")[0] + ending for name in whole for ending in endings)}
    return names


def test_every_file_with_figures_is_quoted():
    """By its name or its page: in the verdicts, another page, a test or the code."""
    folders = ("docs", "bench", "tests", "train", "release", "kernels")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files if path != RESULTS / "README.md")
    kept = [path for path in KEPT if path.suffix == ".json"]
    assert [path.name for path in kept if not re.search(rf"\b{path.stem}\.(?:json|md)\b", text)] == []


def test_every_file_is_in_the_table_and_the_table_names_no_other():
    inside = {name for name in listed() if "/" not in name}
    assert {path.name for path in KEPT} == inside
    outside = listed() - inside
    assert {f"{machine}/" for machine in MACHINES} <= outside, "a folder for each machine"
    assert "../../docs/compared.png" in outside
    assert all((RESULTS / name).exists() for name in outside)


@pytest.mark.each
@pytest.mark.parametrize("machine", MACHINES)
def test_every_file_of_a_machine_is_of_a_run_or_in_the_table(machine):
    runs = {*RUNS, RANGES.removesuffix(".json")}
    for path in (RESULTS / machine).iterdir():
        assert path.stem in runs or f"`{machine}/{path.name}`" in PAGE, path.name
        if path.suffix == ".txt":
            assert path.with_suffix(".json").is_file()


@pytest.mark.each
@pytest.mark.parametrize("path", [RESULTS / "README.md", *(p for p in KEPT if p.suffix == ".md")], ids=lambda p: p.name)
def test_the_commands_name_modules_that_exist(path):
    for module in set(re.findall(r"python -m (fastflow[\w.]*\w)", path.read_text(encoding="utf-8"))):
        assert find_spec(module), f"{path.name} names {module}"


ALLOWED = {
    "measure": {"measure"},
    "peers": {"peers", "measure"},
    "report": {"report"},
    "suites": {"suites", "peers", "measure", "report"},
}


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_from_those_below_it(folder):
    here = {name: arrows for name, arrows in GRAPH.items() if name.startswith(f"fastflow.bench.{folder}.")}
    assert len(here) > 3
    for name, arrows in here.items():
        reached = {each.split(".")[2] for each in arrows if each.startswith("fastflow.bench.")}
        assert reached <= ALLOWED[folder], name
