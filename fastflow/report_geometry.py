"""The sections of a report that need no labels: isotropy, word frequency, training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastflow import report_plots as plots
from fastflow.analysis_curves import curves_in, logs_beside, read_log, stops_in
from fastflow.analysis_words import NEIGHBOURS, word_bands
from fastflow.architecture import encoder_shape, read_config
from fastflow.artifact import Model
from fastflow.isotropy import isoscore, mean_cosine, singular_values
from fastflow.report_sections import Plot, Section, Table
from fastflow.report_subjects import Subject
from fastflow.tokens import Tokenizer
from fastflow.weights import load_weights

MOST_CURVES = 8


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
    rows = [
        [name, f"{d['mean_cosine']:.3f}", f"{d['isoscore']:.3f}", f"{100 * d['top_share']:.1f} %"]
        for name, d in data.items()
    ]
    drawn = plots.spectra({name: d["singular_values"] for name, d in data.items()})
    return Section(
        "isotropy",
        "Isotropy",
        f"On {len(texts):,} sentences: mean cosine of random pairs, IsoScore, and the largest singular value's share "
        "of the sum of squares. Embeddings in a narrow cone have a mean cosine near 1, an IsoScore near 0 and one "
        "singular value that dwarfs the rest; an even spread has 0, 1 and a flat spectrum. Isotropy is no goal in "
        "itself: judge by similarity where there are scores.",
        data,
        [Table("", ["", "mean cosine", "IsoScore", "largest's share"], rows)],
        [Plot(drawn, "Singular values over the largest of each, in descending order.")],
    )


def words(model: Model, texts: Sequence[str], source: str, seed: int) -> Section:
    """Norm and nearest neighbours of input word embeddings, by frequency in ``texts``."""
    config = read_config(model.encoder)
    table = load_weights(model.encoder, config, encoder_shape(config, model.encoder), np.float32)["word"]
    tokenize = Tokenizer(model.encoder, model.max_length)
    counts = np.bincount(tokenize(texts).ids, minlength=len(table))
    counts[tokenize([""]).ids] = 0  # the special tokens stand in every text
    data = word_bands(table, counts, seed)
    measures = [("norm", "mean l2 norm", None)]
    measures += [(what, f"{label}, k = {k}", k) for what, label in _NEAREST for k in NEIGHBOURS]  # type: ignore[misc]
    rows = []
    for what, label, k in measures:
        values = [row[what] if k is None else row[what][k] for row in data]
        rows.append([label, *("" if value is None else f"{value:.3f}" for value in values)])
    return Section(
        "words",
        "Word frequency: the encoder's input embeddings by rank",
        f"Word pieces by their frequency rank in {source} ({np.count_nonzero(counts):,} distinct ones; this is the "
        "frequency list). In a raw masked language model frequent words lie near the origin and close together, rare "
        "ones far out and sparse: what tilts the sentence embeddings. Neighbours are sought by l2 distance among all "
        f"of these pieces, for at most {max((row['sampled'] for row in data), default=0):,} pieces of a band.",
        data,
        [Table("frequency rank", ["", *(row["ranks"] for row in data)], rows)],
    )


_NEAREST = (("l2", "l2 distance to the k nearest"), ("dot", "dot product with the k nearest"))


def training(model: Model, log: Path | None) -> Section | None:
    """What the training run left: its curves with the stopping point, likelihood, settings. None when nothing."""
    said = dict(model.manifest.get("training", {}))
    curves = curves_in(said)
    for path in [log] if log else logs_beside(model.path):
        curves |= read_log(path)
    stops, reasons = stops_in(said)
    bits = [entry for entry in said.get("bits_per_dimension", []) if isinstance(entry, dict)]
    if not (curves or bits or said.get("schedule")):
        return None
    tables = []
    if bits:
        keys = list(dict.fromkeys(key for entry in bits for key in entry))
        rows = [[f"flow {i}", *(_number(entry.get(key)) for key in keys)] for i, entry in enumerate(bits, 1)]
        tables.append(Table("bits per dimension on the corpus", ["", *keys], rows))
    settings = {"method": said.get("method"), "texts": said.get("texts"), **said.get("schedule", {}), **stops}
    tables.append(
        Table("settings", ["", ""], [[key, str(value)] for key, value in settings.items() if value is not None])
    )
    shown = sorted(curves, key=lambda name: ("bits" not in name, name))[:MOST_CURVES]
    drawn = [Plot(plots.curve(_last(name), curves[name], stops), _what(name, stops)) for name in shown]
    text = (
        "Bits per dimension are the negative log-likelihood in base 2; embeddings are continuous, so negative values "
        "are in order. A better likelihood is not a better similarity: training on can ruin it."
    )
    if not curves:
        text += " The run left no curve beside the model; name a log with --log."
    if reasons:
        text += " The run says: " + "; ".join(reasons)
    return Section("training", "Training", text, {"curves": curves, "stops": stops, "settings": settings,
                   "bits_per_dimension": bits, "reasons": reasons}, tables, drawn)  # fmt: skip


def _what(name: str, stops: dict[str, float]) -> str:
    marked = f" Dashed: {', '.join(f'{_last(key)} {step:g}' for key, step in stops.items())}." if stops else ""
    return f"{_last(name)} by step.{marked}"


def _last(name: str) -> str:
    """The end of a dotted name, in words."""
    return name.rsplit(".", 1)[-1].replace("_", " ")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)
