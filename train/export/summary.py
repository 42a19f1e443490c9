"""Measure raw, weighted and calibrated embeddings, and judge them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.evaluation.analyses import is_less_isotropic, measure_isotropy
from fastflow.evaluation.evaluate import Pairs, evaluate
from fastflow.model.encoder import size_of
from fastflow.report.verdict import FEW, FEWER_PAIRS, NO_PROOF
from fastflow.runtime import Runtime
from fastflow.train.data.embeddings import Embedder
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.methods.chain import Fitted, take_sample
from fastflow.train.methods.closed_forms import mask_constant
from fastflow.train.reporter import name_options
from fastflow.train.selection.separability import Views
from fastflow.transforms import calibration
from fastflow.transforms.calibration import Stage
from fastflow.transforms.pooling import make_raw
from fastflow.transforms.truncation import Rows

SPREAD_OUT = 0.2  # mean cosine of random pairs: untuned encoders have over 0.43, tuned ones up to 0.18
PACKAGED, STATIC, RAW_VECTORS = "model in the package", "static in the package", "raw vectors"


def measure_change(fitted: Fitted, pooled: Rows, views: Views | None = None) -> dict[str, Any]:
    """Measure isotropy, separability and likelihood before and after the calibration."""
    x = np.asarray(take_sample(pooled), np.float64)
    z = calibration.apply_wide(fitted.stages, x)
    constant = int(mask_constant(x.mean(axis=0), x.var(axis=0)).sum())
    out: dict[str, Any] = {"isotropy": {"before": measure_isotropy(x), "after": measure_isotropy(z)}}
    if constant:
        out["constant_channels"] = [constant, x.shape[1]]
    if views:
        after = views.measure(partial(calibration.apply_wide, fitted.stages))
        out["separability"] = {"before": round(views.measure(), 4), "after": round(after, 4)}
    if fitted.bits:
        out["bits_per_dimension"] = [{"gaussian": round(b, 4), "flow": round(a, 4)} for b, a in fitted.bits]
    return out


def measure_spearman(fitted: Fitted, encoder: FrozenEncoder, sets: list[Pairs], device: str) -> dict[str, Any]:
    """Measure Spearman before and after, of raw pooling, and of packaged models of the encoder."""
    embedder = Embedder(encoder, device)
    remembered: dict[tuple[str, ...], NDArray[Any]] = {}

    def pool(texts: Any) -> NDArray[Any]:
        key = tuple(texts)
        if key not in remembered:
            remembered[key] = embedder(texts).astype(np.float64)
        return remembered[key]

    out = {
        "before": evaluate(pool, sets),
        "after": evaluate(lambda texts: calibration.apply_wide(fitted.stages, pool(texts)), sets),
    }
    if encoder.pooling.weights is not None:
        raw = make_raw(encoder.pooling, size_of(encoder.directory).layers)
        equal = Embedder(replace(encoder, pooling=raw), device)
        out["raw"] = evaluate(lambda texts: equal(texts).astype(np.float64), sets)
    if encoder.packaged:
        for column, name in (("packaged", "untuned"), ("static", "static")):
            with Runtime(name) as runtime:
                out[column] = evaluate(runtime.encode, sets)
    return out


def _list_rows(measures: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    out = []
    for stage in measures.get("bits_per_dimension", []):
        out.append(("bits per dimension: Gaussian, flow", {"before": stage["gaussian"], "after": stage["flow"]}))
    before, after = measures["isotropy"]["before"], measures["isotropy"]["after"]
    names = {
        "mean_cosine": "mean cosine of random pairs",
        "isoscore": "IsoScore",
        "top_share": "largest singular value's share",
    }
    out += [(label, {"before": before[name], "after": after[name]}) for name, label in names.items()]
    found = measures.get("spearman", {})
    lines = {name: each["rows"] + [each["average"]] * (len(each["rows"]) > 1) for name, each in found.items()}
    for i, row in enumerate(lines.get("before", [])):
        label = row.get("set", f"average of {len(row.get('sets', []))}")
        for kind in ("all", "wmean"):
            out.append((f"Spearman {label}, {kind}", {name: each[i][kind] for name, each in lines.items()}))
    return out


def name_source(encoder: FrozenEncoder | None) -> str:
    """Name the column of measures before the calibration."""
    if encoder is None:
        return RAW_VECTORS
    return "unweighted pooling" if encoder.pooling.weights is None else "weights only"


def _name_columns(source: str) -> dict[str, str]:
    return {"raw": "raw pooling", "before": source, "after": "calibrated", "packaged": PACKAGED, "static": STATIC}


def make_cells(measures: dict[str, Any], source: str) -> list[list[str]]:
    """Format measures below a row of heads, without empty columns."""
    found = _list_rows(measures)
    heads = {name: head for name, head in _name_columns(source).items() if any(name in values for _, values in found)}
    lines = [[label, *(f"{values[n]:.4g}" if n in values else "" for n in heads)] for label, values in found]
    return [["", *heads.values()], *lines]


def make_table(measures: dict[str, Any], source: str) -> str:
    """Format measures as text."""
    lines = make_cells(measures, source)
    return "\n".join(f"{name:34}" + "".join(f"{value:>22}" for value in values) for name, *values in lines)


def write_verdict(measures: dict[str, Any], source: str, packaged: bool = False) -> str:
    """Write whether the calibration improves Spearman."""
    found = measures.get("spearman")
    if found is None:
        if source == RAW_VECTORS:
            return "Better or worse: unknown. Compare cosines of pairs of your own before and after the calibration."
        rival = ", and with the models in the package, default, static and multilingual," if packaged else ""
        return (
            "Better or worse: unknown, for nothing here measures similarity. Give pairs with human scores "
            f"(--eval PAIRS.tsv), or compare with the pooling{rival} by fastflow eval."
        )
    scores = {head: found[name]["average"]["all"] for name, head in _name_columns(source).items() if name in found}
    own = scores.pop("calibrated")
    others = sorted(scores.items(), key=lambda item: -item[1])
    rival, best = others[0]
    said = "Level" if own == best else "Better" if own > best else f"Worse than {rival}"
    pairs = sum(row["pairs"] for row in found["after"]["rows"])
    if pairs < FEW:
        said += f", perhaps by chance with {pairs:,} pairs"
    line = f"{said}: Spearman {own:.4g} calibrated; {', '.join(f'{score:.4g} {head}' for head, score in others)}."
    line += f" The calibration gains {own - scores[source]:+.1f} over {source}."
    return line + FEWER_PAIRS * (pairs < NO_PROOF)


def write_notes(measures: dict[str, Any], stages: Sequence[Stage], unit: str = "texts") -> list[str]:
    """Explain surprising rows and constant channels."""
    groups = ["What tells the groups apart on average is removed: topics too, if groups are topics."]
    own = groups if "groups" in measures else []
    return [*_note_cosine(measures, stages), *_note_constant(measures, stages, unit), *own]


def _note_constant(measures: dict[str, Any], stages: Sequence[Stage], unit: str) -> list[str]:
    if stages and stages[0].kind in ("linear", calibration.PYTHON):
        return []
    if not stages or calibration.is_linear(stages):  # constants are kept
        return []
    channels, dim = measures.get("constant_channels", (0, 0))
    directions = 0
    if stages[0].kind == "whiten":
        matrix = stages[0].params["matrix"]
        directions, dim = max(int((~matrix.any(axis=0)).sum()) - channels, 0), len(matrix)
    where = {"texts": "in this encoder", "vectors": "in these vectors"}[unit]
    out = []
    for count, what in ((channels, "channels"), (directions, "directions")):
        if count:
            verb = f"is constant {where} and stays" if count == 1 else f"are constant {where} and stay"
            out.append(f"{count} of {dim} {what} {verb} 0.")
    return out


def _note_cosine(measures: dict[str, Any], stages: Sequence[Stage]) -> list[str]:
    cosine = {when: found["mean_cosine"] for when, found in measures["isotropy"].items()}
    if not (stages and calibration.keeps_mean(stages) and abs(cosine["after"]) > abs(cosine["before"])):
        return []
    return [
        f"The mean cosine rises on purpose: {calibration.describe(stages)} keeps a mean that all texts share. "
        "IsoScore, which is taken about the mean, is the row to judge by."
    ]


def write_warnings(measures: dict[str, Any], stages: Sequence[Stage], unit: str = "texts") -> list[str]:
    """Write warnings about the measures; none of groups, which leave directions empty on purpose."""
    out: list[str] = []
    if "groups" in measures:
        return out
    kept = calibration.keeps_mean(stages)
    cosine = measures["isotropy"]["before"]["mean_cosine"]
    if stages and abs(cosine) < SPREAD_OUT:
        advice = {
            "texts": "weights and calibration may harm: compare {token_weights:none} {method:none}",
            "vectors": "a calibration may harm: compare cosines of pairs of your own before and after it",
        }
        out.append(
            name_options(
                f"the pooled embeddings are spread out already (mean cosine of random pairs {cosine:.2f}), as an "
                f"encoder tuned for similarity leaves them; {advice[unit]}"
            )
        )
    if is_less_isotropic(measures["isotropy"]["before"], measures["isotropy"]["after"], kept):
        out.append(
            "calibrated embeddings are LESS isotropic than the pooled ones; do not use this model without checking it"
        )
    for stage in measures.get("bits_per_dimension", []):
        if stage["flow"] > stage["gaussian"]:
            out.append(
                name_options("the flow fits the corpus WORSE than a plain Gaussian; train longer, or lower {lr}")
            )
    if "spearman" in measures:
        score = {when: found["average"]["all"] for when, found in measures["spearman"].items()}
        if score["after"] < score["before"]:
            out.append(name_options("Spearman FELL from {before} to {after}; use {method:none} here", **score))
        if "raw" in score and score["after"] < score["raw"]:
            out.append(
                name_options(
                    "Spearman is {after}, and {raw} by raw pooling; use {pooling:first-last} {token_weights:none} "
                    "{method:none} here",
                    **score,
                )
            )
    return out
