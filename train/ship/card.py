"""Write the model card, README.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastflow.stages import calibration
from fastflow.stages.calibration import Stage
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.ship.summary import make_cells, name_source, write_notes


def write_text_card(
    encoder: FrozenEncoder,
    stages: Sequence[Stage],
    training: dict[str, Any],
    measures: dict[str, Any],
    reference: bool = False,
) -> str:
    """Write the card of a model of texts."""
    kind = "texts, read once" if training.get("streamed") else "distinct texts"
    beside = training.get("background")
    fitted, count = training.get("fitted", training["texts"]), "counted as" if training.get("streamed") else "of which"
    part = "" if fitted == training["texts"] else f", {count} {fitted}"
    words = f"{part}, and {beside} sentences of the language at large" if beside else ""
    facts = {
        "encoder": f"{_describe_origin(encoder, reference)} (sha256 {encoder.hash[:16]})",
        "pooling": encoder.pooling.describe(),
        "longest text": f"{encoder.max_length} tokens",
        "calibration": calibration.describe(stages),
        "corpus": f"{', '.join(training['corpus'])}: {training['texts']} {kind}{words}",
        "licence": "that of the encoder and of the corpus; the calibration adds none",
    }
    fetch = [
        "",
        "This directory holds no encoder, only the Hub id and the revision of one. Before it is loaded for the",
        "first time on a machine, fetch the encoder into the local Hub cache:",
        "",
        "```bash",
        f"hf download {encoder.hub_id} --revision {encoder.revision}",
        "```",
    ]
    return _write_card(
        "A calibrated sentence encoder",
        ["Made with fastflow: a frozen masked language model, calibrated without labels."],
        facts,
        training.get("reasons", []),
        make_cells(measures, name_source(encoder)),
        [*write_notes(measures, stages), *(fetch if reference else [])],
        'encode(["A text."])',
    )


def write_vector_card(stages: Sequence[Stage], training: dict[str, Any], measures: dict[str, Any], dim: int) -> str:
    """Write the card of a model of vectors."""
    fitted = f"{training['source']}: {training['vectors']} vectors (sha256 {training['vectors_sha256'][:16]})"
    return _write_card(
        "A calibration of vectors",
        [
            "Made with fastflow from vectors alone, without labels. This model has no encoder and embeds no text.",
            "Its input is vectors of the model or API that made those it was fitted on. Of others its output is void.",
        ],
        {
            "input": f"vectors of {dim} numbers",
            "calibration": calibration.describe(stages),
            "fitted on": fitted,
            "licence": "that of the vectors; the calibration adds none",
        },
        training["reasons"],
        make_cells(measures, name_source(None)),
        write_notes(measures, stages, "vectors"),
        "transform(vectors)  # (B, D) -> (B, D')",
    )


def _write_card(
    title: str, about: list[str], facts: dict[str, str], reasons: list[str], measured: list[list[str]],
    closing: list[str], call: str,
) -> str:  # fmt: skip
    head, *lines = measured
    why = ["Why this calibration:", "", *(f"- {reason}" for reason in reasons), ""] if reasons else []
    return "\n".join([
        f"# {title}", "", *about, "",
        "| | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items()), "",
        *why,
        f"| measured | {' | '.join(head[1:])} |", "| --- " * len(head) + "|",
        *(f"| {' | '.join(line)} |" for line in lines), "",
        *closing, "",
        "```python", "import fastflow", f'fastflow.Runtime("this directory").{call}', "```", "",
    ])  # fmt: skip


def _describe_origin(encoder: FrozenEncoder, reference: bool) -> str:
    origin = f"{encoder.hub_id} of the Hugging Face Hub, revision {encoder.revision}" if encoder.hub_id else ""
    if reference:
        return f"{origin}, not in this directory"
    return f"in 0_Transformer, with its own licence{'; a copy of ' * bool(origin)}{origin}"
