"""Encoders tuned for similarity on every task: as they are, and with each calibration that needs no labels.

    python -m fastflow.bench.research.tuned --encoder DIR --data DIR --out bench/results/tuned-tasks

Fits are those of fastflow-train, figures those of fastflow eval, as in ``default``; the encoder computes in bfloat16.
Vectors and finished figures are kept in OUT.cells and read by the next run of the same command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.backends.cpu import CpuBackend
from fastflow.bench.research.default import CHOOSING, CONFIRMING, OWN, kept
from fastflow.bench.research.default_fits import Candidate, Lab
from fastflow.bench.research.default_page import KINDS
from fastflow.bench.research.study import read, table, write
from fastflow.model.artifact import load_model
from fastflow.train.choice.tuned import crowding
from fastflow.train.data.embeddings import OF_MODULES, FrozenEncoder, cache_key
from fastflow.train.options import COLOURS

COMMAND = "python -m fastflow.bench.research.tuned --encoder DIR --data .../data --out bench/results/tuned-tasks"
AS_IS = "as it is"
Figures = dict[tuple[str, str, str], float]  # (corpus, candidate, set) -> figure
SETS = (*CHOOSING, *CONFIRMING)
NEWS = "news, 5000"
FITTED = {OWN: "the set's own texts", NEWS: "5,000 sentences of news"}
_, SHARE, DEMOTED = COLOURS["none"].values()  # of recolour without token weights
OWN_POOLING = Candidate(pooling=OF_MODULES, prior=None, method="none", background="none")


def coloured(method: str, spectrum: float) -> Candidate:
    """``method`` with recolour on the encoder's own pooling."""
    return Candidate(OF_MODULES, None, method, (spectrum, SHARE, DEMOTED), "all")  # type: ignore[arg-type]


CANDIDATES = {
    AS_IS: OWN_POOLING,
    "token weights": Candidate(pooling="last", method="none"),
    **{name: replace(OWN_POOLING, method=name) for name in ("components:1", "nullspace:1", "standardize", "whiten")},
    "soft whitening, spectrum 0": coloured("whiten,recolour", 0.0),
    "soft whitening, spectrum 0.5": coloured("whiten,recolour", 0.5),
    "flow, spectrum 0": coloured("flow", 0.0),
    "flow, spectrum 0.5": coloured("flow", 0.5),
    "default of an untuned encoder": Candidate(background="all"),
}


class Tuned(Lab):
    """A lab whose encoder computes in bfloat16, at its own limit of tokens; ``folder`` keeps its vectors."""

    def __init__(self, encoder: str, data: Path, folder: Path) -> None:
        super().__init__(encoder, data, max_length=load_model(Path(encoder)).max_length)
        self.folder = folder

    def embed(self, frozen: FrozenEncoder, texts: list[str]) -> NDArray[np.float32]:
        """(n, D) pooled vectors."""
        file = self.folder / f"{cache_key(frozen, texts)}.npy"
        if not file.exists():
            backend = CpuBackend(frozen.model, "bfloat16", "cpu", None)
            tokens = frozen.tokenizing()(texts)
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, backend.pool_batches(tokens, tokens.batches(len(texts), backend.batch_tokens)))
        return np.asarray(np.load(file))


