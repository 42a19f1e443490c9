"""Remove the languages from the model ``multilingual``: the method groups on all sentences of data/langs, and its card.

    python -m fastflow.bench.research.multilingual_model --data DIR --table DIR --out DIR

``--table``: the model as commit bf42663d made it. STSb-dev in four languages and held-out sentences chose the method.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

import fastflow
from fastflow.bench.research.across_languages import measure_model, read_data
from fastflow.model.artifact import load_model
from fastflow.train.data.corpus import read_texts
from fastflow.train.data.embeddings import Embedder
from fastflow.train.export.export import export, fold_into_table
from fastflow.train.methods.chain import Fitted

HELD = 200  # sentences of each language that no direction is fitted to


def make_card(old: str, row: dict[str, Any], languages: dict[str, str]) -> str:
    """Return the card ``old`` with the figures of ``row``; ``languages``: name by code."""
    before, after = old.split("| | |\n", 1)[0], old[old.index("Languages without sentences") :]
    known = [(f"{languages[code]} and English", code) for code in sorted(languages) if code in row["mixed"]]
    lines = [f"| STSb test, {languages[code]} | {value:.1f} | |" for code, value in row["sts"].items()]
    lines += [f"| {name} | {row['bitext'][code]:.1f} | {row['mixed'][code]:.1f} |" for name, code in known]
    other = ", ".join(f"{code} {row['bitext'][code]:.1f}" for code in ("gl", "is", "th"))
    after = f"Languages without sentences, with English: {other}.\n" + after.split("\n", 1)[1]
    return before + "| | apart | mixed |\n| --- | ---: | ---: |\n" + "\n".join(lines) + "\n\n" + after


@click.command(help=__doc__)
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds langs/, sts/, tasks/.")
@click.option("--table", required=True, type=click.Path(exists=True, path_type=Path), help="The model before.")
@click.option("--card", required=True, type=click.Path(exists=True, path_type=Path), help="The card without figures.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(data: Path, table: Path, card: Path, out: Path) -> None:
    """Fit, fold, measure, and save."""
    training = load_model(table).manifest["training"]
    codes = list(training["sentences"])[: len(training["languages"])]
    texts = {code: list(read_texts([str(data / f"langs/{code}.txt.zst")])) for code in codes}
    held = [text for own in texts.values() for text in own[-HELD:]]
    rows = [(text, code) for code, own in texts.items() for text in own[:-HELD]]
    fit = fastflow.fit([text for text, _ in rows], str(table), groups=[code for _, code in rows], stop="budget")
    with tempfile.TemporaryDirectory() as folder:
        assert fit.encoder is not None  # noqa: S101
        encoder = fold_into_table(fit.encoder, fit.stages, Path(folder) / "table")
        assert encoder is not None  # noqa: S101
        row = measure_model(str(encoder.directory), read_data(data))
        names = dict(zip(codes, training["languages"], strict=True))
        training |= {"groups": fit.training["groups"]}
        said = make_card(card.read_text(encoding="utf-8"), row, names)
        export(out, encoder, Fitted(), training, said, held, Embedder(encoder, "cpu")(held))


if __name__ == "__main__":
    main()
