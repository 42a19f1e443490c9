"""The paper's supervised rows at a small size: an encoder tuned on labelled NLI pairs, raw and calibrated.

    python -m fastflow.bench.research.supervised --encoder DIR --nli FILE --qnli FILE --sts DIR
        --out bench/results/supervised

The encoder is tuned with Sentence Transformers (softmax on [u, v, |u - v|]) at several learning rates, all of which are
shown: none is chosen by a test set. Then the calibrations at fastflow-train's defaults, fitted on the NLI sentences
(*NLI*) or on each test set's own sentences (*target*), never on a label.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.backends.choose import open_backend
from fastflow.bench.research.quality import Calibrate, Embedded, Matrix, calibration, score, sentences, summary, write
from fastflow.bench.research.tune_nli import BATCH, MAX_LENGTH, accuracy, save, split, tune
from fastflow.evaluation.evaluate import SEVEN, Labelled, Pairs, auc, read_labelled, read_pairs, similarities
from fastflow.model.tokens import Tokenizer
from fastflow.train.data.embeddings import BATCH_TOKENS, open_encoder

RATES = (1e-4, 2e-5)  # 2e-5 is the paper's, for a large encoder and fifty times the pairs
SEEDS = (0, 1, 2)  # of tuning and of flows
HELD_OUT = 0.1
POOLINGS = ("last", "first-last")
METHODS = ("standardize", "nullspace", "whiten", "flow")
Row = dict[str, Any]


def raw(x: Any) -> Any:
    """No calibration."""
    return x


class Compiled(Embedded):
    """Pooled float64 embeddings by text from the compiled runtime: each text once, and the same bits in any company."""

    def __init__(self, directory: str, pooling: str) -> None:
        self.frozen = open_encoder(directory, pooling, None)
        self._tokenize = Tokenizer(self.frozen.directory, self.frozen.max_length)
        self._backend = open_backend(self.frozen.model, "auto", "cpu", "float32", None)
        self._rows: dict[str, Any] = {}
        self.dim = self.frozen.dim

    def __call__(self, texts: Sequence[str]) -> Matrix:
        new = list(dict.fromkeys(text for text in texts if text not in self._rows))
        tokens = self._tokenize(new)
        for rows in tokens.batches(len(new), BATCH_TOKENS):
            batch = tokens.select(rows)
            pooled = self._backend.pool(batch)
            self._rows |= dict(zip((new[i] for i in rows), pooled, strict=True))
        return np.array([self._rows[text] for text in texts], np.float64)


def qnli(embed: Embedded, pairs: Labelled, calibrate: Calibrate) -> float:
    """AUC x100 of cosine(question, sentence), entailment positive (Li et al. 2020, table 4)."""
    cosines = similarities(lambda texts: calibrate(embed(texts)), pairs)
    return round(100 * auc(np.array([label == "entailment" for label in pairs.labels]), cosines), 2)


def table(
    poolings: Sequence[Embedded], tag: str, sets: Sequence[Pairs], question: Labelled, nli: Sequence[str], seed: int
) -> list[Row]:
    """A run of every row of one encoder in both POOLINGS: raw, and for first-last calibrated."""
    last, base = poolings
    own = {pairs.name: sentences(pairs) for pairs in sets}
    own[question.name] = list(dict.fromkeys([*question.first, *question.second]))

    def run(name: str, embed: Embedded, choose: Callable[[str], Calibrate]) -> Row:
        scores = score(embed, sets, lambda pairs: choose(pairs.name))
        scores["QNLI"] = qnli(embed, question, choose(question.name))
        click.echo(f"{tag}: {name}: {scores['mean']['wmean']:.2f}, AUC {scores['QNLI']:.2f}", err=True)
        return {"name": f"{tag}, {name}", "runs": [scores]}

    rows = [run("last layer", last, lambda _: raw), run("first-last", base, lambda _: raw)]
    for method in METHODS:
        once = calibration(method, base(nli), seed)
        rows.append(run(f"{method} (NLI)", base, lambda _, once=once: once))  # type: ignore[misc]
    for method in METHODS:
        fit = partial(calibration, method, seed=seed)
        rows.append(run(f"{method} (target)", base, lambda name, fit=fit: fit(base(own[name]))))  # type: ignore[misc]
    return rows


def joined(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of several seeds as one table, a run of each seed in a row."""
    alike = zip(*runs, strict=True)
    return [{"name": rows[0]["name"], "runs": [run for row in rows for run in row["runs"]]} for rows in alike]


