"""``fastflow report``: the analyses of the BERT-flow paper, on one HTML page without scripts and foreign links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fastflow.errors import UsageError
from fastflow.evaluation.evaluate import Pairs, find_sets, find_tasks, read_labelled
from fastflow.model.artifact import load_model
from fastflow.progress import Progress, format_count
from fastflow.report import sections as measures
from fastflow.report.models import MODEL, Fit, Open, count_encoders, make_subjects, name_path, read_texts, thin
from fastflow.report.plots import prefix_ids
from fastflow.report.verdict import Line, Section, format_figure, judge_sections
from fastflow.runtime import Runtime

NEEDS = {  # section -> the data that it needs
    "Similarity": "scored pairs: --sts PAIRS.tsv or a directory of them",
    "Tasks": "labelled pairs, labelled texts, retrieval or bitext: --eval TASK",
    "QNLI": "question and sentence pairs: --qnli FILE.tsv (label, sentence1, sentence2)",
    "Lexical bias": "scored pairs: --sts",
    "Isotropy": "text: --corpus FILE or --sts",
    "Word frequency": "a corpus to count words in: --corpus FILE",
}
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --own: #d9822b22; --dim: #6b6b6b; }
@media (prefers-color-scheme: dark) { :root { --dim: #a0a0a0; } }
body { max-width: 64rem; margin: 0 auto; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
p, ul, dl, figcaption { max-width: 44rem; }
h1 { font-size: 1.25rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.verdict { font-size: 1.25rem; line-height: 1.4; padding: .75rem 1rem; background: var(--own); border-radius: .5rem; }
dt { font-weight: 600; } dd { margin: 0 0 .25rem; }
.scroll { overflow-x: auto; overflow-wrap: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .875rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; font-weight: 400; }
thead th { background: var(--soft); vertical-align: bottom; overflow-wrap: anywhere; min-width: 5rem; }
th[scope=row], th[scope=rowgroup] { text-align: left; position: sticky; left: 0; background: Canvas; }
th[scope=row] { max-width: 9rem; overflow-wrap: anywhere; } th[scope=rowgroup], thead th { font-weight: 600; }
td { white-space: nowrap; } td small { display: block; } .own { background: var(--own); }
figure { margin: 0; max-width: 27rem; } figure svg { display: block; width: 100%; height: auto; }
figcaption, small, .dim { color: var(--dim); font-size: .875rem; }
"""
INTRODUCTION = (
    "fastflow turns sentences into vectors, so that the cosine of two vectors measures how similar two sentences are. "
    "This page measures one model, which is an encoder with a calibration fitted without labels, beside the subjects "
    "listed here. The model is always the first column."
)
BOLD = "Bold: the best of a row. Small: the 95 % interval, with other pairs or texts of the same kind."


@dataclass(frozen=True)
class ReportOptions:
    """The files, sample size and seed of a report."""

    sts: Sequence[Path] = ()
    tasks: Sequence[Path] = ()
    corpus: Sequence[Path] = ()
    qnli: Path | None = None
    sample: int = 10_000
    seed: int = 0


def make_report(
    runtime: Runtime, against: Sequence[str], options: ReportOptions, fit: Fit, open_model: Open, shown: bool = False
) -> tuple[str, dict[str, Any]]:
    """Embed each text once, and make every section that has data; return the page, and the report for JSON.

    Raises a UsageError without data.
    """
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
    return make_page(f"fastflow report: {name}", verdict, facts, sections, left_out), content


def make_page(
    title: str,
    verdict: tuple[str, str],
    facts: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    left_out: Sequence[Any],
) -> str:
    """Make the page; ``verdict``: sentence, and meaning of its measure; ``left_out``: sections that lack data."""
    body = [f"<h1>{escape(title)}</h1>", f'<p class="verdict" id="verdict">{escape(verdict[0])}</p>']
    body += [f'<p class="dim">{escape(verdict[1])}</p>'] if verdict[1] else []
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    body += [f"<p>{escape(INTRODUCTION)}</p>", f"<dl>{listed}</dl>", *_make_table(sections)]
    for section in sections:
        body.append(f'<section id="{section.id}"><h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>')
        if section.plot:
            drawn = prefix_ids(section.plot, f"{section.id}-").replace("<svg", '<svg aria-hidden="true"', 1)
            body.append(f"<figure>{drawn}<figcaption>{escape(section.caption)}</figcaption></figure>")
        body.append("</section>")
    if left_out:
        items = "".join(f"<li>{escape(e['section'])}: {escape(e['needs'])}</li>" for e in left_out)
        body.append(f'<section id="left-out"><h2>Left out</h2><ul>{items}</ul></section>')
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _make_table(sections: Sequence[Section]) -> list[str]:
    names = next((list(section.lines[0].values) for section in sections if section.lines), [])
    head = "".join(f'<th scope="col"{_mark(name)}>{escape(name)}</th>' for name in names)
    rows = [f'<div class="scroll" tabindex="0"><table><thead><tr><th></th>{head}</tr></thead>']
    for section in filter(lambda section: section.lines, sections):
        title = escape(section.title.partition(":")[0])
        rows.append(f'<tbody><tr><th scope="rowgroup" colspan="{len(names) + 1}">{title}</th></tr>')
        rows += [*map(_make_row, section.lines), "</tbody>"]
    return [*rows, f'</table></div><p class="dim">{BOLD}</p>'] if names else []


def _make_row(line: Line) -> str:
    best, cells = line.best(), [f'<tr><th scope="row">{escape(line.name)}</th>']
    for name, value in line.values.items():
        shown = format_figure(value, line.digits)
        shown = f"<b>{shown}</b>" if name in best else shown
        if name in line.intervals:
            shown += f"<small>{' to '.join(format_figure(end, 1) for end in line.intervals[name])}</small>"
        cells.append(f"<td{_mark(name)}>{shown}</td>")
    return f"{''.join(cells)}</tr>"


def _mark(name: str) -> str:
    return ' class="own"' if name == MODEL else ""
