"""The documentation: its commands and programs run, its links lead somewhere, its prose keeps the rules."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import run_notebook as notebook
from click.testing import CliRunner

from support.places import ROOT, USERS
from support.processes import run_limited
from support.sentence_dirs import NORMALIZE, make_directory, pooling
from support.static_dirs import model2vec_dir

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [
    *PAGES,
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "kernels/README.md", "bench/results/verdicts.md")),
]
VERDICTS = ROOT / "bench" / "results" / "verdicts.md"
MODEL = "my-model"
OTHERS = ROOT / "docs" / "integrations.md"  # its programs need the libraries of the extra doors

NOT_RUN = {  # they install packages (.ci/run runs the first two), or need a GPU
    "pip install -e . && fastflow embed examples/sentences.txt",
    "pip install -e '.[dev]' -c constraints.txt && pytest",
    "pip install -e '.[train]' -c constraints.txt",
    "pip install torch --index-url https://download.pytorch.org/whl/cpu",
    "pip install -e '.[report]' -c constraints.txt",
    "pip install -e '.[eval]' -c constraints.txt",
    "pip install -e '.[gpu]'",
    "pip install -e '.[ray]' -c constraints.txt",
    "fastflow embed examples/novels.txt --device cuda --dtype bfloat16 -o vectors.npy",
}
SLOW = ("fastflow-train ", "fastflow report ", "fastflow bench ")  # run with -m whole

GONE = (  # house rules: sentences that nobody outside could parse
    "by how rare they are",
    "tells little of it",
    "whatever the corpus",
    "without the one that the rule of --stop finds best",
    "are best told from other texts",
    "whatever it does",
    "int8 loses nothing",
    "is as the flow gives it",
    "what rescales every direction",
    "than what does not",
    "unlisted it is never read",
    "then lacks it",
    "vectors by which texts are compared",
    "gives the vectors of models",
    "Users need the first line",
    "but a table that it makes from the model",
    "it is what fastflow makes without labels",
    "with as many of random words",
)


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def commands(page: Path) -> list[str]:
    """The command lines of a page, without their comments."""
    lines = [re.sub(r"\s+#.*", "", line).strip() for block in blocks(page, "bash") for line in block.splitlines()]
    return [line for line in lines if line]


def is_slow(command: str) -> bool:
    return command.startswith(SLOW) or " --ray " in command or " --fit " in command


def makes_a_model(page: Path) -> bool:
    return any(f"-o {MODEL}" in command for command in commands(page))


@pytest.fixture
def desk(tmp_path):
    """A folder as a reader's: the examples, and a cache and a home of its own."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "home").mkdir()
    return tmp_path


def shorten_novels(folder: Path, most: int = 200) -> None:
    """Two hundred lines for three thousand: the commands do the same with them, in a tenth of the time."""
    (folder / "examples").unlink()
    (folder / "examples").mkdir()
    for path in filter(Path.is_file, (ROOT / "examples").iterdir()):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / "examples" / path.name).write_text("".join(lines[:most]), encoding="utf-8")


def copy_model(folder: Path, name: str = MODEL) -> None:
    shutil.copytree(ROOT / "fastflow" / "untuned", folder / name)


def do(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    env = USERS | {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "home" / "cache"), "PATH": path}
    return run_limited(arguments, cwd=folder, env=env, seconds=600, stdin=subprocess.DEVNULL)


def failure(folder: Path, arguments: list[str]) -> str:
    """What a command that failed was and said; nothing of one that succeeded."""
    done = do(folder, arguments)
    return "" if done.returncode == 0 else f"{arguments[-1]}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def command_failure(folder: Path, command: str) -> str:
    return failure(folder, ["bash", "-euo", "pipefail", "-c", command])


def program_failures(folder: Path, page: Path) -> list[str]:
    found: list[str] = []
    for program in blocks(page, "python") if page != OTHERS else []:
        loud = "import ray" in program or "fit(vectors)" in program  # Ray, and a fit of calibrated vectors, warn
        strict = [] if loud else ["-W", "error", "-W", "ignore:words fall into"]
        found.append(failure(folder, [sys.executable, *strict, "-c", program]))
    return [each for each in found if each]


@pytest.mark.doors
@pytest.mark.parametrize("program", blocks(OTHERS, "python"), ids=lambda text: text.split()[1].partition(".")[0])
def test_the_programs_with_other_libraries_print_what_is_shown(program, desk):
    copy_model(desk)
    done = do(desk, [sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == re.findall(r"^print\(.*\)  # (.*)$", program, re.M)
    assert done.stdout


def trains(page: Path) -> bool:
    return any(map(is_slow, commands(page)))


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page_name(page), marks=pytest.mark.whole if trains(page) else pytest.mark.slow)
     for page in PAGES],
)  # fmt: skip
def test_every_command_and_program_runs_as_a_reader_types_it(page, desk, bert):
    """In the order of the page, training included; a page that makes no model has one given.

    The README gets the whole example. The others that train get enough of it for auto to fit a flow, and for --sample
    1000.
    """
    text = page.read_text(encoding="utf-8")
    if page.name != "README.md":
        shorten_novels(desk, 1200 if trains(page) else 200)
    if not makes_a_model(page):
        copy_model(desk)
    if "plain-model" in text:
        copy_model(desk, "plain-model")
    if "st-model" in text:
        prompts = {"query": "query: ", "passage": "passage: "}
        make_directory(desk / "st-model", bert, [pooling("mean"), NORMALIZE], prompts=prompts)
    if "static-model" in text:
        model2vec_dir(desk / "static-model", width=32)
    for command in commands(page):
        if command not in NOT_RUN:
            assert command_failure(desk, command) == ""
    assert program_failures(desk, page) == []


