"""The published models of Sentence Transformers at full depth: their vectors by both programs.

    python -m fastflow.bench.research.st_table --out bench/results/sentence-transformers

Shapes, heads, module lists, limits and prompts are public facts (tests/sentence_models.py). Weights are drawn at the
size of trained ones and vocabularies are small: that two programs compute the same needs no published weights.
``--model`` names some of them, whose rows replace those in OUT.json or join them; ``--real`` adds directories with
weights of their own. Needs the st extra and a checkout with its tests.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow import Runtime, __version__
from fastflow.bench.measure.machine import describe
from fastflow.evaluation.with_st import probe_texts
from fastflow.model.artifact import load_model
from fastflow.stages.vectors import paired_cosine

TESTS = Path(__file__).parents[2] / "tests"
TASKS = ("encode", "encode_query", "encode_document")
LOWER = ("bfloat16", "int8")
COMMAND = "python -m fastflow.bench.research.st_table --out bench/results/sentence-transformers"


def row(directory: Path, texts: list[str]) -> dict[str, Any]:
    """One directory: the largest difference in float32 over all tasks, and the least cosine of lower precisions."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(directory), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
    model = load_model(directory)
    out: dict[str, Any] = {"modules": [] if model.modules is None else model.modules.names()}
    with Runtime(directory, device="cpu", dtype="float32") as ours:
        found = [(call(ours, task)(texts), np.asarray(call(theirs, task)(texts))) for task in TASKS]
    out |= {"dim": found[0][1].shape[1], "texts": len(texts) * len(TASKS)}
    out["difference"] = max(apart(a, b) for a, b in found)
    out["cosine"] = min(float(paired_cosine(a, b).min()) for a, b in found)
    blank = np.array([not text.strip() for text in texts])
    for dtype in LOWER:
        with Runtime(directory, device="cpu", dtype=dtype) as ours:
            cosines = paired_cosine(ours.encode(texts), found[0][1])
        out[dtype], out[f"{dtype}_blank"] = float(cosines[~blank].min()), float(cosines[blank].min())
    return out


def call(model: Any, task: str) -> Callable[[list[str]], Any]:
    """The method of either library."""
    method: Callable[[list[str]], Any] = getattr(model, task)
    return method


def apart(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The largest difference, relative to the longest vector where that is longer than 1."""
    return float(np.abs(a - b).max()) / max(1.0, float(np.linalg.norm(b, axis=1).max()))


def kept_rows(path: Path) -> dict[str, dict[str, Any]]:
    """{model: row} of the table at ``path``; none where there is no table."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return {row["model"]: row for row in rows}


def order(name: str, models: list[str]) -> int:
    """The place of a row: real weights first, then as ``models``."""
    return models.index(name) if name in models else -1


def page(rows: list[dict[str, Any]], versions: str) -> str:
    """The Markdown of the table."""
    lines = [
        "# Directories of Sentence Transformers",
        "",
        f"`{COMMAND}`, with {versions}.",
        "Float32: the largest difference of a number, over encode, encode_query and encode_document, relative to the",
        "longest vector where that is longer than 1. Lower precisions of fastflow: the least cosine to Sentence",
        "Transformers in float32, of texts with a word and of blank ones, which are [CLS] and [SEP] alone. Depth,",
        "width, heads and modules are the published models'; weights are drawn and vocabularies small, where the name",
        "does not say 'real weights'.",
        "",
        "| model | modules | dimensions | texts | float32 | bfloat16 | the same, blank | int8 | the same, blank |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r['model']} | {', '.join(r['modules'])} | {r['dim']} | {r['texts']} | {r['difference']:.1e} | "
        f"{r['bfloat16']:.5f} | {r['bfloat16_blank']:.5f} | {r['int8']:.4f} | {r['int8_blank']:.4f} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="OUT.md and OUT.json are written.")
@click.option("--model", "names", multiple=True, help="Models of the table.  [default: all]")
@click.option("--real", multiple=True, type=click.Path(exists=True, path_type=Path), help="A directory with weights.")
def main(out: Path, names: tuple[str, ...], real: tuple[Path, ...]) -> None:
    """Compare fastflow with Sentence Transformers on directories of its published models."""
    import sentence_transformers

    sys.path.insert(0, str(TESTS))
    from sentence_models import MODELS, make_published

    warnings.simplefilter("ignore", UserWarning)  # texts that are cut
    texts, rows = probe_texts(), kept_rows(out.with_suffix(".json"))
    found = {f"{directory.name}, real weights": lambda _, directory=directory: directory for directory in real}
    found |= {name: lambda folder, name=name: make_published(folder, MODELS[name]) for name in names or MODELS}
    versions = f"Sentence Transformers {sentence_transformers.__version__} and fastflow {__version__}"
    for name, made in found.items():
        with TemporaryDirectory() as folder:
            rows[name] = {"model": name, **row(made(Path(folder)), texts)}
        click.echo(json.dumps(rows[name]), err=True)
        ordered = [rows[known] for known in sorted(rows, key=lambda known: order(known, list(MODELS)))]
        out.with_suffix(".md").write_text(
            page(ordered, versions), encoding="utf-8"
        )  # each time: large models take long
        kept = {"command": COMMAND, "versions": versions, "machine": describe(), "rows": ordered}
        out.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
