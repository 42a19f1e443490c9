"""One self-contained HTML page without scripts or links to other hosts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from fastflow.report.parts import Line, Section, format_figure
from fastflow.report.plots import prefix_ids
from fastflow.report.subjects import MODEL

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
