"""``fastflow report``: every analysis of the BERT-flow paper on one model and the subjects it is compared with.

Sections whose data were not given are left out by name. The page is deterministic for a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastflow.atomic import replace_text
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.evaluation.evaluate import Pairs, find_sets, find_tasks, read_labelled
from fastflow.model.artifact import load_model
from fastflow.model.kinds import Model
from fastflow.progress import Progress, counted
from fastflow.report import geometry as report_geometry
from fastflow.report import sections as report_sections
from fastflow.report import verdict as report_verdict
from fastflow.report.page import page
from fastflow.report.parts import Section
from fastflow.report.subjects import MODEL, Fit, Open, Subject, encoders, read_texts, shown_name, subjects, thin
from fastflow.runtime import Runtime


@dataclass(frozen=True)
class ReportOptions:
    """The data of a report: paths as given, ``sample`` texts at most, ``queries`` sentences to seek neighbours of."""

    sts: Sequence[Path] = ()
    tasks: Sequence[Path] = ()
    corpus: Sequence[Path] = ()
    qnli: Path | None = None
    log: Path | None = None
    sample: int = 10_000
    queries: int = 5
    seed: int = 0


@dataclass(frozen=True)
class Report:
    """The sections made, those left out, and the head of the page: ``verdict`` and the meaning of its measure.

    ``facts`` name the subjects for all readers, ``details`` for authors.
    """

    title: str
    verdict: tuple[str, str]
    facts: list[tuple[str, str]]
    details: list[tuple[str, str]]
    sections: list[Section]
    left_out: list[dict[str, str]]
    head: dict[str, Any]

    def html(self) -> str:
        """The page."""
        return page(self.title, self.verdict, self.facts, self.sections, self.left_out, self.details)

    def json(self) -> dict[str, Any]:
        """The content of --json."""
        return {**self.head, "sections": {s.id: s.data for s in self.sections}, "left_out": self.left_out}


def make_report(
    runtime: Runtime, against: Sequence[str], settings: ReportOptions, fit: Fit, open_model: Open, shown: bool = False
) -> Report:
    """Read the data, embed each text once, and make every section there is data for; ``shown``: with progress.

    ``fit(method, pooled, seed)`` fits a baseline, ``open_model(path)`` opens another model named in ``against``.
    Raises a UsageError if no data are given at all.
    """
    found = find_tasks(settings.tasks)
    sets = [*find_sets(settings.sts), *(task for task in found if isinstance(task, Pairs))]
    tasks = [task for task in found if not isinstance(task, Pairs)]
    questions = read_labelled(settings.qnli) if settings.qnli else None
    corpus = read_texts(settings.corpus, settings.sample, settings.seed)
    paired = list(dict.fromkeys(text for pairs in sets for text in [*pairs.first, *pairs.second]))
    texts = corpus or thin(paired, settings.sample, settings.seed)
    model = load_model(runtime.session.model.path)
    wanted = {*texts, *paired, *(text for task in tasks for text in task.texts)}
    if questions:
        wanted |= {*questions.first, *questions.second}
    total = len(wanted) * encoders(model, against)
    sections: list[Section] = []
    left_out: list[dict[str, str]] = []

    def leave_out(name: str, needs: str) -> None:
        left_out.append({"section": name, "needs": needs})

    with Progress("report", total, "texts", shown) as progress:
        columns = subjects(runtime, model, against, texts, fit, open_model, settings.seed, progress.advance)
        if not (settings.sts or settings.tasks or settings.corpus or settings.qnli or settings.log):
            raise UsageError(
                "report has nothing to measure: give text with --corpus FILE, scored pairs with --sts PAIRS.tsv|DIR, "
                "or both"
            )
        if sets:
            sections.append(report_sections.similarity(columns, sets))
        else:
            leave_out("Similarity", "needs scored pairs: --sts PAIRS.tsv or a directory of them")
        if tasks:
            sections.append(report_sections.tasks(columns, tasks))
        else:
            leave_out("Tasks", "needs labelled pairs, labelled texts or retrieval: --eval TASK")
        if questions:
            sections.append(report_sections.entailment(columns, questions))
        else:
            leave_out("QNLI", "needs question and sentence pairs: --qnli FILE.tsv (label, sentence1, sentence2)")
        if sets:
            sections.append(report_sections.lexical(columns, sets))
        else:
            leave_out("Lexical bias", "needs scored pairs: --sts")
        _unlabelled(model, columns, texts, bool(corpus), settings, sections, leave_out)
    source = _source(settings, len(texts), bool(corpus))
    return _headed(runtime, columns, sections, left_out, source, settings.seed)


def _unlabelled(
    model: Model,
    columns: Sequence[Subject],
    texts: list[str],
    has_corpus: bool,
    settings: ReportOptions,
    sections: list[Section],
    leave_out: Any,
) -> None:
    if len(texts) > 1:
        sections.append(report_geometry.isotropy(columns, texts, settings.seed))
        sections.append(report_sections.neighbours(columns, texts, settings.queries, settings.seed))
    else:
        leave_out("Isotropy and nearest neighbours", "need text: --corpus FILE or --sts")
    if has_corpus:
        source = ", ".join(map(shown_name, settings.corpus))
        sections.append(report_geometry.words(model, texts, f"{len(texts):,} sentences of {source}", settings.seed))
    else:
        leave_out("Word frequency", "needs a corpus to count words in: --corpus FILE")
    if section := report_geometry.training(model, settings.log):
        sections.append(section)
    else:
        leave_out("Training", "the model holds no record of its training; name a --log-dir with --log")


def _headed(
    runtime: Runtime,
    columns: Sequence[Subject],
    sections: list[Section],
    left_out: list[dict[str, str]],
    source: str,
    seed: int,
) -> Report:
    info = runtime.info()
    name = shown_name(info["model"])
    details = [(subject.name, subject.what) for subject in columns]
    details[0] = (MODEL, f"{columns[0].what}; {info['dim']} dimensions, fingerprint {runtime.fingerprint[:16]}")
    facts = [(MODEL, name), *((subject.name, subject.plain) for subject in columns[1:])]
    if source:
        facts.append(("text", source))
    if runtime.truncated:
        facts.append(("cut", f"{counted(runtime.truncated, 'texts')} cut at {info['max_length']} tokens"))
    verdict = report_verdict.of_sections(sections)
    head = {
        "model": name,
        "fingerprint": runtime.fingerprint,
        "verdict": verdict[0],
        "subjects": {subject.name: subject.what for subject in columns},
        "seed": seed,
    }
    return Report(f"fastflow report: {name}", verdict, facts, details, sections, left_out, head)


def _source(settings: ReportOptions, count: int, has_corpus: bool) -> str:
    if not count:
        return ""
    names = ", ".join(
        shown_name(path) for path in (settings.corpus if has_corpus else [*settings.sts, *settings.tasks])
    )
    return f"{count:,} distinct sentences of {names}" + ("" if has_corpus else ", without their scores")


def check_matplotlib() -> None:
    """Raise naming the extra before minutes are spent on embedding."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise missing_extra("report", "matplotlib", "fastflow report") from error


def write_page(path: Path, text: str) -> None:
    """Write the page under a temporary name next to ``path``, then give it its name."""
    try:
        replace_text(path, text)
    except OSError as error:
        raise FastflowError(f"{path} cannot be written: {error.strerror}; choose another --output") from error
