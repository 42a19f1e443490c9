"""The published models of Sentence Transformers at full depth: their vectors by both programs.

    python -m fastflow.bench.research.st_table --out bench/results/sentence-transformers

Shapes, heads, module lists, limits and prompts are public facts (tests/sentence_models.py). Weights are drawn at the
size of trained ones and vocabularies are small: that two programs compute the same needs no published weights.
``--model`` names some of them, whose rows replace those in OUT.json or join them; ``--real`` adds directories with
weights of their own, and compares them on the texts of ``hard_texts`` as well; ``--only hard`` leaves the other table
as it is. Needs the st extra and a checkout with its tests.
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
from fastflow.bench.research.hard_texts import HARD
from fastflow.evaluation.with_st import probe_texts
from fastflow.model.artifact import load_model
from fastflow.stages.vectors import paired_cosine

TESTS = Path(__file__).parents[2] / "tests"
TASKS = ("encode", "encode_query", "encode_document")
LOWER = ("bfloat16", "int8")
DTYPES = ("float32", *LOWER)
SHAPE = "shape of "  # before the name of a model whose weights are drawn
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


def hard_row(directory: Path) -> dict[str, Any]:
    """One directory on HARD: the least cosine of each kind to Sentence Transformers in float32.

    ``pairs`` is the largest difference of the cosine of any two of the texts.
    """
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(directory), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
    texts = [text for kind in HARD.values() for text in kind]
    wanted = np.asarray(theirs.encode(texts, normalize_embeddings=True))
    kinds: dict[str, Any] = {kind: {"texts": len(HARD[kind])} for kind in HARD}
    out: dict[str, Any] = {"kinds": kinds, "pairs": {}, "machine": describe()["processor"], "details": {}}
    for dtype in DTYPES:
        with Runtime(directory, device="cpu", dtype=dtype) as ours:
            found = ours.encode(texts, normalize_embeddings=True)
            out["details"][dtype] = ours.info()["details"]
        cosines, start = paired_cosine(found, wanted), 0
        for kind, count in ((kind, len(HARD[kind])) for kind in HARD):
            kinds[kind][dtype], start = float(cosines[start : start + count].min()), start + count
        out["pairs"][dtype] = float(np.abs(found @ found.T - wanted @ wanted.T).max())
    return out


def call(model: Any, task: str) -> Callable[[list[str]], Any]:
    """The method of either library."""
    method: Callable[[list[str]], Any] = getattr(model, task)
    return method


def apart(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The largest difference, relative to the longest vector where that is longer than 1."""
    return float(np.abs(a - b).max()) / max(1.0, float(np.linalg.norm(b, axis=1).max()))


def kept(path: Path) -> dict[str, Any]:
    """What the JSON at ``path`` holds; without the file, empty tables."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {"rows": [], "hard": []}


def by_model(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """{model: row} of a table."""
    return {row["model"]: row for row in rows}


def order(name: str, models: list[str]) -> int:
    """The place of a row: real weights first, then as ``models``."""
    return models.index(name.removeprefix(SHAPE)) if name.startswith(SHAPE) else -1


def page(rows: list[dict[str, Any]], hard: list[dict[str, Any]], versions: str) -> str:
    """The Markdown of both tables."""
    lines = [
        "# Directories of Sentence Transformers",
        "",
        f"`{COMMAND}`, with {versions}.",
        "Float32: the largest difference of a number, over encode, encode_query and encode_document, relative to the",
        "longest vector where that is longer than 1. Lower precisions of fastflow: the least cosine to Sentence",
        "Transformers in float32, of texts with a word and of blank ones, which are [CLS] and [SEP] alone. 'Shape of'",
        "means: depth, width, heads and modules are the published model's, weights are drawn, the vocabulary is small.",
        "Drawn weights have no large columns, so that int8 loses less with them than with trained ones.",
        "",
        "| model | modules | dimensions | texts | float32 | bfloat16 | the same, blank | int8 | the same, blank |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r['model']} | {', '.join(r['modules'])} | {r['dim']} | {r['texts']} | {r['difference']:.1e} | "
        f"{r['bfloat16']:.5f} | {r['bfloat16_blank']:.5f} | {r['int8']:.4f} | {r['int8_blank']:.4f} |"
        for r in rows
    ]
    for r in hard:
        lines += [
            "",
            f"## {r['model']} on hard texts",
            "",
            f"`{COMMAND} --only hard --real …/{r['model']}`, on {r['machine']}, {r['versions']}. The least cosine to",
            "Sentence Transformers in float32.",
            "",
            f"| texts | count | {' | '.join(DTYPES)} |",
            "| --- | ---: | ---: | ---: | ---: |",
            *(
                f"| {kind} | {k['texts']} | {' | '.join(f'{k[dtype]:.4f}' for dtype in DTYPES)} |"
                for kind, k in r["kinds"].items()
            ),
            f"| largest error of a pair's cosine |  | {' | '.join(f'{error:.4f}' for error in r['pairs'].values())} |",
        ]
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="OUT.md and OUT.json are written.")
@click.option("--model", "names", multiple=True, help="Models of the table.  [default: all]")
@click.option("--real", multiple=True, type=click.Path(exists=True, path_type=Path), help="A directory with weights.")
@click.option("--only", type=click.Choice(["hard"]), help="Compare the directories with weights on hard texts alone.")
def main(out: Path, names: tuple[str, ...], real: tuple[Path, ...], only: str | None) -> None:
    """Compare fastflow with Sentence Transformers on directories of its published models."""
    import sentence_transformers

    sys.path.insert(0, str(TESTS))
    from sentence_models import MODELS, make_published

    warnings.simplefilter("ignore", UserWarning)  # texts that are cut
    texts, tables = probe_texts(), kept(out.with_suffix(".json"))
    rows, hard = by_model(tables["rows"]), by_model(tables.get("hard", []))
    versions = f"Sentence Transformers {sentence_transformers.__version__} and fastflow {__version__}"

    def write() -> None:
        tables["rows"] = [rows[known] for known in sorted(rows, key=lambda known: order(known, list(MODELS)))]
        tables["hard"] = [hard[known] for known in sorted(hard)]
        text = page(tables["rows"], tables["hard"], tables["versions"])
        out.with_suffix(".md").write_text(text, encoding="utf-8")
        out.with_suffix(".json").write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")

    if only is None:
        tables |= {"command": COMMAND, "versions": versions, "machine": describe()}
        found = {f"{directory.name}, real weights": lambda _, directory=directory: directory for directory in real}
        found |= {SHAPE + name: lambda at, name=name: make_published(at, MODELS[name]) for name in names or MODELS}
        for name, made in found.items():
            with TemporaryDirectory() as folder:
                rows[name] = {"model": name, **row(made(Path(folder)), texts)}
            click.echo(json.dumps(rows[name]), err=True)
            write()  # each time: large models take long
    for directory in real:
        hard[directory.name] = {"model": directory.name, "versions": versions, **hard_row(directory)}
        click.echo(json.dumps(hard[directory.name]), err=True)
        write()


if __name__ == "__main__":
    main()