def cells(without: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """(corpus, candidate, set) of every figure but those left out."""
    for corpus, (name, candidate), task in product((OWN, NEWS), CANDIDATES.items(), SETS):
        again = candidate.fitless and corpus != OWN
        left = task in without or ("flow" in without and corpus == OWN and candidate.method == "flow")
        if not again and not left:
            yield corpus, name, task


HEAD = """# Tuned encoders on every task

Points against the encoder as it is, by kind of set: STS (Spearman, `all`), clusters (V-measure), documents and
duplicates (nDCG@10; msrp: average precision), those of `fastflow eval`, x100. The encoder computes in bfloat16 at its
own limit of tokens, with the pooling of its directory. *Token weights* weigh the mean of the last layer, and cost no
fit. A method with recolour is fitted to sentences of random words as well, with mean share 0 and two directions
demoted. *Default of an untuned encoder*: word embeddings, token weights, flow. *As it is*: the scores themselves. Seed
0. Nothing was chosen on this page. Flows were fitted to news alone, to mpnet none, and of mpnet agnews, npl and scifact
were left out (`--without`), for want of time. Made, an encoder at a time, by

    {command}"""


def markdown(found: dict[str, Any]) -> str:
    """The page."""
    text = [HEAD.format(command=found["command"])]
    for encoder, cone in found["crowding"].items():
        values = {(r["corpus"], r["candidate"], r["set"]): r["value"] for r in found["rows"] if r["encoder"] == encoder}
        text.append(f"## {encoder}\n\nMean cosine of unrelated sentences, last layer: {cone:.2f}.")
        text += [f"Fitted on {said}:\n\n{_kinds(values, corpus)}" for corpus, said in FITTED.items()]
        text.append(f"Every set, fitted on its own texts:\n\n{_sets(values)}")
    return "\n\n".join(text) + "\n"


def _kinds(values: Figures, corpus: str) -> str:
    """By candidate: the mean over each kind's sets, less that of the encoder as it is, and the sets with a gain."""
    own = {s: values[OWN, AS_IS, s] for s in SETS if (OWN, AS_IS, s) in values}
    rows = [[AS_IS, *_means(own, ".1f"), "", ""]]
    for name in CANDIDATES:
        gains = {s: values[corpus, name, s] - own[s] for s in own if (corpus, name, s) in values}
        if name != AS_IS and gains:
            best, count = max(gains, key=lambda s: gains[s]), sum(gain > 0 for gain in gains.values())
            rows.append([name, *_means(gains, "+.1f"), f"{count} of {len(gains)}", f"{gains[best]:+.1f} ({best})"])
    return table(["", *KINDS, "sets with a gain", "the best"], rows)


def _means(by_set: dict[str, float], form: str) -> list[str]:
    """The mean over each kind's sets, empty for a kind without any."""
    kinds = [[by_set[s] for s in by_set if s in sets] for sets in KINDS.values()]
    return [format(float(np.mean(some)), form) if some else "" for some in kinds]


def _sets(values: Figures) -> str:
    """Every set by candidate."""
    names = [n for n in CANDIDATES if any((OWN, n, s) in values for s in SETS)]
    rows = [
        [s, *(f"{values[OWN, n, s]:.1f}" if (OWN, n, s) in values else "" for n in names)]
        for s in SETS
        if (OWN, AS_IS, s) in values
    ]
    return table(["set", *names], rows)


@click.command()
@click.option("--encoder", required=True, help="A directory of Sentence Transformers; rows of others in OUT.json stay.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts, corpora, tasks.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
@click.option("--without", multiple=True, help="A set to leave out, or flow: every flow fitted to a set's own texts.")
def main(encoder: str, data: Path, out: Path, without: tuple[str, ...]) -> None:
    """Measure a tuned encoder with every calibration."""
    name, json = Path(encoder).name, out.with_suffix(".json")
    folder = out.with_suffix(".cells") / name
    lab = Tuned(encoder, data, folder)
    rows = []
    for corpus, candidate, task in cells(without):
        file = folder / f"{corpus}-{candidate}-{task}.json".replace(" ", "_").replace(",", "")
        value = kept(file, lambda c=corpus, n=candidate, t=task: lab.figure(c, CANDIDATES[n], 0, t))  # type: ignore[misc]
        rows.append({"encoder": name, "corpus": corpus, "candidate": candidate, "set": task, "value": value})
    before = read(json) if json.exists() else {"rows": [], "crowding": {}}
    cone = kept(folder / "crowding.json", lambda: crowding(encoder))
    others = [row for row in before["rows"] if row["encoder"] != name]
    found = {"command": COMMAND, "crowding": before["crowding"] | {name: cone}, "rows": others + rows}
    write(out, found, markdown)


if __name__ == "__main__":
    main()
