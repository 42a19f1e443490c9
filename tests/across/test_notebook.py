"""The notebook in examples: it holds no outputs, and its code runs from top to bottom, without Jupyter."""

import json
import re
import sys

import pytest

from support.places import ROOT, USERS
from support.processes import run_limited

NOTEBOOK = ROOT / "examples" / "calibrate.ipynb"
RUN = """
import json, sys
namespace = {"__name__": "__main__"}
with open(sys.argv[1], encoding="utf-8") as file:
    cells = json.load(file)["cells"]
for cell in cells:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
"""


def cells(kind):
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_it_is_kept_without_outputs_and_paths():
    code = cells("code")
    assert len(code) >= 5
    assert len(cells("markdown")) >= 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert re.findall(r'["\s](?:/[a-z]|[A-Z]:\\)[^"\s]*', text) == []
    for cell in code:
        compile("".join(cell["source"]), cell["id"], "exec")


@pytest.mark.whole
def test_its_cells_run_in_order(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, "-W", "error", "-W", "default::UserWarning", "-c", RUN, str(NOTEBOOK)]
    env = USERS | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = run_limited(command, cwd=tmp_path, env=env, seconds=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "recolour(" in done.stdout
    scores = {name: float(value) for name, value in re.findall(r"(raw|before|after|packaged): ([\d.]+)", done.stdout)}
    assert sorted(scores, key=scores.get)[0] == "raw"
    assert sorted(scores, key=scores.get)[-1] == "after"
    assert len(scores) == 4
    assert ("FELL" in done.stdout) == (scores["after"] < scores["before"])
    assert "(3, 256) cpu" in done.stdout
