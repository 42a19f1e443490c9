"""The sections of a report that need no labels: isotropy, word frequency, training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError, missing_extra
from fastflow.evaluation.analyses import NEIGHBOURS, isoscore, mean_cosine, singular_values, word_bands
from fastflow.model.encoder.architecture import encoder_shape, is_static, read_config
from fastflow.model.encoder.weights import load_weights
from fastflow.model.kinds import Model, tokenizer_of
from fastflow.model.static.table import open_table
from fastflow.report import plots
from fastflow.report.parts import HIGHEST, LOWEST, Columns, Line, Plot, Section, comparison, figure
from fastflow.report.subjects import MODEL, Subject, baseline

MOST_CURVES = 8
Curves = dict[str, list[tuple[float, float]]]  # name -> (step, value) in order
NO_MEASURE = ("kept_step", "steps", "history")  # of the keys of a look: the one other is its measure


def isotropy(subjects: Sequence[Subject], texts: Sequence[str], seed: int) -> Section:
    """Mean cosine of random pairs, IsoScore and the singular-value spectrum."""
    data: dict[str, Any] = {}
    for subject in subjects:
        x = subject(texts).astype(np.float64)
        spectrum = singular_values(x)
        data[subject.name] = {
            "mean_cosine": mean_cosine(x, seed),
            "isoscore": isoscore(x),
            "top_share": float(spectrum[0] ** 2 / np.square(spectrum).sum()),
            "singular_values": [float(f"{value:.6g}") for value in spectrum],
        }
    measures = (
        Line("mean cosine", {name: d["mean_cosine"] for name, d in data.items()}, 0.0, 3),
        Line("IsoScore", {name: d["isoscore"] for name, d in data.items()}, HIGHEST, 3),
        Line("largest's share, %", {name: 100 * d["top_share"] for name, d in data.items()}, LOWEST, 1),
    )
    drawn = plots.spectra({name: d["singular_values"] for name, d in data.items()})
    return Section(
        "isotropy",
        "Isotropy: do the vectors use their whole space?",
        f"Measured on {len(texts):,} sentences. Mean cosine of random pairs: near 1 in a narrow cone, 0 where all "
        "directions occur. IsoScore: 1 where the variance about the mean is even, 0 where it lies on one axis. "
        "Largest's share: the largest squared singular value over the sum of all. Isotropy is no goal in itself: "
        f"judge by similarity where there are scores.{_evener(measures)}",
        data,
        [comparison("Bold: the most isotropic.", "", measures)],
        [
            Plot(
                drawn,
                "Singular values over the largest of each, in descending order: a flat line is even. A line ends where "
                f"the rest is below {plots.LEAST:f}.",
            )
        ],
        folded=True,
    )


def _evener(measures: Sequence[Line]) -> str:
    """On which measures the model is more isotropic than its baseline, as a sentence; empty without a baseline."""
    base = baseline(list(measures[0].values))
    if base is None:
        return ""
    won = [line.name.partition(",")[0] for line in measures if line.wins(MODEL, base)]
    by = f"by {len(won)} of {len(measures)} measures ({', '.join(won)})" if won else "by none of the measures"
    return f" The model is more isotropic than {base} {by}."


def words(model: Model, texts: Sequence[str], source: str, seed: int) -> Section:
    """Norm and nearest neighbours of input word embeddings, by frequency in ``texts``."""
    table, tokenize = word_vectors(model.encoder), tokenizer_of(model.encoder, model.max_length)
    counts = np.bincount(tokenize(texts).ids, minlength=len(table))
    counts[tokenize([""]).ids] = 0  # the special tokens stand in every text
    data = word_bands(table, counts, seed)
    rows = [["l2 norm", *(figure(row["norm"], 3) for row in data)]]
    for what in ("l2", "dot"):
        for k in NEIGHBOURS:
            cells = ["" if row[what][k] is None else figure(row[what][k], 3) for row in data]
            rows.append([f"{what}, k = {k}", *cells])
    sampled = max((row["sampled"] for row in data), default=0)
    return Section(
        "words",
        "Word frequency: the encoder's input embeddings",
        f"The encoder's vectors of word pieces, in bands by how often a piece occurs in {source} "
        f"({np.count_nonzero(counts):,} distinct pieces; rank 0 is the most frequent). {frequency_trend(data)} The "
        "paper sees in this a cause of anisotropic sentence embeddings. 'l2' is the distance to the nearest of all "
        f"these pieces, 'dot' the dot product with them, for at most {sampled:,} pieces of a band. Calibration does "
        "not change these vectors.",
        data,
        [Columns("Means by frequency rank, to the k nearest", ["", *(row["ranks"] for row in data)], rows)],
        folded=True,
    )


def word_vectors(encoder: Path) -> NDArray[Any]:
    """(V, D) the vector of each token id that the encoder begins with."""
    if is_static(encoder):
        table = open_table(encoder)
        return table.vectors(np.arange(table.vocabulary), np.float32)
    config = read_config(encoder)
    return load_weights(encoder, config, encoder_shape(config, encoder), np.float32)["word"]


def frequency_trend(bands: Sequence[dict[str, Any]]) -> str:
    """How norm and distance change from the most frequent band to the rarest, and the paper's finding."""
    paper = "Li et al. (2020) found in BERT that rare words have larger norms and lie farther from their neighbours"
    if len(bands) < 2:
        return f"{paper}; all pieces of this corpus fall into one band, which shows no trend."
    first, last = bands[0], bands[-1]
    pairs = [("the mean norm", first["norm"], last["norm"])]
    near = NEIGHBOURS[0]
    if first["l2"][near] is not None and last["l2"][near] is not None:
        pairs.append((f"the l2 distance to the {near} nearest", first["l2"][near], last["l2"][near]))
    changes = [(what, round(a, 3), round(b, 3)) for what, a, b in pairs]
    signs = {(b > a) - (b < a) for _, a, b in changes}
    said = " and ".join(f"{what} {_change(a, b)}" for what, a, b in changes)
    if signs == {1}:
        agrees = "as here"
    elif signs == {-1}:
        agrees = "the opposite of this encoder"
    else:
        agrees = "this encoder shows that in part" if 1 in signs else "this encoder does not show that"
    return f"From ranks {first['ranks']} to {last['ranks']} {said}. {paper}: {agrees}."


