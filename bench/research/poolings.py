"""Study how well neighbouring sentences choose a pooling without labels.

    python -m fastflow.bench.research.poolings --data DIR --minilm DIR --mpnet DIR --out bench/results/poolings

The rule is in HEAD, written before the first run.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from fastflow.bench.research.study import Found, make_table, write
from fastflow.bench.research.weights import NEWS, read_set
from fastflow.evaluation.evaluate import Task, measure, read_task
from fastflow.evaluation.labelled import LabelledTexts
from fastflow.stages.calibration import apply
from fastflow.stages.pooling import WORDS, parse_pooling
from fastflow.train.choice import neighbours
from fastflow.train.data.background import draw_sentences, load_english
from fastflow.train.data.corpus import read_corpus
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import FrozenEncoder, open_encoder
from fastflow.train.data.token_weights import weigh
from fastflow.train.methods.chain import fit_chain
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.methods.names import parse_method
from fastflow.train.options import COLOURS

DEPTHS = {"mini-mlm": (4,), "MiniLM": (3, 6), "mpnet": (3, 6, 9, 12)}  # a lower layer stands in for a last one
SETS = {"STS": ("STS13", "STSb-test"), "titles": ("agnews-titles", "stackoverflow-4000"), "documents": ("cranfield",)}
FITTED, BACKGROUND, TOKENS, BATCH = 375, 1500, 64, 32
Layers = dict[int, NDArray[np.float32]]


def read_some(data: Path, name: str) -> Task:
    """Read a set; NAME-N is N rows of it, drawn at random."""
    whole, _, count = name.rpartition("-")
    if not count.isdecimal():
        return read_set(data, name)
    header, *rows = (data / f"tasks/classes/{whole}.tsv").read_text(encoding="utf-8").rstrip("\n").split("\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.tsv")
        path.write_text("\n".join([header, *random.Random(0).sample(rows, int(count)), ""]), encoding="utf-8")
        return read_task(path)


def embed_layers(encoder: FrozenEncoder, texts: Sequence[str]) -> Layers:
    """Return the weighted mean (n, D) of each layer, and of the words."""
    weights = encoder.pooling.weights
    assert weights is not None  # noqa: S101
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder.directory)
    model = transformers.AutoModel.from_pretrained(encoder.directory).eval()
    depth = model.config.num_hidden_layers
    found: Layers = {n: np.empty((len(texts), encoder.dim), np.float32) for n in range(1, depth + 1)}
    order = np.argsort([len(text) for text in texts])
    for start in range(0, len(texts), BATCH):
        rows = order[start : start + BATCH]
        tokens = tokenizer(
            [texts[i] for i in rows], padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
        )
        w = torch.from_numpy(weights)[tokens["input_ids"]] * tokens["attention_mask"]
        with torch.inference_mode():
            states = model(**tokens, output_hidden_states=True).hidden_states
        for layer in found:
            found[layer][rows] = ((states[layer] * w[..., None]).sum(1) / w.sum(1, keepdim=True)).numpy()
    return found | {WORDS: Embedder(encoder, "cpu")(texts)}


def pool(layers: Layers, name: str, depth: int) -> NDArray[np.float64]:
    """Return the pooling ``name`` of an encoder cut to ``depth`` layers."""
    return np.asarray(np.mean([layers[n] for n in parse_pooling(name, depth).layers], axis=0, dtype=np.float64))


def study(directory: Path, data: Path, depths: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each depth and candidate: reciprocal ranks, and scores of soft whitening fitted on news."""
    english = load_english()
    news = read_corpus([str(data / "corpora" / NEWS)], sample=FITTED)
    encoder = weigh(open_encoder(str(directory), "words", TOKENS), news, english)
    background = [*english.sentences[:BACKGROUND], *draw_sentences(BACKGROUND, english)]
    pairs = neighbours.load_english_pairs()
    sides = [text for side in zip(*pairs, strict=True) for text in side]
    tasks = {name: read_some(data, name) for names in SETS.values() for name in names}
    parts = {"news": news, "background": background, "sides": sides}
    parts |= {name: task.texts for name, task in tasks.items()}
    layers = {name: embed_layers(encoder, texts) for name, texts in parts.items()}
    rows = []
    for depth in depths:
        for candidate in neighbours.name_candidates(depth):
            pooled = {name: pool(found, candidate, depth) for name, found in layers.items()}
            fit_to, behind = (pooled[name].astype(np.float32) for name in ("news", "background"))
            chain, training = parse_method("whiten,recolour"), Training(Schedule())
            fitted = fit_chain(chain, fit_to, {}, training, COLOURS["sif"], background=behind)
            stages = [stage.astype(np.float64) for stage in fitted.stages]
            half, whole = len(pairs), np.asarray(apply(stages, pooled["sides"]))
            ranks = neighbours.rank(pooled["sides"][:half], pooled["sides"][half:])
            row = {"depth": depth, "candidate": candidate, "ranks": [round(float(r), 5) for r in ranks],
                   "calibrated": float(neighbours.rank(whole[:half], whole[half:]).mean())}  # fmt: skip
            for name, task in tasks.items():
                row[name] = measure_main(task, np.asarray(apply(stages, pooled[name])))
            rows.append(row)
            click.echo(f"{directory.name} {row | {'ranks': float(np.mean(ranks))}}", err=True)
    return rows