def test_the_list_of_commands_not_run_is_exact():
    documented = {command for page in PAGES for command in commands(page)}
    assert documented >= NOT_RUN, "stale entries"
    assert [command for command in NOT_RUN if not command.startswith("pip install") and "cuda" not in command] == []
    assert len(documented - NOT_RUN) > 20, "the commands were not found"


@pytest.mark.slow
def test_a_command_that_fails_is_noticed(desk):
    assert "no-such.txt cannot be opened" in command_failure(desk, "fastflow embed no-such.txt | cat")


def test_a_program_that_fails_is_noticed(desk):
    (desk / "page.md").write_text("```python\nimport fastflow\nfastflow.Runtime('no-such-model')\n```\n")
    (found,) = program_failures(desk, desk / "page.md")
    assert "no-such-model" in found


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.each
@pytest.mark.parametrize("page", LINKED, ids=page_name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_is_reached_from_the_readme():
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert {page_name(page) for page in PAGES[1:]} <= set(links)


def words(page: Path) -> int:
    return sum(any(map(str.isalnum, word)) for word in page.read_text(encoding="utf-8").split())


def test_pages_are_short():
    references = {"docs/api.md", "docs/commands.md"}  # looked up and not read: test_api_page.py, test_site.py
    lengths = {page_name(page): words(page) for page in PAGES} | {page_name(VERDICTS): words(VERDICTS) / 3}
    assert len(lengths) <= 25
    assert {name: count for name, count in lengths.items() if count > 2000 and name not in references} == {}


def test_the_readme_is_short():
    readme = PAGES[0].read_text(encoding="utf-8")
    prose = re.sub(r"^\|.*", "", readme, flags=re.M)
    assert words(PAGES[0]) <= 900
    assert [line for line in prose.splitlines() if len(line) > 160] == []


def plain(text: str) -> str:
    return " ".join(text.split()).lower()


def help_texts() -> dict[str, str]:
    from fastflow.cli import main
    from fastflow.commands.train import train

    runs = {"fastflow": (main, []), "fastflow-train": (train, [])}
    runs |= {f"fastflow {name}": (main, [name]) for name in main.later}
    return {name: CliRunner().invoke(command, [*words, "--help"]).stdout for name, (command, words) in runs.items()}


def test_no_sentence_that_had_to_go_is_left():
    texts = {page_name(page): page.read_text(encoding="utf-8") for page in LINKED} | help_texts()
    left = [(name, gone) for name, text in texts.items() for gone in GONE if gone.lower() in plain(text)]
    assert left == []


@pytest.mark.slow
def test_the_picture_is_of_committed_results(tmp_path):
    pytest.importorskip("matplotlib")
    import pictures as picture

    picture.draw.callback(tmp_path, None)
    for name in ("compared.png", "calibrated.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_job_of_kubernetes_makes_every_part(tmp_path):
    page = (ROOT / "docs" / "shards.md").read_text(encoding="utf-8")
    (command,) = re.findall(r'^ +args: \["(.*)"\]$', page, re.M)
    (of,) = re.findall(r"^  completions: (\d+)$", page, re.M)
    assert f"/{of} " in command
    data = tmp_path / "data"
    data.mkdir()
    (data / "corpus.txt").write_text("the dog\na cat\nit sings\n")
    command = command.replace("/data/", f"{data}/").replace(f"/{of} ", "/2 ")
    for index in ("0", "1"):
        assert command_failure(tmp_path, f"export JOB_COMPLETION_INDEX={index}; {command}") == ""
    assert [len(np.load(part)) for part in sorted((data / "parts").glob("*.npy"))] == [1, 2]


def cells(kind: str) -> list[dict]:
    kept = notebook.read()
    assert kept["nbformat"] == 4
    return [cell for cell in kept["cells"] if cell["cell_type"] == kind]


def printed() -> list[str]:
    """What the cells printed, as the notebook keeps it."""
    return ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in cells("code")]


def test_the_notebook_is_kept_with_its_outputs_and_without_paths():
    assert len(cells("markdown")) >= 5
    assert len(printed()) >= 5
    assert all(printed())
    text = notebook.NOTEBOOK.read_text(encoding="utf-8")
    assert re.findall(r'["\s](?:/[a-z]|[A-Z]:\\)[^"\s]*', text) == []
    scores = {name: float(value) for name, value in re.findall(r"(raw|before|after|packaged): ([\d.]+)", printed()[3])}
    assert sorted(scores, key=scores.get)[0] == "raw", "the words above the cell say so"
    assert min(value for name, value in scores.items() if name != "raw") > scores["raw"] + 5
    assert len(scores) == 4


@pytest.mark.whole
def test_the_cells_of_the_notebook_print_what_it_keeps(desk):
    """On another processor the third digit of a number may differ, the step that is kept, a warning of few pairs."""
    number, fell = re.compile(r"-?\d+(?:\.\d+)?"), re.compile(r"^Spearman FELL.*\n", re.MULTILINE)
    for cells in zip(notebook.run(notebook.read(), desk), printed(), strict=True):
        found, kept = (fell.sub("", each) for each in cells)
        assert number.sub("#", found) == number.sub("#", kept)
        pairs = list(zip(map(float, number.findall(found)), map(float, number.findall(kept)), strict=True))
        assert all(abs(a - b) <= max(0.03, 0.03 * abs(b)) or "kept step" in kept for a, b in pairs)
