"""Run examples/calibrate.ipynb in a process of its own, and keep what its cells print.

python release/run_notebook.py --write
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from fastflow.atomic import replace_text

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "examples" / "calibrate.ipynb"
PROGRAM = """
import contextlib, io, json, sys
found, names = [], {}
for source in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(source, names)
    found.append(said.getvalue())
print(json.dumps(found))
"""


def read() -> dict[str, Any]:
    """Return the notebook."""
    return dict(json.loads(NOTEBOOK.read_text(encoding="utf-8")))


def run(notebook: dict[str, Any], folder: Path = ROOT) -> list[str]:
    """Run the cells of code in ``folder``; return what each prints."""
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    command = [sys.executable, "-W", "error", "-W", "default::UserWarning", "-c", PROGRAM]
    done = subprocess.run(command, cwd=folder, input=json.dumps(sources), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return list(json.loads(done.stdout))


@click.command(help=__doc__)
@click.option("--write", is_flag=True, required=True)
def main(write: bool) -> None:
    """Write the outputs into the notebook."""
    notebook = read()
    said = iter(run(notebook))
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            lines = next(said).splitlines(keepends=True)
            cell["execution_count"] = count
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}]
    replace_text(NOTEBOOK, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
