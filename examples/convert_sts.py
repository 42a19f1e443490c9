"""Convert STS sets to the files of ``fastflow eval``: ``python examples/convert_sts.py SOURCE OUT``.

SOURCE has folders as SentEval's ``get_transfer_data.bash`` makes them, or downloads of the Hub, such as mteb/sts12-sts
and sentence-transformers/stsb, with a set's name in each path. Without subsets, as on the Hub, ``wmean`` is ``all``.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fastflow.console import plain_errors, say, write_text
from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import HEADER
from fastflow.evaluation.rows import read_lines, without_suffix
from fastflow.files.read.parquet import arrow

Row = tuple[str, str, str, str]  # subset, score, sentence1, sentence2
NAMED = re.compile(r"sts-?_?(?P<year>1[2-6])(?!\d)|(?P<b>sts-?b)|(?P<sick>sick)", re.IGNORECASE)
SPLITS = {"validation": "dev", "trial": "dev", "dev": "dev", "test": "test", "train": "train"}
COLUMNS = ("sentence1", "sentence2", "score")


def convert(source: Path) -> dict[str, list[Row]]:
    """Read the sets below the folder ``source``: {name of the file: rows}; raises a FastflowError for a wrong line."""
    found: dict[str, list[Row]] = defaultdict(list)
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        plain, name = without_suffix(path), _name(path.relative_to(source), source)
        if name is None:
            continue
        if plain.name.startswith("STS.input."):
            found[name] += _read_year(path)
        elif re.fullmatch(r"sts-(train|dev|test)\.csv", plain.name):
            found[name] += [(row[0], row[4], row[5], row[6]) for row in _split(path, 7)]
        elif plain.name.startswith("SICK_"):
            found[name] += [(name, row[3], row[1], row[2]) for row in _split(path, 4)[1:]]
        elif plain.suffix in (".jsonl", ".parquet"):
            found[name] += [(name, str(score), *sentences) for *sentences, score in _read_columns(path, plain.suffix)]
    return {name: [(a, b, _flat(c), _flat(d)) for a, b, c, d in rows] for name, rows in found.items() if rows}


def _name(path: Path, source: Path) -> str | None:
    """Name the set of a file by its path, the last match first; sets of one year have no split."""
    matches = list(NAMED.finditer(f"{source.name}/{path}"))
    if not matches:
        return None
    if year := matches[-1]["year"]:
        return f"STS{year}"
    split = next((SPLITS[word] for word in re.split(r"[^a-z]+", path.name.lower()) if word in SPLITS), None)
    return None if split is None else f"{'STSb' if matches[-1]['b'] else 'SICK-R'}-{split}"


def _read_year(path: Path) -> list[Row]:
    subset = without_suffix(path).name.removeprefix("STS.input.").removesuffix(".txt")
    scores = path.with_name(path.name.replace("STS.input.", "STS.gs.", 1))
    if len(golds := read_lines(scores)) != len(pairs := _split(path, 2)):
        raise FastflowError(f"{scores}: {len(golds)} scores, and {path.name} has {len(pairs)} pairs; fetch both again")
    return [(subset, score, pair[0], pair[1]) for score, pair in zip(golds, pairs, strict=True) if score.strip()]


def _split(path: Path, fields: int) -> list[list[str]]:
    rows = [line.split("\t") for line in read_lines(path)]
    if bad := [number for number, row in enumerate(rows, 1) if len(row) < fields]:
        raise FastflowError(f"{path}, line {bad[0]}: must have {fields} fields, separated by tabs")
    return rows


def _read_columns(path: Path, suffix: str) -> Iterator[list[Any]]:
    if suffix == ".parquet":
        records = arrow("a set of the Hub in Parquet")[1].read_table(path).to_pylist()
    else:
        records = [json.loads(line) for line in read_lines(path)]
    for number, record in enumerate(records, 1):
        if missing := [name for name in COLUMNS if name not in record]:
            raise FastflowError(f"{path}, row {number}: has no {missing[0]}; a set has {', '.join(COLUMNS)}")
        yield [record[name] for name in COLUMNS]


def _flat(text: str) -> str:
    return " ".join(text.split())


class PlainCommand(click.Command):
    """A command that reports a failure in one sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        return plain_errors(super().invoke, ctx, False)


@click.command(cls=PlainCommand, help=__doc__)
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
def main(source: Path, out: Path) -> None:
    """Write a file for each set."""
    if not (found := convert(source)):
        raise FastflowError(
            f"{source}: holds no STS set; give SentEval's data/downstream, or folders named as the sets"
        )
    out.mkdir(parents=True, exist_ok=True)
    if taken := [name for name in found if (out / f"{name}.tsv").exists()]:
        raise FastflowError(f"{out / taken[0]}.tsv exists; name another folder")
    for name, rows in found.items():
        lines = ["\t".join(row) for row in rows]
        write_text(str(out / f"{name}.tsv"), "\n".join([HEADER, *lines]) + "\n")
        say(f"{out / name}.tsv: {len(rows):,} pairs of {len({row[0] for row in rows})} subsets")


if __name__ == "__main__":
    main()
