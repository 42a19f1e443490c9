"""Measure models in other languages: Spearman on STSb, and accuracy of parallel sentences with English.

    python -m fastflow.bench.research.across_languages --data DIR --model static --model DIR --out FILE.json

Texts get the model's prompt for queries on both sides, as multilingual-e5 asks. Nothing is chosen by these figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from numpy.typing import NDArray

from fastflow import Runtime
from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import write_json
from fastflow.bench.research.compared import distil_by_model2vec
from fastflow.bench.research.study import make_table
from fastflow.evaluation.evaluate import Task, find_tasks, measure
from fastflow.evaluation.labelled import Bitext, search_lines
from fastflow.transforms.vectors import shorten

STS = {
    "en": "sts/STSb-test.tsv",
    **{language: f"tasks/sts-multi/STSb-test-{language}.tsv" for language in ("de", "ru", "zh")},
}
PIVOT, PARALLEL = "en", "langs/pud"
SEEN = ("de", "fr", "es", "pt", "sv", "id", "ru", "cs", "fi", "hi", "zh", "ko", "ar")  # in the corpus of `multilingual`
SEVEN = ("de", "es", "fr", "ru", "zh", "sv", "cs")
OTHERS = ("gl", "is", "th")
CLASSES = ("banking77", "clinc150", "trec")


def read_data(data: Path) -> dict[str, Task]:
    """Return the tasks: scored pairs by language, ``bitext`` of SEEN languages, others with English, classes."""

    def read(*languages: str) -> Task:
        return find_tasks([data / PARALLEL / f"{name}.txt" for name in (PIVOT, *languages)])[0]

    others = {name: read(name) for name in OTHERS}
    labelled = {name: find_tasks([data / f"tasks/classes/{name}.tsv"])[0] for name in CLASSES}
    scored = {name: find_tasks([data / place])[0] for name, place in STS.items()}
    return {**scored, "bitext": read(*SEEN), **others, **labelled}


def measure_model(model: str, tasks: Mapping[str, Task]) -> dict[str, Any]:
    """Return the row of a model: figures x100 by language; intervals and English queries of the bitext; V-measures."""
    with Runtime(model) as runtime:
        encode, bitext = runtime.encode_query, tasks["bitext"]
        assert isinstance(bitext, Bitext)  # noqa: S101
        vectors = encode(bitext.texts)
        found = bitext.measures(vectors)
        alone = {name: found[f"{PIVOT} and {name}"].value for name in SEEN}
        alone |= {name: measure(tasks[name], encode(tasks[name].texts))["accuracy"] for name in OTHERS}
        return {
            "model": Path(model).name, "fingerprint": runtime.fingerprint, "dim": runtime.info()["dim"],
            "prompt": runtime.prompts.get("query", ""),
            "sts": {name: measure(tasks[name], encode(tasks[name].texts))["all"] for name in STS},
            "bitext": alone | {"mean of 13": found["accuracy"].value}
            | {f"{name} of 13": found[name].value for name in ("mixed", "share", "languages")},
            "mixed": {name: found[f"{PIVOT} and {name}, mixed"].value for name in SEEN},
            "intervals": {name: found[name].interval() for name in ("accuracy", "mixed", "share", "languages")},
            "from English": measure_english(bitext, shorten(vectors, True, None)),
            "classes": {name: measure(tasks[name], encode(tasks[name].texts))["v_measure"] for name in CLASSES},
        }  # fmt: skip


def measure_english(bitext: Bitext, x: NDArray[Any]) -> dict[str, dict[str, float]]:
    """Return means x100 over pairs, English searching: apart, mixed, and the share in ranks 2 to 11."""
    rows = dict(zip(bitext.languages, bitext.rows, strict=True))
    out = {}
    for title, names in (("7", SEVEN), ("13", SEEN)):
        apart = [search_lines(x, rows[PIVOT], rows[name])[0].mean() for name in names]
        mixed = [search_lines(x, rows[PIVOT], rows[name], mixed=True) for name in names]
        means = fmean(apart), fmean(float(right.mean()) for right, _ in mixed), fmean(float(s.mean()) for _, s in mixed)
        out[title] = dict(zip(("apart", "mixed", "share"), (100 * float(each) for each in means), strict=True))
    return out


def format_rows(rows: list[dict[str, Any]]) -> str:
    """Format the two tables."""
    heads = ["model", *rows[0]["sts"]]
    sts = [[row["model"], *(f"{value:.1f}" for value in row["sts"].values())] for row in rows]
    ways = list(rows[0]["bitext"])
    across = [[row["model"], *(f"{row['bitext'][name]:.1f}" for name in ways)] for row in rows]
    english = json.dumps({row["model"]: row["from English"] for row in rows}, indent=1)
    return f"{make_table(heads, sts)}\n\n{make_table(['model', *ways], across)}\n\n{english}"


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
