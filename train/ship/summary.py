"""The end of a training run: the table of raw, weighted and calibrated embeddings, and loud warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.evaluation import isotropy
from fastflow.evaluation.evaluate import Pairs, evaluate
from fastflow.stages import calibration
from fastflow.stages.calibration import Stage
from fastflow.stages.rows import Rows
from fastflow.train.choice.separability import Views
from fastflow.train.data.embeddings import Embedder, FrozenEncoder
from fastflow.train.methods.chain import Fitted, sample
from fastflow.train.methods.constant import constant_channels, sentence

# mean cosine: an untuned encoder has 0.43 and more, output of a tuned one 0.18 at most (bench/results/superseded.md)
SPREAD_OUT = 0.2


def before_and_after(fitted: Fitted, pooled: Rows, views: Views | None = None) -> dict[str, Any]:
    """Bits per dimension of each flow stage, isotropy of the corpus and separability of ``views``, before and after."""
    x = np.asarray(sample(pooled), np.float64)
    stages = [stage.astype(np.float64) for stage in fitted.stages]
    z = np.asarray(calibration.apply(stages, x))
    constant = int(constant_channels(x.mean(axis=0), x.var(axis=0)).sum())
    out: dict[str, Any] = {"isotropy": {"before": isotropy.measure(x), "after": isotropy.measure(z)}}
    if constant:
        out["constant_channels"] = [constant, x.shape[1]]
    if views:
        after = views.judge(lambda side: np.asarray(calibration.apply(stages, side)))
        out["separability"] = {"before": round(views.judge(), 4), "after": round(after, 4)}
    if fitted.bits:
        out["bits_per_dimension"] = [{"gaussian": round(b, 4), "flow": round(a, 4)} for b, a in fitted.bits]
    return out


def spearman(fitted: Fitted, encoder: FrozenEncoder, sets: list[Pairs], device: str) -> dict[str, Any]:
    """``evaluate`` before and after the calibration; if tokens are weighted also ``raw``, with equal weights."""
    embedder = Embedder(encoder, device)
    stages = [stage.astype(np.float64) for stage in fitted.stages]
    remembered: dict[tuple[str, ...], NDArray[Any]] = {}

    def pooled(texts: Any) -> NDArray[Any]:
        key = tuple(texts)
        if key not in remembered:
            remembered[key] = embedder(texts).astype(np.float64)
        return remembered[key]

    out = {
        "before": evaluate(pooled, sets),
        "after": evaluate(lambda texts: np.asarray(calibration.apply(stages, pooled(texts))), sets),
    }
    if encoder.pooling.weights is not None:
        equal = Embedder(replace(encoder, pooling=replace(encoder.pooling, weights=None)), device)
        out["raw"] = evaluate(lambda texts: equal(texts).astype(np.float64), sets)
    return out


def rows(measures: dict[str, Any]) -> list[tuple[str, float | None, float, float]]:
    """(name, raw, before, after) of everything measured; raw if it differs from before."""
    out: list[tuple[str, float | None, float, float]] = []
    for stage in measures.get("bits_per_dimension", []):
        out.append(("bits per dimension: Gaussian, flow", None, stage["gaussian"], stage["flow"]))
    before, after = measures["isotropy"]["before"], measures["isotropy"]["after"]
    names = {
        "mean_cosine": "mean cosine of random pairs",
        "isoscore": "IsoScore",
        "top_share": "largest singular value's share",
    }
    out += [(label, None, before[name], after[name]) for name, label in names.items()]
    if "separability" in measures:
        out.append(("separability of dropout views", None, *(measures["separability"][k] for k in ("before", "after"))))
    if "spearman" in measures:
        scores = {when: [*found["rows"], found["average"]] for when, found in measures["spearman"].items()}
        for i, (b, a) in enumerate(zip(scores["before"], scores["after"], strict=True)):
            label = b.get("set", f"average of {len(b.get('sets', []))}")
            for kind in ("all", "wmean"):
                raw = scores["raw"][i][kind] if "raw" in scores else None
                out.append((f"Spearman {label}, {kind}", raw, b[kind], a[kind]))
    return out


def source_of(encoder: FrozenEncoder | None) -> str:
    """The name of the vectors that are calibrated: the column next to theirs is called calibrated."""
    if encoder is None:
        return "raw vectors"
    return "raw pooling" if encoder.pooling.weights is None else "weighted pooling"


def cells(measures: dict[str, Any], source: str) -> list[list[str]]:
    """``rows`` below their heads, as text; ``source`` is that of ``source_of``.

    Raw pooling, with equal weights, has a column of its own only if Spearman was measured with it too.
    """
    out = [["", "raw pooling", source, "calibrated"]]
    out += [[name, *("" if v is None else f"{v:.4g}" for v in values)] for name, *values in rows(measures)]
    return out if any(line[1] for line in out[1:]) else [[name, *values] for name, _, *values in out]


def table(measures: dict[str, Any], source: str) -> str:
    """``cells`` as aligned text. Bits per dimension compare a diagonal Gaussian with the flow."""
    lines = cells(measures, source)
    return "\n".join(f"{name:34}" + "".join(f"{value:>18}" for value in values) for name, *values in lines)


def notes(measures: dict[str, Any], stages: Sequence[Stage], unit: str = "texts") -> list[str]:
    """Sentences that explain a surprising row of the table, and name what stays 0; ``unit`` as for ``warnings``."""
    return [*_cosine_notes(measures, stages), *_constant(measures, stages, unit)]


def _constant(measures: dict[str, Any], stages: Sequence[Stage], unit: str) -> list[str]:
    """The sentences on channels that are constant, and on other directions that a whitening leaves out for that."""
    if all(stage.kind == "nullspace" and not stage.params["mean"].any() for stage in stages):  # which keep a constant
        return []
    channels, dim = measures.get("constant_channels", (0, 0))
    directions = 0
    if stages[0].kind == "whiten":
        matrix = stages[0].params["matrix"]
        directions, dim = max(int((~matrix.any(axis=0)).sum()) - channels, 0), len(matrix)
    return sentence(channels, directions, dim, unit)


def _cosine_notes(measures: dict[str, Any], stages: Sequence[Stage]) -> list[str]:
    cosine = {when: found["mean_cosine"] for when, found in measures["isotropy"].items()}
    if not (stages and calibration.keeps_mean(stages) and abs(cosine["after"]) > abs(cosine["before"])):
        return []
    return [
        f"The mean cosine rises on purpose: {calibration.describe(stages)} keeps a mean that all texts share. "
        "IsoScore, which is taken about the mean, is the row to judge by."
    ]


def warnings(measures: dict[str, Any], stages: Sequence[Stage], unit: str = "texts") -> list[str]:
    """Sentences that the user must not miss, on measures of ``stages``; ``unit``: they calibrate texts or vectors."""
    out, kept = [], calibration.keeps_mean(stages)
    cosine = measures["isotropy"]["before"]["mean_cosine"]
    if abs(cosine) < SPREAD_OUT:
        advice = {
            "texts": "weights and calibration may harm: compare --token-weights none --method none",
            "vectors": "a calibration may harm: compare cosines of pairs of your own before and after it",
        }
        out.append(
            f"the pooled embeddings are spread out already (mean cosine of random pairs {cosine:.2f}), as an encoder "
            f"tuned for similarity leaves them; {advice[unit]}"
        )
    if isotropy.is_worse(measures["isotropy"]["before"], measures["isotropy"]["after"], kept):
        out.append(
            "calibrated embeddings are LESS isotropic than the pooled ones; do not use this model without checking it"
        )
    for stage in measures.get("bits_per_dimension", []):
        if stage["flow"] > stage["gaussian"]:
            out.append("the flow fits the corpus WORSE than a plain Gaussian; train longer, or lower --lr")
    if "spearman" in measures:
        score = {when: found["average"]["all"] for when, found in measures["spearman"].items()}
        if score["after"] < score["before"]:
            out.append(f"Spearman FELL from {score['before']} to {score['after']}; this calibration does not help here")
        if "raw" in score and score["after"] < score["raw"]:
            out.append(
                f"Spearman is {score['after']}, and {score['raw']} with equal token weights and no calibration; "
                "use --token-weights none here"
            )
    return out
