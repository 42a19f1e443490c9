"""docs/commands.md: every command and its options, from ``--help-all``.

python release/commands_page.py --out docs/commands.md
"""

from __future__ import annotations

from pathlib import Path

import click

from fastflow.atomic import replace_text
from fastflow.cli import main as fastflow
from fastflow.commands.train import train

WIDTH = 100  # letters of a line of help
HEAD = """# Commands

What `--help-all` prints (`--help` leaves out what is rarely needed), made by
`python release/commands_page.py --out docs/commands.md`. Exit codes: 0 done,
1 failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.

Shell completion: put the line of your shell into its start-up file.

| shell | line | file |
| --- | --- | --- |
| bash | `eval "$(_FASTFLOW_COMPLETE=bash_source fastflow)"` | `~/.bashrc` |
| zsh | `eval "$(_FASTFLOW_COMPLETE=zsh_source fastflow)"` | `~/.zshrc` |
| fish | `_FASTFLOW_COMPLETE=fish_source fastflow \\| source` | `~/.config/fish/completions/fastflow.fish` |

## Extras

A command that needs more packages names them. In a clone they can be installed together, as
`pip install -e '.[train,serve]' -c constraints.txt`:

| extra | for |
| --- | --- |
| `train` | `fastflow-train`, `distill`, `embed --fit`; it brings PyTorch ([install that first](calibrate.md)) |
| `serve` | `fastflow serve` |
| `parquet`, `zstd` | files of Parquet, and compressed by zstd |
| `languages` | `fastflow-train --language`: word frequencies of some 40 languages |
| `hub` | `fastflow pull` and `push` |
| `eval` | labelled texts and BM25 in `fastflow eval` |
| `report` | `fastflow report` |
| `onnx` | `fastflow export --to onnx`, `fastflow verify --with onnx` |
| `st` | `fastflow verify --with st`; it brings PyTorch |
| `ray` | `--ray` |
| `gpu` | NVIDIA GPUs |
| `bench`, `peers` | the suites of `fastflow bench`; the other engines in them |
"""


def make_page() -> str:
    """Return the whole page."""
    out = [HEAD]
    for name, command in (("fastflow", fastflow), ("fastflow-train", train)):
        outer = _make_context(command, None, name)
        out.append(_make_section(outer))
        out += [
            _make_section(_make_context(sub, outer, called)) for called, sub in _list_commands(outer) if not sub.hidden
        ]
    return "\n".join(out)


def _list_commands(context: click.Context) -> list[tuple[str, click.Command]]:
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [(name, command) for name, command in found if command is not None]


def _make_context(command: click.Command, parent: click.Context | None, name: str) -> click.Context:
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, parent, name, **settings)
    context.meta["help all"] = True
    return context


def _make_section(context: click.Context) -> str:
    return f"## {context.command_path}\n\n```text\n{context.get_help()}\n```\n"


@click.command(help=__doc__)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True)
def main(out: Path) -> None:
    """Write the page."""
    replace_text(out, make_page())


if __name__ == "__main__":
    main()
