"""What fitting to one's own texts gains and loses against the model in the package, by how a flow is held back.

    python -m fastflow.bench.research.own_texts --data DIR --out bench/results/own-texts

The encoder is that in the package. A fit has the default's token weights, at most so many of a set's own texts, so many
sentences of random words, and a share of what the flow's couplings add: 0 is soft whitening. Finished cells are kept
beside OUT and read by the next run of the same command.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow import Runtime
from fastflow.bench.research.study import table, write
from fastflow.evaluation.classes import LabelledTexts
from fastflow.evaluation.evaluate import Pairs, Task, measure, read_task
from fastflow.stages.calibration import apply
from fastflow.train.data.background import english, sentences
from fastflow.train.data.corpus import clean
from fastflow.train.data.embeddings import Embedder, FrozenEncoder, open_encoder
from fastflow.train.data.token_weights import weigh
from fastflow.train.methods.chain import fit, flow_stage
from fastflow.train.methods.loop import Fitting, Schedule
from fastflow.train.methods.names import parse_method
from fastflow.train.methods.recolour import fit_recolour, joint_moments
from fastflow.train.options import DEFAULTS, POOLING
from fastflow.train.progress import SILENT

OF_STS12 = tuple(f"STS12/{name}" for name in ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"))
SUBSETS = (
    *OF_STS12, *(f"STS13/{name}" for name in ("FNWN", "headlines", "OnWN")),
    *(f"STS14/{name}" for name in ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news")),
)  # fmt: skip
FITS = {  # name: sentences of random words, four a text within these, and the most texts; none: not fitted
    "none": (0, 0, 0), "usual": (3_000, 10_000, 2_500), "more words": (10_000, 10_000, 2_500),
    "fewer texts": (10_000, 10_000, 1_000),
}  # fmt: skip
PARTS = {  # of the half that chooses: sets and fits
    "Subsets": (SUBSETS, ("none", "usual")),
    "More random words": (OF_STS12, ("none", "more words")),
    "Whole sets": (("STS12", "STS13", "STS14", "msrp", "cranfield", "cisi"), ("none", "usual", "fewer texts")),
}
SHARES = (0.0, 0.5, 1.0)  # of what the couplings add
MAIN = {"pairs": "ap", "retrieval": "ndcg@10"}


def find(data: Path, name: str) -> Task:
    """The set ``name``, or the pairs of one subset of it, ``SET/SUBSET``."""
    whole, _, part = name.partition("/")
    places = [data / "sts", *(data / "tasks" / kind for kind in ("classes", "pairs", "retrieval"))]
    task = read_task(next(p for place in places for p in (place / f"{whole}.tsv", place / whole) if p.exists()))
    if not part or not isinstance(task, Pairs):
        return task
    rows = [row for row, subset in enumerate(task.subsets) if subset == part]
    first, second = ([side[row] for row in rows] for side in (task.first, task.second))
    return Pairs(name, [part] * len(rows), task.scores[rows], first, second)


def figure(task: Task, vectors: NDArray[Any]) -> float:
    """The main figure of a task."""
    if isinstance(task, LabelledTexts):
        return task.clusters(vectors).value
    return measure(task, vectors)["all" if isinstance(task, Pairs) else MAIN[task.kind]]


def fitted(frozen: FrozenEncoder, task: Task, words: int, count: int) -> dict[str, float]:
    """{share: figure of ``task``} of a flow on ``count`` of its texts and ``words`` sentences of random words."""
    own = list(dict.fromkeys(clean(task.texts)))
    embed = Embedder(weigh(frozen, own, english()), "cpu")
    drawn = np.sort(np.random.default_rng((0, 1 << 35)).choice(len(own), count, replace=False))
    rows = embed([own[row] for row in drawn]), embed(sentences(words, english()))
    fitting = Fitting(Schedule(), voice=SILENT)
    flow = fit(parse_method("flow"), rows[0], DEFAULTS.shape(count, words), fitting, background=rows[1]).flows[0]
    nets = [step.coupling.net for level in range(flow.config.levels) for step in flow.steps(level)]
    state = {name: value.clone() for name, value in flow.state_dict().items()}
    pooled, joined = embed(list(task.texts)).astype(np.float64), np.vstack(rows)
    found = {}
    for share in SHARES:
        flow.load_state_dict(state)
        for parameter in (parameter for net in nets for parameter in (net.weight3, net.bias3)):
            parameter.data.mul_(share)
        stage = flow_stage(flow)
        colour = fit_recolour(joint_moments([stage], joined), frozen.dim, **DEFAULTS.colour)
        wide = [one.astype(np.float64) for one in (stage, colour)]
        found[f"{share:g}"] = figure(task, np.asarray(apply(wide, pooled)))
    return found


def unfitted(frozen: FrozenEncoder, task: Task) -> dict[str, float]:
    """The figures of the model in the package and of the token weights alone."""
    weighted = weigh(frozen, list(dict.fromkeys(clean(task.texts))), english())
    with Runtime() as runtime:
        package = figure(task, runtime.encode(list(task.texts)))
    return {"package": package, "weights": figure(task, Embedder(weighted, "cpu")(list(task.texts)))}


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """What ``path`` holds, made if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        value = make()
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(json.dumps(value))
        unfinished.replace(path)
    return json.loads(path.read_text())