def _change(a: float, b: float) -> str:
    if a == b:
        return f"stays at {a:.3f}"
    return f"{'rises' if b > a else 'falls'} from {a:.3f} to {b:.3f}"


def training(model: Model, log: Path | None) -> Section | None:
    """The record of the training run: curves with the stopping point, likelihood, settings. None without a record."""
    said = dict(model.manifest.get("training", {}))
    curves, stops = looks_in(said)
    if log:
        curves |= read_log(log)
    bits, reasons = said.get("bits_per_dimension", []), said.get("reasons", [])
    if not (curves or bits or said.get("schedule")):
        return None
    tables = []
    if bits:
        lines = [Line(f"flow {i}", values, LOWEST, 4) for i, values in enumerate(bits, 1)]
        tables.append(comparison("Bits per dimension on the corpus. Bold: the lowest.", "", lines))
    settings = {"method": said.get("method"), "texts": said.get("texts"), **said.get("schedule", {}), **stops}
    rows = [[key, str(value)] for key, value in settings.items() if value is not None]
    tables.append(Columns("Settings of the run", ["setting", "value"], rows))
    shown = sorted(curves, key=lambda name: ("bits" not in name, name))[:MOST_CURVES]
    drawn = [Plot(plots.curve(_last(name), curves[name], stops), _what(name, stops)) for name in shown]
    text = []
    if bits or any("bits" in name for name in curves):
        text.append(
            "Bits per dimension are the negative log-likelihood in base 2: lower is likelier, and negative values are "
            "in order because embeddings are continuous. A better likelihood does not imply a better similarity."
        )
    if not curves:
        text.append("No training curve lies with the model; name the --log-dir with --log.")
    if reasons:
        text.append(f"Recorded reasons: {'; '.join(reasons)}.")
    return Section("training", "Training", " ".join(text), {"curves": curves, "stops": stops, "settings": settings,
                   "bits_per_dimension": bits, "reasons": reasons}, tables, drawn, folded=True)  # fmt: skip


def _what(name: str, stops: dict[str, float]) -> str:
    marked = f" Dashed: {', '.join(f'{_last(key)} {step:g}' for key, step in stops.items())}." if stops else ""
    return f"{_last(name)} by step.{marked}"


def _last(name: str) -> str:
    """The end of a dotted name, in words."""
    return name.rsplit(".", 1)[-1].replace("_", " ")


def looks_in(training: dict[str, Any]) -> tuple[Curves, dict[str, float]]:
    """The curve of each flow in the ``training`` of a manifest, and the step that was kept, both by name."""
    curves: Curves = {}
    kept: dict[str, float] = {}
    looks = training.get("choice", {}).get("looks", [])
    for index, look in enumerate(looks):
        name = "choice.looks" if len(looks) == 1 else f"choice.looks.{index}"
        (measure,) = (key for key in look if key not in NO_MEASURE)
        curves[f"{name}.{measure}"] = [(float(step), value) for step, value in look["history"] if value is not None]
        kept[f"{name}.kept_step"] = float(look["kept_step"])
    return curves, kept


def read_log(directory: Path) -> Curves:
    """The curves in ``directory``, which TensorBoard writes (fastflow-train --log-dir)."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise missing_extra("train", "tensorboard", f"reading {directory}") from error
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    names: Sequence[str] = events.Tags()["scalars"]
    if not names:
        raise FastflowError(f"{directory} holds no TensorBoard scalars; give the --log-dir of fastflow-train")
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}
