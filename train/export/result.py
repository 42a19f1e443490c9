"""The result of a fit: its report, its card, and its model on disk or in a Runtime."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fastflow.atomic import check_out
from fastflow.errors import UsageError
from fastflow.runtime import Runtime
from fastflow.train.data.encoder import FrozenEncoder
from fastflow.train.export import summary
from fastflow.train.export.export import check_reference, export, export_vectors, fold_into_table
from fastflow.train.methods.chain import Choice, Fitted
from fastflow.transforms import calibration
from fastflow.transforms.calibration import Stage
from fastflow.transforms.truncation import Rows

if TYPE_CHECKING:
    from fastflow.types import BackendName, Device, Dtype, Report


class Saving(ABC):
    """A result that can be saved as a model directory."""

    @abstractmethod
    def save(self, directory: str | os.PathLike[str]) -> str:
        """Write the model to ``directory``, which must not exist; returns its fingerprint."""

    def _split(self) -> tuple[Saving, Stage | None]:
        """Return what can be saved, and the calibration that only this process has."""
        return self, None

    def runtime(
        self,
        device: Device = "auto",
        dtype: Dtype = "auto",
        threads: int | None = None,
        *,
        backend: BackendName = "auto",
    ) -> Runtime:
        """Open the model in a temporary directory, which lives as long as the Runtime.

        A pickle of the Runtime opens that directory too; ``save`` keeps the model.

        Args:
            device: As in Runtime.
            dtype: As in Runtime.
            threads: As in Runtime.
            backend: As in Runtime.

        Returns:
            A Runtime.

        Raises:
            FastflowError: As ``save`` and Runtime.
        """
        folder, (saved, own) = tempfile.mkdtemp(prefix="fastflow-"), self._split()
        try:
            saved.save(Path(folder) / "model")
            runtime = Runtime(Path(folder) / "model", device, dtype, threads, backend=backend)
            if own is not None:
                runtime.session.calibrate_in_python(own)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(runtime, _remove, folder, os.getpid())
        return runtime


@dataclass(frozen=True, repr=False)
class Fit(Saving):
    """A fitted calibration with its encoder, texts, pooled embeddings (n, D) and measures.

    A fit of vectors has no encoder and no texts.
    """

    encoder: FrozenEncoder | None
    choice: Choice
    measures: dict[str, Any]
    training: dict[str, Any]
    texts: list[str]
    pooled: Rows
    concerns: list[str]

    def __repr__(self) -> str:
        return f"<Fit: {calibration.describe(self.stages)}, fitted on {self.training[self.unit]} {self.unit}>"

    @property
    def unit(self) -> str:
        """The kind of rows: texts or vectors."""
        return "vectors" if self.encoder is None else "texts"

    @property
    def stages(self) -> list[Stage]:
        """The calibration's stages; none if the pooling is kept."""
        return list(self.choice.fitted.stages)

    @property
    def report(self) -> Report:
        """The results that fastflow-train prints, as data for json.

        ``choice`` and ``reasons`` explain ``method``; ``verdict`` judges ``measures``, before and after calibration.
        """
        found = copy.deepcopy(
            {
                "method": self.choice.method,
                "calibration": calibration.describe(self.stages),
                "pooling": None if self.encoder is None else self.encoder.pooling.describe(),
                self.unit: self.training[self.unit],
                "measures": self.measures,
                "choice": self.choice.record,
                "reasons": self.choice.reasons,
                "verdict": self.verdict,
                "notes": summary.write_notes(self.measures, self.stages, self.unit),
                "warnings": [*self.concerns, *self.doubts],
            }
        )
        return cast("Report", found)

    @property
    def verdict(self) -> str:
        """A sentence: better, worse or level on the given pairs, or unknown."""
        packaged = self.encoder is not None and self.encoder.packaged
        return summary.write_verdict(self.measures, summary.name_source(self.encoder), packaged)

    @property
    def doubts(self) -> list[str]:
        """Warnings about the measures."""
        own = [self.choice.doubt] if self.choice.doubt else []
        return [*own, *summary.write_warnings(self.measures, self.stages, self.unit)]

    def _split(self) -> tuple[Saving, Stage | None]:
        own = [stage for stage in self.stages if stage.kind == calibration.PYTHON]
        if not own:
            return self, None
        if self.encoder is None:
            raise UsageError("a calibration of vectors that is not linear has no Runtime: call its own transform")
        return replace(self, choice=replace(self.choice, fitted=Fitted())), own[0]

    def save(self, directory: str | os.PathLike[str], reference_encoder: bool = False) -> str:
        """Write the model, if its files give PyTorch's vectors.

        Args:
            directory: Where to write; must not exist.
            reference_encoder: Store the encoder's Hub id and revision instead of a copy.

        Returns:
            The fingerprint of the model.

        Raises:
            FastflowError: The model cannot be written, or computes other numbers than PyTorch; no file is left.
        """
        out = Path(directory)
        calibration.check_saved(self.stages)
        check_out(out, "directory")
        if self.encoder is None:
            if reference_encoder:
                raise UsageError("reference_encoder needs an encoder, and this was fitted on vectors: leave it out")
            card = write_vector_card(self.stages, self.training, self.measures, self.pooled.shape[1])
            return export_vectors(out, self.choice.fitted, self.training, card, self.pooled)
        if reference_encoder:
            check_reference(self.encoder)
        card = write_text_card(self.encoder, self.stages, self.training, self.measures, reference_encoder)
        with tempfile.TemporaryDirectory(prefix="fastflow-", ignore_cleanup_errors=True) as folder:
            encoder, fitted, pooled = self.encoder, self.choice.fitted, self.pooled
            folded = fold_into_table(encoder, self.stages, Path(folder) / "table")
            if folded is not None and not reference_encoder:
                encoder, fitted, pooled = folded, Fitted(), calibration.apply_wide(self.stages, pooled)
            return export(out, encoder, fitted, self.training, card, self.texts, pooled, reference_encoder)


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # a fork must not remove the directory
        shutil.rmtree(folder, ignore_errors=True)


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
        summary.make_cells(measures, summary.name_source(encoder)),
        [*summary.write_notes(measures, stages), *(fetch if reference else [])],
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
        summary.make_cells(measures, summary.name_source(None)),
        summary.write_notes(measures, stages, "vectors"),
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
