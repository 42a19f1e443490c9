"""The result of a distillation: its report, and its model on disk or in a Runtime."""

from __future__ import annotations

import copy
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastflow.atomic import check_out
from fastflow.stages import calibration
from fastflow.stages.calibration import Stage
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.methods.chain import Fitted
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.ship.export import export
from fastflow.train.ship.result import Saving

READING = (
    "compare these cosines only with tables of the same teacher and corpus: on another corpus the same table has others"
)
SETS = {"held_out": "held-out sentences of the corpus", "other": "sentences of other subjects", "words": "single words"}


@dataclass(frozen=True, repr=False)
class Distilled(Saving):
    """A distilled table as an ``encoder``, and the teacher's ``stages``; its folder lives as long as this object.

    ``pooled`` (n, D): the table's vectors of the held-out ``texts``.
    """

    encoder: FrozenEncoder
    stages: tuple[Stage, ...]
    training: dict[str, Any]
    texts: list[str]
    pooled: NDArray[np.float32]
    folder: tempfile.TemporaryDirectory[str] = field(compare=False)

    def __repr__(self) -> str:
        return f"<Distilled: {self.training['teacher']['name']}, {self.training['texts']} texts>"

    @property
    def report(self) -> dict[str, Any]:
        """The table's settings and mean cosines to the teacher, as data for json."""
        return copy.deepcopy(self.training)

    def save(self, directory: str | os.PathLike[str]) -> str:
        """Write the model, if its files give PyTorch's vectors.

        Args:
            directory: Where to write; must not exist.

        Returns:
            The fingerprint of the model.

        Raises:
            FastflowError: The model cannot be written, or computes other numbers than PyTorch; no file is left.
        """
        out = Path(directory)
        check_out(out, "directory")
        fitted = Fitted(list(self.stages))
        for index, stage in enumerate(self.stages):
            if stage.kind == "flow":
                flow = Flow(FlowConfig(**stage.settings))
                flow.load_state_dict({name: torch.from_numpy(np.array(a)) for name, a in stage.params.items()})
                fitted.flows[index] = flow.eval()
        return export(out, self.encoder, fitted, self.training, _write_card(self), self.texts, self.pooled)


def write_lines(training: dict[str, Any]) -> list[str]:
    """Write the mean cosine to the teacher on each set."""
    counts = training["measured"]
    return [f"{counts[name]:,} {SETS[name]}: mean cosine {value:.3f}" for name, value in training["follows"].items()]


def _write_card(distilled: Distilled) -> str:
    found = distilled.training
    teacher, rows, counts = found["teacher"], found["table"], found["measured"]
    words = f", {rows['words']:,} of them whole words of the corpus" if rows["words"] else ""
    penalty = "none, the prior alone" if found["penalty"] is None else f"{found['penalty']:g}"
    facts = {
        "teacher": f"{teacher['name']} (fingerprint {teacher['fingerprint'][:16]})",
        "table": f"{rows['tokens']:,} tokens of {rows['dim']} numbers, {rows['dtype']}{words}",
        "calibration": calibration.describe(distilled.stages),
        "longest text": f"{distilled.encoder.max_length} tokens",
        "corpus": f"{', '.join(found['corpus'])}: {found['texts']:,} texts",
        "penalty": f"{penalty}, chosen on {found['held_out']:,} held-out sentences",
        "licence": "that of the teacher; the corpus's texts are not in it",
    }
    opens = "" if distilled.stages else " The folder 0_Transformer also opens in model2vec."
    return "\n".join([
        f"# A token table that follows {Path(teacher['name']).name}", "",
        "Made by `fastflow distill`: a text's vector is the mean of its tokens' vectors, which a ridge regression "
        f"fitted to the teacher's vectors of sentences, without labels.{opens}", "",
        "| | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items()), "",
        *(f"- {reason}" for reason in found["reasons"]), "",
        "| mean cosine to the teacher | |", "| --- | ---: |",
        *(f"| {counts[name]:,} {SETS[name]} | {value:.3f} |" for name, value in found["follows"].items()), "",
        "```python", "import fastflow", 'fastflow.Runtime("this directory").encode(["A text."])', "```", "",
    ])  # fmt: skip
