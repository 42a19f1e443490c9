"""The ``fastflow`` command: a group of the commands in ``fastflow.commands``."""

from __future__ import annotations

import click

from fastflow.console import Commands
from fastflow.version import __version__

MODULES = {  # of fastflow.commands, and the commands in each: one is imported when it runs
    "embed": ("embed", "transform"),
    "keep": ("cache", "info", "verify"),
    "measure": ("bench", "eval", "report"),
    "search": ("search",),
    "serve": ("serve",),
    "shards": ("merge", "status"),
}
LATER = {
    name: f"fastflow.commands.{module}:{'eval_command' if name == 'eval' else name}"
    for module, names in MODULES.items()
    for name in names
}


@click.group(cls=Commands, later=LATER, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Calibrated sentence embeddings from a frozen BERT, without labels.

    \b
    fastflow embed input.txt                       JSON Lines on standard output
    fastflow embed input.csv --text-field body -o out.npy
    fastflow transform vectors.npy -m MODEL -o out.npy
    fastflow search out.db QUERY                   the nearest rows of fastflow embed -o out.db
    fastflow eval -m MODEL pairs.tsv               Spearman x100, 'all' and 'wmean'
    fastflow report MODEL --sts DIR --html OUT     the model next to other methods, on a page
    fastflow info MODEL
    fastflow serve -m MODEL                        OpenAI's and TEI's routes on port 8080

    A model is trained with fastflow-train.
    """
