"""The model card of a calibration that was fitted to vectors made elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastflow.stages import calibration
from fastflow.stages.calibration import Stage
from fastflow.train.ship.summary import cells, notes, source_of


def card_of_vectors(
    stages: Sequence[Stage], training: dict[str, Any], measures: dict[str, Any], dim: int
) -> str:  # fmt: skip
    """The README.md of a model without an encoder, of vectors of ``dim`` numbers."""
    mark, (head, *measured) = training["vectors_sha256"][:16], cells(measures, source_of(None))
    lines = [
        "# A calibration of vectors",
        "",
        "Made with fastflow from vectors alone, without labels. This model has no encoder and embeds no text.",
        "Its input is vectors of the model or API that made those it was fitted on. Of others its output is void.",
        "",
        "| | |",
        "| --- | --- |",
        f"| input | vectors of {dim} numbers |",
        f"| calibration | {calibration.describe(stages)} |",
        f"| fitted on | {training['source']}: {training['vectors']} vectors (sha256 {mark}) |",
        "| licence | that of the vectors; the calibration adds none |",
        "",
        "Why this calibration:",
        "",
        *(f"- {reason}" for reason in training["reasons"]),
        "",
        f"| measured | {' | '.join(head[1:])} |",
        "| --- " * len(head) + "|",
        *(f"| {' | '.join(line)} |" for line in measured),
        "",
        *notes(measures, stages),
        "",
        "```python",
        "import fastflow",
        'fastflow.Runtime("this directory").transform(vectors)  # (B, D) -> (B, D\')',
        "```",
        "",
    ]
    return "\n".join(lines)
