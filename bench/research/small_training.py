"""Train the encoder of the model ``small`` to follow two teachers, of whose vectors the half each counts.

    python -m fastflow.bench.research.small_training --corpus CORPUS.txt --teacher .../all-MiniLM-L6-v2 \
        --second .../all-mpnet-base-v2 --start .../small-exported --minutes 45 --work DIR --out TRAINED

The student has the tokens of --teacher. Beside the pairs of ``fastflow distill --layers``, which have the same words in
another order, it learns from pairs in which one word is another that follows the same word elsewhere. A stopped run
continues: DIR keeps the vectors and the checkpoint.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow import Runtime
from fastflow.train.data.corpus import read_texts
from fastflow.train.distil import deep
from fastflow.train.distil.deep import DistilOptions, distil_layers
from fastflow.train.distil.layers import WORDS, Course
from fastflow.train.distil.teacher import KeptTeacher, Vectors
from fastflow.train.reporter import COMMAND, Reporter

EDITED = 30_000
RATE = 0.6  # share of the usual rates
TEACH = 20_000  # texts between two lines of progress


def exchange_word(text: str, follows: dict[str, list[str]], draw: random.Random) -> str | None:
    """Put another word that follows the same word elsewhere in the place of one."""
    words = text.split()
    if not WORDS[0] <= len(words) <= WORDS[1]:
        return None
    at = draw.randrange(1, len(words))
    other = draw.choice(follows[words[at - 1]])
    return None if other == words[at] else " ".join([*words[:at], other, *words[at + 1 :]])


def add_edited(changed: dict[str, int], corpus: Sequence[str], held: Sequence[int]) -> None:
    """Add texts with one other word to ``changed``, each with its origin, which is not held out."""
    draw, kept, follows = random.Random(1), set(held), defaultdict(list)
    for text in corpus:
        words = text.split()
        for one, other in pairwise(words):
            follows[one].append(other)
    known, most = set(corpus), len(changed) + EDITED
    for at in draw.sample(range(len(corpus)), len(corpus)):
        other = None if at in kept else exchange_word(corpus[at], follows, draw)
        if other is not None and other not in known:
            changed.setdefault(other, at)
        if len(changed) >= most:
            break


class TwoTeachers(KeptTeacher):
    """Two models whose vectors stand side by side, each of length 0.5 ** 0.5; the first has the tokens."""

    def __init__(self, first: str, second: Path, work: Path) -> None:
        super().__init__(first)
        self.second, self.work = second, work

    def keep(self, texts: Sequence[str], corpus: str, reporter: Reporter, cache: Path | None = None) -> Vectors:
        """Embed ``texts``: (n, D + D') float32."""
        found = []
        for path, dtype in ((Path(self.model.path), "bfloat16"), (self.second, "int8")):
            kept = self.work / f"{path.name}.npy"
            if not kept.exists():
                with Runtime(path, dtype=dtype) as runtime:
                    parts = []
                    for i in range(0, len(texts), TEACH):
                        parts.append(np.asarray(runtime.encode(list(texts[i : i + TEACH])), np.float16))
                        reporter.write(f"{path.name}: {i + len(parts[-1]):,} of {len(texts):,} texts")
                    np.save(kept, np.concatenate(parts))
            vectors = np.load(kept)
            if len(vectors) != len(texts):
                raise click.UsageError(f"{kept} is of other texts: remove it")
            found.append(vectors)
        both = np.empty((len(texts), sum(each.shape[1] for each in found)), np.float32)
        at = 0
        for each in found:
            part = both[:, at : at + each.shape[1]]
            part[:] = each
            part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-9) * np.float32(2**0.5)
            at += each.shape[1]
        return both


@click.command(help=__doc__)
@click.option("--corpus", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--teacher", required=True, type=click.Path(exists=True))
@click.option("--second", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--start", required=True, type=click.Path(exists=True), help="A student, as fastflow distill made it.")
@click.option("--layers", default=3)
@click.option("--minutes", default=45.0)
@click.option("--work", required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(
    corpus: Path, teacher: str, second: Path, start: str, layers: int, minutes: float, work: Path, out: Path
) -> None:
    """Teach, train, and save."""
    work.mkdir(parents=True, exist_ok=True)
    split = deep.split_corpus

    def split_and_edit(texts: Sequence[str], seed: int) -> tuple[list[int], dict[str, int]]:
        held, changed = split(texts, seed)
        add_edited(changed, texts, held)
        return held, changed

    deep.split_corpus, deep.GENTLE = split_and_edit, RATE
    both = TwoTeachers(teacher, second, work)
    both.name = f"{Path(teacher).name} and {second.name}"
    settings = DistilOptions(layers=layers, minutes=minutes, start=start)
    course: Any = Course(minutes, 0, checkpoint=work / "checkpoint", resume=True)
    made = distil_layers(lambda: read_texts([str(corpus)]), [corpus.name], both, settings, COMMAND, course)
    made.save(out)
    click.echo("\n".join(made.lines))


if __name__ == "__main__":
    main()
