"""What a training run tells at its end: the before/after table, loud warnings, and the model card."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow import calibration, isotropy
from fastflow.evaluate import Pairs, evaluate
from fastflow.train.calibrate import Fitted, sample
from fastflow.train.criterion import Views
from fastflow.train.embeddings import Embedder, FrozenEncoder


def before_and_after(fitted: Fitted, pooled: NDArray[Any], views: Views | None = None) -> dict[str, Any]:
    """Bits per dimension of each flow stage, isotropy of the corpus and separability of ``views``, before and after."""
    x = np.asarray(sample(pooled), np.float64)
    stages = [stage.astype(np.float64) for stage in fitted.stages]
    z = np.asarray(calibration.apply(stages, x))
    out: dict[str, Any] = {"isotropy": {"before": isotropy.measure(x), "after": isotropy.measure(z)}}
    if views:
        after = views.judge(lambda side: np.asarray(calibration.apply(stages, side)))
        out["separability"] = {"before": round(views.judge(), 4), "after": round(after, 4)}
    if fitted.bits:
        out["bits_per_dimension"] = [{"gaussian": round(b, 4), "flow": round(a, 4)} for b, a in fitted.bits]
    return out


def spearman(fitted: Fitted, encoder: FrozenEncoder, sets: list[Pairs], device: str) -> dict[str, Any]:
    """``evaluate`` on pooled and on calibrated embeddings."""
    embedder = Embedder(encoder, device)
    stages = [stage.astype(np.float64) for stage in fitted.stages]
    remembered: dict[tuple[str, ...], NDArray[Any]] = {}

    def raw(texts: Any) -> NDArray[Any]:
        key = tuple(texts)
        if key not in remembered:
            remembered[key] = embedder(texts).astype(np.float64)
        return remembered[key]

    return {
        "before": evaluate(raw, sets),
        "after": evaluate(lambda texts: np.asarray(calibration.apply(stages, raw(texts))), sets),
    }


def rows(measures: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(name, before, after) of everything measured."""
    out = []
    for stage in measures.get("bits_per_dimension", []):
        out.append(("bits per dimension", stage["gaussian"], stage["flow"]))
    before, after = measures["isotropy"]["before"], measures["isotropy"]["after"]
    names = {
        "mean_cosine": "mean cosine of random pairs",
        "isoscore": "IsoScore",
        "top_share": "largest singular value's share",
    }
    out += [(label, before[name], after[name]) for name, label in names.items()]
    if "separability" in measures:
        out.append(("separability of dropout views", *(measures["separability"][k] for k in ("before", "after"))))
    if "spearman" in measures:
        first, second = measures["spearman"]["before"], measures["spearman"]["after"]
        for b, a in zip([*first["rows"], first["average"]], [*second["rows"], second["average"]], strict=True):
            label = b.get("set", f"average of {len(b.get('sets', []))}")
            out += [(f"Spearman {label}, {kind}", b[kind], a[kind]) for kind in ("all", "wmean")]
    return out


def table(measures: dict[str, Any]) -> str:
    """The rows as aligned text; 'before' of bits per dimension is a plain diagonal Gaussian."""
    lines = [f"{'':34}{'before':>10}{'after':>10}"]
    lines += [f"{name:34}{before:>10.4g}{after:>10.4g}" for name, before, after in rows(measures)]
    return "\n".join(lines)


def warnings(measures: dict[str, Any]) -> list[str]:
    """What the user must not miss."""
    out = []
    if isotropy.is_worse(measures["isotropy"]["before"], measures["isotropy"]["after"]):
        out.append(
            "calibrated embeddings are LESS isotropic than the raw ones; do not use this model without checking it"
        )
    for stage in measures.get("bits_per_dimension", []):
        if stage["flow"] > stage["gaussian"]:
            out.append("the flow fits the corpus WORSE than a plain Gaussian; train longer, or lower --lr")
    if "spearman" in measures:
        first, second = (measures["spearman"][k]["average"]["all"] for k in ("before", "after"))
        if second < first:
            out.append(f"Spearman FELL from {first} to {second}; this calibration does not help here")
    return out


def card(encoder: FrozenEncoder, chain: str, training: dict[str, Any], measures: dict[str, Any]) -> str:
    """The model's README.md."""
    lines = [
        "# A calibrated sentence encoder",
        "",
        "Made with fastflow: a frozen masked language model, calibrated without labels.",
        "",
    ]
    lines += ["| | |", "| --- | --- |"]
    name = encoder.hub_id or "in 0_Transformer, with its own licence"
    lines += [f"| encoder | {name} (sha256 {encoder.hash[:16]}) |", f"| pooling | {encoder.pooling.describe()} |"]
    lines += [f"| longest text | {encoder.max_length} tokens |", f"| calibration | {chain} |"]
    kind = "texts, read once" if training.get("streamed") else "distinct texts"
    lines += [f"| corpus | {', '.join(training['corpus'])}: {training['texts']} {kind} |"]
    lines += ["| licence | that of the encoder and of the corpus; the calibration adds none |", ""]
    if training.get("reasons"):
        lines += ["Why this calibration:", "", *(f"- {reason}" for reason in training["reasons"]), ""]
    lines += ["| measured on the corpus | before | after |", "| --- | --- | --- |"]
    lines += [f"| {name} | {before:.4g} | {after:.4g} |" for name, before, after in rows(measures)]
    lines += ["", "```python", "import fastflow", 'fastflow.Runtime("this directory").encode(["A text."])', "```", ""]
    return "\n".join(lines)
