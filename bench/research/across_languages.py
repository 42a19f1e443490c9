"""Measure models in other languages: Spearman on STSb, and accuracy of parallel sentences with English.

    python -m fastflow.bench.research.across_languages --data DIR --model static --model DIR --out FILE.json

Texts get the model's prompt for queries on both sides, as multilingual-e5 asks. Nothing is chosen by these figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from fastflow import Runtime
from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import write_json
from fastflow.bench.research.compared import distil_by_model2vec
from fastflow.bench.research.study import make_table
from fastflow.evaluation.evaluate import Task, find_tasks, measure

STS = {
    "en": "sts/STSb-test.tsv",
    **{language: f"tasks/sts-multi/STSb-test-{language}.tsv" for language in ("de", "ru", "zh")},
}
PIVOT, PARALLEL = "en", "langs/pud"
SEEN = ("de", "fr", "es", "pt", "sv", "id", "ru", "cs", "fi", "hi", "zh", "ko", "ar")  # in the corpus of `multilingual`


def read_data(data: Path) -> dict[str, Task]:
    """Return the scored pairs of each language, and as ``bitext`` all parallel sentences."""
    pivot = data / PARALLEL / f"{PIVOT}.txt"
    (bitext,) = find_tasks([pivot, *sorted((data / PARALLEL).glob("*.txt"))])
    return {**dict(zip(STS, find_tasks([data / name for name in STS.values()]), strict=True)), "bitext": bitext}


def measure_model(model: str, tasks: Mapping[str, Task]) -> dict[str, Any]:
    """Return the row of a model: figures x100 by language, and means of the bitext."""
    with Runtime(model) as runtime:
        found = {name: measure(task, runtime.encode_query(task.texts)) for name, task in tasks.items()}
        info, prompt = runtime.info(), runtime.prompts.get("query", "")
        bitext = {name.removeprefix(f"{PIVOT} and "): value for name, value in found.pop("bitext").items()}
        bitext["mean"] = bitext.pop("accuracy")
        bitext["mean of 13"] = fmean(bitext[name] for name in SEEN)
        return {
            "model": Path(model).name, "fingerprint": runtime.fingerprint, "dim": info["dim"], "prompt": prompt,
            "sts": {name: measures["all"] for name, measures in found.items()}, "bitext": bitext,
        }  # fmt: skip


def format_rows(rows: list[dict[str, Any]]) -> str:
    """Format the two tables."""
    heads = ["model", *rows[0]["sts"]]
    sts = [[row["model"], *(f"{value:.1f}" for value in row["sts"].values())] for row in rows]
    ways = list(rows[0]["bitext"])
    across = [[row["model"], *(f"{row['bitext'][name]:.1f}" for name in ways)] for row in rows]
    return f"{make_table(heads, sts)}\n\n{make_table(['model', *ways], across)}"


@click.command(help=__doc__)
@click.option(
    "--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts/, tasks/ and langs/."
)
@click.option(
    "--model", "models", multiple=True, required=True, metavar="MODEL", help="A name or directory, such as a table."
)
@click.option(
    "--teacher", type=click.Path(exists=True, path_type=Path), help="Adds the table that model2vec makes of it."
)
@click.option("--work", type=click.Path(path_type=Path), help="Keeps the environment and the table of --teacher.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.json")
def main(data: Path, models: tuple[str, ...], teacher: Path | None, work: Path | None, out: Path) -> None:
    """Measure the models and write the figures."""
    if (teacher is None) != (work is None):
        raise click.UsageError("--teacher and --work go together: give both, or neither")
    command = f"python -m fastflow.bench.research.across_languages --data .../{data.name}"
    command += "".join(f" --model {'.../' * (len(Path(each).parts) > 1)}{Path(each).name}" for each in models)
    chosen = list(models)
    if teacher is not None and work is not None:
        work.mkdir(parents=True, exist_ok=True)
        chosen.append(str(distil_by_model2vec(teacher.absolute(), work.absolute())))
        command += f" --teacher .../{teacher.name} --work WORK"
    tasks = read_data(data)
    rows = [measure_model(model, tasks) for model in chosen]
    write_json({"machine": describe(), "command": f"{command} --out {out.name}", "rows": rows}, out)
    click.echo(format_rows(rows))


if __name__ == "__main__":
    main()
