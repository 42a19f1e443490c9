"""The ``fastflow`` command."""

from __future__ import annotations

import click

from fastflow.console import Commands
from fastflow.version import __version__

TASKS = {  # heading -> command -> summary, for --help without imports
    "Embed and compare": {
        "embed": "Embed the texts of files.",
        "similarity": "Compare the first text with each of the others.",
        "search": "Print the rows that are most like a query.",
        "duplicates": "Find texts of nearly the same meaning, and keep one of each.",
        "serve": "Serve a model over HTTP.",
    },
    "Make a model": {
        "train": "Calibrate a frozen encoder on a corpus (also fastflow-train).",
        "distill": "Make a token table of a model.",
        "export": "Write a model in the format of another library.",
        "transform": "Calibrate vectors that were made elsewhere.",
    },
    "Look at a model, and measure": {
        "models": "List the models in the package and in the Hub's local cache.",
        "info": "Print a model's settings as JSON.",
        "verify": "Check the files of a model directory.",
        "eval": "Measure a model on tasks.",
        "report": "Compare a model with other methods, on an HTML page.",
        "bench": "Time fastflow against other engines on this machine.",
    },
    "Share a model": {
        "pull": "Fetch a model from the Hugging Face Hub.",
        "push": "Send a model to the Hugging Face Hub.",
    },
    "Large inputs, and what is kept": {
        "status": "Show the parts in a folder, and those that are missing.",
        "merge": "Join the parts in a folder to one file.",
        "cache": "List or remove the files that earlier runs keep.",
    },
}
NAMES = [name for commands in TASKS.values() for name in commands]
MODULES = {  # command -> its module in fastflow.commands, unless that has its name
    **dict.fromkeys(("distill", "export", "transform"), "make"),
    **dict.fromkeys(("info", "models", "verify", "cache", "pull", "push"), "keep"),
    **dict.fromkeys(("eval", "report", "bench"), "measure"),
    **dict.fromkeys(("status", "merge"), "shards"),
    "similarity": "search",
}
LATER = {name: f"fastflow.commands.{MODULES.get(name, name)}:{name}" for name in NAMES}
LATER["eval"] += "_command"


@click.group(
    cls=Commands,
    later=LATER,
    tasks=TASKS,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, "-V", "--version")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Sentence embeddings on a CPU, without PyTorch, and calibration of a frozen BERT without labels.

    \b
    fastflow similarity "A man plays a guitar." "Someone strums a guitar."
    fastflow embed input.txt -o out.db
    fastflow search out.db QUERY
    fastflow COMMAND --help
    """