def markdown(result: dict[str, Any]) -> str:
    """The committed page."""
    lines = [
        "# Supervised rows",
        "",
        "What the paper does with encoders tuned on labelled NLI pairs, with a **small encoder and a small set**: "
        f"{result['encoder']}",
        f"({result['dim']} dimensions), {result['pairs']} SNLI pairs. The paper tunes BERT-base and -large on some",
        "940,000 pairs of SNLI and MultiNLI; these figures show the pattern, not the paper's level. Made by:",
        "",
        f"    {result['command']}",
        "",
        f"Tuning: Sentence Transformers, softmax on [u, v, |u − v|], one epoch, batches of {BATCH}, at most "
        f"{MAX_LENGTH} tokens, AdamW,",
        "on all but the last tenth of the pairs. Accuracy of the softmax on that tenth: "
        + "; ".join(f"{row['lr']:g}: {', '.join(map(str, row['accuracy']))} %" for row in result["tuned"])
        + ".",
        f"Seeds {', '.join(map(str, result['seeds']))} of tuning and flow; mean and sample deviation where they tell.",
        "Spearman ×100, **all / wmean**; QNLI: AUC ×100 of the cosine on the development set, entailment positive.",
        "Calibrations take first-last pooling, every token alike, and fastflow-train's flow, to its last step.",
        "",
        "| | " + " | ".join([*SEVEN, "seven-set mean", "QNLI AUC"]) + " |",
        "| --- |" + " ---: |" * (len(SEVEN) + 2),
    ]
    for row in result["rows"]:
        cells = [f"{summary(row, column, 'all')} / {summary(row, column, 'wmean')}" for column in [*SEVEN, "mean"]]
        questions = summary({"runs": [{"QNLI": {"auc": run["QNLI"]}} for run in row["runs"]]}, "QNLI", "auc")
        lines.append(f"| {row['name']} | " + " | ".join([*cells, questions]) + " |")
    return "\n".join([*lines, "", *result.get("notes", [])]) + "\n"


@click.command()
@click.option("--encoder", required=True, type=click.Path(exists=True, path_type=Path), help="Encoder directory.")
@click.option("--nli", required=True, type=click.Path(exists=True, path_type=Path), help="label, premise, hypothesis.")
@click.option("--qnli", "questions", required=True, type=click.Path(exists=True, path_type=Path), help="QNLI dev set.")
@click.option("--sts", required=True, type=click.Path(exists=True, path_type=Path), help="Directory of the seven sets.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(encoder: Path, nli: Path, questions: Path, sts: Path, out: Path) -> None:
    """Tune, calibrate and score."""
    sets = [read_pairs(sts / f"{name}.tsv") for name in SEVEN]
    pairs, question = read_labelled(nli), read_labelled(questions)
    corpus = list(dict.fromkeys([*pairs.first, *pairs.second]))
    train, test = split(pairs, HELD_OUT)
    plain = [Compiled(str(encoder), pooling) for pooling in POOLINGS]
    result: dict[str, Any] = {
        "command": f"python -m fastflow.bench.research.supervised --encoder .../{encoder.name} --nli .../{nli.name} "
        f"--qnli .../{questions.name} --sts .../sts --out bench/results/{out.name}",
        "encoder": encoder.name,
        "dim": plain[0].dim,
        "pairs": len(train.labels),
        "seeds": SEEDS,
        "tuned": [],
        "rows": joined([table(plain, "untuned", sets, question, corpus, seed) for seed in SEEDS]),
    }
    for rate in RATES:
        found, runs = [], []
        for seed in SEEDS:
            model, loss = tune(encoder, train, rate, 1, seed)
            found.append(round(100 * accuracy(model, loss, test), 2))
            with tempfile.TemporaryDirectory() as directory:
                save(model, Path(directory))
                embedded = [Compiled(directory, pooling) for pooling in POOLINGS]
                runs.append(table(embedded, f"tuned at {rate:g}", sets, question, corpus, seed))
        result["tuned"].append({"lr": rate, "accuracy": found})
        result["rows"] += joined(runs)
        write(out, result, markdown(result))  # after every rate: each takes a while on one core


if __name__ == "__main__":
    main()
