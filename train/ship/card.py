"""The model card: the README.md of a calibrated encoder, or of a calibration of vectors made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastflow.stages import calibration
from fastflow.stages.calibration import Stage
from fastflow.train.data.embeddings import FrozenEncoder
from fastflow.train.ship.summary import cells, notes, source_of


def card_of_texts(
    encoder: FrozenEncoder,
    stages: Sequence[Stage],
    training: dict[str, Any],
    measures: dict[str, Any],
    reference: bool = False,
) -> str:
    """The card of a model with an encoder; ``reference`` as for ``export``."""
    kind = "texts, read once" if training.get("streamed") else "distinct texts"
    beside = training.get("background")
    fitted, count = training.get("fitted", training["texts"]), "counted as" if training.get("streamed") else "of which"
    part = "" if fitted == training["texts"] else f", {count} {fitted}"
    words = f"{part}, and {beside} sentences of the language at large" if beside else ""
    facts = {
        "encoder": f"{_whence(encoder, reference)} (sha256 {encoder.hash[:16]})",
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
    return _card(
        "A calibrated sentence encoder",
        ["Made with fastflow: a frozen masked language model, calibrated without labels."],
        facts,
        training.get("reasons", []),
        cells(measures, source_of(encoder)),
        [*notes(measures, stages), *(fetch if reference else [])],
        'encode(["A text."])',
    )


def card_of_vectors(stages: Sequence[Stage], training: dict[str, Any], measures: dict[str, Any], dim: int) -> str:
    """The card of a model without an encoder, of vectors of ``dim`` numbers."""
    fitted = f"{training['source']}: {training['vectors']} vectors (sha256 {training['vectors_sha256'][:16]})"
    return _card(
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
        cells(measures, source_of(None)),
        notes(measures, stages, "vectors"),
        "transform(vectors)  # (B, D) -> (B, D')",
    )


def _card(
    title: str, about: list[str], facts: dict[str, str], reasons: list[str], measured: list[list[str]],
    closing: list[str], call: str,
) -> str:  # fmt: skip
    """Title, facts, the reasons for the calibration, a table of measures, and the ``call`` of a Runtime."""
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


def _whence(encoder: FrozenEncoder, reference: bool) -> str:
    """The card's entry for the encoder."""
    origin = f"{encoder.hub_id} of the Hugging Face Hub, revision {encoder.revision}" if encoder.hub_id else ""
    if reference:
        return f"{origin}, not in this directory"
    return f"in 0_Transformer, with its own licence{'; a copy of ' * bool(origin)}{origin}"
