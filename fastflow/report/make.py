"""``fastflow report``: the analyses of the BERT-flow paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fastflow.atomic import replace_text
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.evaluation.evaluate import Pairs, find_sets, find_tasks, read_labelled
from fastflow.model.artifact import load_model
from fastflow.progress import Progress, format_count
from fastflow.report import sections as measures
from fastflow.report.page import make_page
from fastflow.report.subjects import MODEL, Fit, Open, count_encoders, make_subjects, name_path, read_texts, thin
from fastflow.report.verdict import judge_sections
from fastflow.runtime import Runtime

NEEDS = {  # section -> the data that it needs
    "Similarity": "scored pairs: --sts PAIRS.tsv or a directory of them",
    "Tasks": "labelled pairs, labelled texts, retrieval or bitext: --eval TASK",
    "QNLI": "question and sentence pairs: --qnli FILE.tsv (label, sentence1, sentence2)",
    "Lexical bias": "scored pairs: --sts",
    "Isotropy": "text: --corpus FILE or --sts",
    "Word frequency": "a corpus to count words in: --corpus FILE",
}


@dataclass(frozen=True)
class ReportOptions:
    """The files, sample size and seed of a report."""

    sts: Sequence[Path] = ()
    tasks: Sequence[Path] = ()
    corpus: Sequence[Path] = ()
    qnli: Path | None = None
    sample: int = 10_000
    seed: int = 0


class Report(NamedTuple):
    """A report as page and as JSON."""

    html: str
    json: dict[str, Any]


def make_report(
    runtime: Runtime, against: Sequence[str], options: ReportOptions, fit: Fit, open_model: Open, shown: bool = False
) -> Report:
    """Embed each text once, and make every section that has data; raises a UsageError if none has."""
    found = find_tasks(options.tasks)
    sets = [*find_sets(options.sts), *(task for task in found if isinstance(task, Pairs))]
    tasks = [task for task in found if not isinstance(task, Pairs)]
    questions = read_labelled(options.qnli) if options.qnli else None
    corpus = read_texts(options.corpus, options.sample, options.seed)
    paired = list(dict.fromkeys(text for pairs in sets for text in [*pairs.first, *pairs.second]))
    texts = corpus or thin(paired, options.sample, options.seed)
    model = load_model(runtime.session.model.path)
    embedded = {*texts, *paired, *(text for task in tasks for text in task.texts)}
    if questions:
        embedded |= {*questions.first, *questions.second}
    of_corpus = f"{len(texts):,} sentences of {', '.join(map(name_path, options.corpus))}"
    with Progress("report", len(embedded) * count_encoders(model, against), "texts", shown) as progress:
        subjects = make_subjects(runtime, model, against, texts, fit, open_model, options.seed, progress.advance)
        if not (options.sts or options.tasks or options.corpus or options.qnli):
            raise UsageError(
                "report has nothing to measure: give text with --corpus FILE, scored pairs with --sts PAIRS.tsv|DIR, "
                "or both"
            )
        makers: list[tuple[Any, Callable[[], Any]]] = [
            (sets, lambda: measures.measure_similarity(subjects, sets)),
            (tasks, lambda: measures.measure_tasks(subjects, tasks)),
            (questions, lambda: questions and measures.measure_qnli(subjects, questions)),
            (sets, lambda: measures.measure_lexical(subjects, sets)),
            (texts[1:], lambda: measures.measure_isotropy(subjects, texts, options.seed)),
            (corpus, lambda: measures.measure_words(model, texts, of_corpus, options.seed)),
        ]
        sections = [make() for data, make in makers if data]
    planned = zip(NEEDS.items(), makers, strict=True)
    left_out = [{"section": name, "needs": f"needs {needs}"} for (name, needs), (data, _) in planned if not data]
    info = runtime.info()
    name, verdict = name_path(info["model"]), judge_sections(sections)
    facts = [(subject.name, subject.about) for subject in subjects]
    facts[0] = (MODEL, f"{name}: {subjects[0].about}; {info['dim']} dimensions")
    if texts:
        names = ", ".join(map(name_path, options.corpus or [*options.sts, *options.tasks]))
        apart = "" if corpus else ", without their scores"
        facts.append(("text", f"{len(texts):,} distinct sentences of {names}{apart}"))
    if runtime.truncated:
        facts.append(("cut", f"{format_count(runtime.truncated, 'texts')} cut at {info['max_length']} tokens"))
    content = {
        "model": name,
        "fingerprint": runtime.fingerprint,
        "verdict": verdict[0],
        "subjects": {subject.name: subject.about for subject in subjects},
        "seed": options.seed,
        "sections": {section.id: section.data for section in sections},
        "left_out": left_out,
    }
    return Report(make_page(f"fastflow report: {name}", verdict, facts, sections, left_out), content)


def check_matplotlib() -> None:
    """Raise before minutes of embedding if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise missing_extra("report", "matplotlib", "fastflow report") from error


def write_page(path: Path, text: str) -> None:
    """Write the page atomically."""
    try:
        replace_text(path, text)
    except OSError as error:
        raise FastflowError(f"{path} cannot be written: {error.strerror}; choose another --output") from error
