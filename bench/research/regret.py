"""Measure how much ``fastflow-train`` loses against the best choice in hindsight.

    python -m fastflow.bench.research.regret MINILM:3 MINILM:5 E5:8 --data DIR --out bench/results/regret.json

An encoder is cut after the layer named. RULES choose a pooling by neighbouring sentences, and take the flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import shorten, write_json
from fastflow.evaluation.evaluate import Task, measure, read_task
from fastflow.evaluation.labelled import LabelledTexts
from fastflow.evaluation.retrieval import Retrieval
from fastflow.stages.calibration import apply_wide
from fastflow.stages.pooling import WORDS, Pooling, parse_pooling
from fastflow.train.data.background import draw_sentences, load_english
from fastflow.train.data.corpus import cut_sentences, read_corpus
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import FrozenEncoder, open_encoder
from fastflow.train.data.token_weights import weigh
from fastflow.train.methods.chain import fit_chain
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.options import COLOURS, DEFAULTS, complete_chain, parse_method
from fastflow.train.reporter import SILENT
from fastflow.train.selection.heuristics import load_english_pairs, name_candidates, rank
from fastflow.train.selection.separability import DROPOUT, TEXTS, Views

FIRST = ("sts/STS13.tsv", "tasks/pairs/msrp.tsv", "tasks/classes/banking77.tsv", "tasks/retrieval/cranfield")
SECOND = ("sts/STSb-test.tsv", "tasks/retrieval/quora-duplicates", "tasks/classes/agnews-titles.tsv")
HALVES = {"choosing": slice(0, 4), "reported": slice(4, 8), "all": slice(0, 8)}
NEWS, NOVELS = "corpora/leipzig-eng-news-2016-10k.txt", "corpora/eltec-eng-novels.txt.gz"
FITTED, ROWS, QUERIES, DOCUMENTS, MORE, AMONG = 1250, 1000, 100, 600, 3000, 600
FORMS = {"raw": "none", "weights": "none", "soft whitening": "whiten,recolour", "flow": "flow"}
RULES = ("two errors", "3,000 pairs", "largest mean", "log ranks")


def sample_task(path: Path, folder: Path) -> Task:
    """Read ROWS rows of a file, or QUERIES with their documents and others, DOCUMENTS in all."""
    if path.is_file():
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        rows = np.linspace(0, len(lines) - 1, min(ROWS, len(lines))).astype(int)
        out = folder / path.name
        out.write_text("\n".join([head, *("all\t" + lines[row].partition("\t")[2] for row in rows), ""]), "utf-8")
        return read_task(out)
    whole: Any = read_task(path)
    asked = range(0, len(whole.queries), -(-len(whole.queries) // QUERIES))
    needed = np.unique(np.concatenate([[*whole.relevant[i], *whole.own[i]] for i in asked]).astype(int))
    others = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(len(whole.documents)), needed))
    kept = np.union1d(needed, others[: max(0, DOCUMENTS - len(needed))])
    relevant, own = ([np.searchsorted(kept, rows[i]) for i in asked] for rows in (whole.relevant, whole.own))
    documents, queries = [whole.documents[row] for row in kept], [whole.queries[i] for i in asked]
    return Retrieval(whole.name, documents, queries, relevant, own)


def _draw_pairs(novels: Sequence[str]) -> list[str]:
    cut = (cut_sentences(novels[row])[:2] for row in np.random.default_rng(1).permutation(len(novels)))
    pairs = [pair for pair in cut if len(pair) == 2 and min(map(len, pair)) >= 40][:MORE]
    return [text for side in zip(*pairs, strict=True) for text in side]


def pool_layers(encoder: FrozenEncoder, depth: int, texts: list[str], noise: bool = False) -> NDArray[np.float64]:
    """Pool ``texts``, (2, candidates, n, D): each token counting 1, and weighted; ``noise`` is dropout."""
    layers, weights = (WORDS, *range(1, depth + 1)), np.asarray(encoder.pooling.weights)
    embedder = Embedder(replace(encoder, pooling=Pooling("mean", layers)), "cpu", noise, DROPOUT, "torch")
    tokens, out = encoder.make_tokenize()(texts), np.empty((2, len(layers), len(texts), encoder.dim))
    for rows in tokens.batches(len(texts), 4096):
        part = tokens.select(rows)
        states, mask = embedder.backend.hidden_states(part)
        each = np.zeros((2, *mask.shape))
        each[:, mask.numpy()] = np.ones(len(part.ids)), weights[part.ids]
        each /= each.sum(axis=2, keepdims=True)
        for place, layer in enumerate(layers):
            out[:, place, rows] = np.einsum("kbt,btd->kbd", each, states[layer].numpy().astype(np.float64))
    places = [[layers.index(n) for n in parse_pooling(name, depth).layers] for name in name_candidates(depth)]
    return np.stack([out[:, place].mean(axis=1) for place in places], axis=1)


def study(encoder: FrozenEncoder, depth: int, tasks: list[Task], news: list[str], novels: list[str]) -> Iterator[Any]:
    """Yield each pooling's row of scores by form and task, and its reciprocal ranks of neighbours."""
    words, package = load_english(), [text for side in zip(*load_english_pairs(), strict=True) for text in side]
    more = [*words.sentences, *draw_sentences(len(words.sentences), words)]
    groups = [news, more, package, novels, *(task.texts for task in tasks)]
    ends = np.cumsum([len(group) for group in groups])[:-1]
    whole = pool_layers(encoder, depth, [text for group in groups for text in group])
    views = [pool_layers(encoder, depth, news[:TEXTS], True)[1] for _ in range(2)]
    for i, name in enumerate(name_candidates(depth)):
        plain, (x, background, few, many, *sets) = (np.split(each, ends) for each in whole[:, i])
        sides = [np.split(pairs, len(pairs) // AMONG) for pairs in (few, many)]
        ranks = [np.concatenate([*map(rank, side[: len(side) // 2], side[len(side) // 2 :])]) for side in sides]
        scores, fitted = dict[str, Any](), [each.astype(np.float32) for each in (x, background)]
        for form, method in FORMS.items():
            training = Training(Schedule(), views=Views(views[0][i], views[1][i]), reporter=SILENT)
            links, shape = complete_chain(parse_method(method), False), DEFAULTS.shape(len(x), len(background))
            stages = fit_chain(links, fitted[0], shape, training, COLOURS["sif"], background=fitted[1]).stages
            used = zip(tasks, plain[4:] if form == "raw" else sets, strict=True)
            scores[form] = [_score(task, apply_wide(stages, z)) for task, z in used]
        scores |= {"encoder": encoder.directory.name, "layers": depth, "rank": [float(r.mean()) for r in ranks]}
        yield {"pooling": name, **scores}, ranks


def _score(task: Task, z: NDArray[np.float64]) -> float:
    return task.measure_clusters(z).value if isinstance(task, LabelledTexts) else next(iter(measure(task, z).values()))


def compute_regret(rows: list[dict[str, Any]], found: Any, rule: str, sets: slice) -> float:
    """Compare the best of ``rows`` with the flow of the pooling that ``rule`` chooses."""
    power, errors = np.log if rule == "log ranks" else np.positive, 0 if rule == "largest mean" else 2
    ranks = [power(each[rule == "3,000 pairs"]) for each in found]
    gains = [each - ranks[0] for each in ranks]
    means = [gain.mean() if gain.mean() > errors * gain.std() / len(gain) ** 0.5 else 0.0 for gain in gains]
    best = max(np.mean(row[form][sets]) for row in rows for form in FORMS)
    return float(best - np.mean(rows[int(np.argmax(means))]["flow"][sets]))


@click.command()
@click.argument("encoders", nargs=-1, required=True)
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(encoders: tuple[str, ...], data: Path, out: Path) -> None:
    """Write the scores, and the regret of each rule."""
    news, novels = read_corpus([str(data / NEWS)], FITTED), _draw_pairs(read_corpus([str(data / NOVELS)]))
    with TemporaryDirectory() as folder:
        tasks = [sample_task(data / path, Path(folder)) for path in (*FIRST, *SECOND, "tasks/retrieval/scifact")]
    every: list[Any] = []
    for name, _, depth in (encoder.rpartition(":") for encoder in encoders):
        encoder = weigh(open_encoder(name, "words", None), news, load_english())
        every.append([*zip(*study(encoder, int(depth), tasks, news, novels), strict=True)])
    rows, regrets = [row for rows, _ in every for row in rows], []
    for rule in RULES:
        of = {half: [compute_regret(each, ranks, rule, sets) for each, ranks in every] for half, sets in HALVES.items()}
        regrets.append({"rule": rule, **of})
    level = int(sum(np.mean(row["weights"]) >= np.mean(row["soft whitening"]) for row in rows))
    found = {"sets": [task.name for task in tasks], "weights": {"of": len(rows), "level": level}, "regrets": regrets}
    write_json(shorten({"machine": describe(), **found, "rows": rows}), out)


if __name__ == "__main__":
    main()