def markdown(result: dict[str, Any]) -> str:
    """The page: a table for each part, its mean and its worst set against the model in the package."""
    text = [HEAD.format(command=result["command"])]
    for part, (sets, _) in PARTS.items():
        rows = [row for row in result["rows"] if row["part"] == part]
        columns = list(dict.fromkeys(row["candidate"] for row in rows))
        value = {(row["set"], row["candidate"]): row["value"] for row in rows}
        cells = [[name, *(f"{value[name, column]:.1f}" for column in columns)] for name in sets]
        means = {column: np.mean([value[name, column] for name in sets]) for column in columns}
        worst = {column: min(value[name, column] - value[name, "package"] for name in sets) for column in columns}
        cells += [["mean", *(f"{means[column]:.1f}" for column in columns)]]
        cells += [["worst against package", *(f"{worst[column]:+.1f}" for column in columns)]]
        text += [f"## {part}", table(["set", *columns], cells)]
    return "\n\n".join([*text, READING]) + "\n"


HEAD = """# Fitting to one's own texts

Made by

    {command}

Can a fit to a few hundred or thousand texts of one's own be made safe: never more than 1 point below the model in the
package on those texts? Every set here is of the half that chooses the default; a subset of STS12-14 is a corpus of
its own, of 338 to 1,487 texts. STS: Spearman x100, `all`. msrp: average precision. cranfield, cisi: nDCG@10. The
encoder is mini-mlm-uncased. *package*: the model in the package. *weights*: no calibration. *usual*: the texts and
the random words of `fastflow-train`'s default, 3,000 to 10,000 sentences. *more words*: 10,000 for any corpus. *fewer
texts*: the same and at most 1,000 texts. The number after it is the share that is kept of what the flow's couplings
have learned: 0 is soft whitening, 1 the flow of the last step. Seed 0; a subset has 189 to 750 pairs, so single rows
move by chance."""
READING = """## Reading

- **No share of the couplings is safe everywhere.** 0 is 1.4 below the package on STS12, 1 is 5.7 below on
  surprise.SMTnews, and 0.5 still 4.4. Half has the best mean of the subsets (64.1, 64.3, 64.2) and is below the whole
  flow on whole sets (58.1, 58.4, 58.6).
- **More random words help where texts are few**: surprise.SMTnews rises from 42.8 to 46.9. Fewer texts cost STS13 1.4.
- **On average own texts win**: 64.2 against 63.2 of the package and 62.1 of the weights alone.
- Nothing of this was confirmed on the other half, and the labelled texts were not finished, so the default stays.

By hand, on the same subsets, means and the worst loss against the package:

- Soft whitening in whose covariance the own texts count 0, 0.05, 0.1, 0.2, 0.5, 1: 63.9 (-3.0), 64.1 (-2.5), 64.2
  (-2.8), 64.3 (-3.3), 64.3 (-3.9), 63.9 (-4.7).
- Token weights of the language alone in place of the corpus and the language: 61.1 against 62.1 without calibration,
  63.7 against 64.1 with soft whitening. OnWN of STS13 loses 5.7 points and tweet-news 6.1, images gains 1.0.
- 300 texts of each of STS12, STS13 and STS14, shares 0, 0.5, 1: 66.2, 66.4, 66.6 in the mean; 1,000 texts: 66.4, 66.8,
  67.2.
- A flow fitted to random words alone, then recolour on both: 46.6 on MSRpar, as soft whitening, 46.5.
- A signal without labels: the separability of two halves of a text, drawn by word. The flow lowers it on each of the
  eleven subsets that were looked at, those that it helps and those that it harms. So it is no signal."""


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds models, sts, tasks.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(data: Path, out: Path) -> None:
    """Fit every set's own texts in every way."""
    frozen, rows = open_encoder(str(data / "models" / "mini-mlm-uncased"), POOLING, None), []
    for part, name, fit_name in ((part, *both) for part, cells in PARTS.items() for both in product(*cells)):
        task, (least, usual, most) = find(data, name), FITS[fit_name]
        own = len(set(clean(task.texts)))
        words = max(least, min(4 * own, usual))
        count = min(own, most, words // 4)
        file = out.with_suffix(".cells") / f"{name}-{words}-{count}.json".replace("/", "~")
        make = partial(fitted, frozen, task, words, count) if count else partial(unfitted, frozen, task)
        for candidate, value in kept(file, make).items():
            label = f"{fit_name}, {candidate}" if count else candidate
            rows.append({"part": part, "set": name, "candidate": label, "value": value})
        click.echo(f"{name}, {fit_name}: {rows[-1]['value']:.1f}")
    command = f"python -m fastflow.bench.research.own_texts --data .../{data.name} --out {out}"
    write(out, {"command": command, "rows": rows}, markdown)


if __name__ == "__main__":
    main()