def measure_main(task: Any, vectors: NDArray[np.float64]) -> float:
    """Return Spearman, the accuracy of neighbours, or nDCG@10."""
    if isinstance(task, LabelledTexts):
        return task.measure_neighbours(vectors).value
    return next(iter(measure(task, vectors).values()))


def make_page(result: Found) -> str:
    """Return the page: the choice and its regret for each encoder, depth and task."""
    parts = [HEAD.format(**result)]
    for encoder, rows in result["rows"].items():
        for depth in DEPTHS[encoder]:
            mine = [row for row in rows if row["depth"] == depth]
            best = neighbours.Ranking({row["candidate"]: np.array(row["ranks"]) for row in mine}).best
            cells = []
            for row in mine:
                name = f"**{row['candidate']}**" if row["candidate"] == best else row["candidate"]
                scores = [f"{np.mean([row[one] for one in names]):.1f}" for names in SETS.values()]
                cells.append([name, f"{np.mean(row['ranks']):.3f}", f"{row['calibrated']:.3f}", *scores])
            parts += [f"\n## {encoder}, {depth} layers\n", make_table(["pooling", "rank", "calibrated", *SETS], cells)]
    return "\n".join(parts) + "\n"


HEAD = """# Poolings chosen by neighbouring sentences

Encoders: mini-mlm-uncased (4 layers), all-MiniLM-L6-v2 (6) and all-mpnet-base-v2 (12); the last two are tuned, so
their lower layers stand in for the last layer of an untuned encoder. Token weights, soft whitening fitted on 375
sentences of news and 3,000 of the background. Texts are cut at 64 tokens. Titles:
accuracy of five neighbours. (A first run had V-measure of agnews-titles, and a second one no stackoverflow: one set of
titles decided too much.)

**The rule, written before the first run.** 600 pairs of neighbouring sentences of novels. A candidate's value is the
mean reciprocal rank of the second sentence among all second ones, by cosine of weighted, centred, uncalibrated
vectors. `words` is kept unless another candidate is ahead by two standard errors of the paired difference; of these
the best is taken. Goal: over the encoders and tasks a mean loss against the best candidate of at most 1.5 points, and
of at most 6 at worst.

    {command}
"""


@click.command()
@click.option(
    "--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds models, sts, tasks, corpora."
)
@click.option("--minilm", required=True, type=click.Path(exists=True, path_type=Path), help="all-MiniLM-L6-v2.")
@click.option("--mpnet", required=True, type=click.Path(exists=True, path_type=Path), help="all-mpnet-base-v2.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Writes OUT.md and OUT.json.")
def main(data: Path, minilm: Path, mpnet: Path, out: Path) -> None:
    """Compare the poolings of three encoders."""
    places = {"mini-mlm": data / "models/mini-mlm-uncased", "MiniLM": minilm, "mpnet": mpnet}
    rows = {name: study(place, data, DEPTHS[name]) for name, place in places.items()}
    command = f"python -m fastflow.bench.research.poolings --data .../data --minilm DIR --mpnet DIR --out {out}"
    write(out, {"command": command, "rows": rows}, make_page)


if __name__ == "__main__":
    main()
