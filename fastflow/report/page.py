"""Sections -> one self-contained HTML page: no script, no link, no request; a phone shows it as one column."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from fastflow.report.parts import Best, Columns, Figure, Neighbour, Section
from fastflow.report.plots import apart
from fastflow.report.subjects import MODEL

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --own: #d9822b22; --dim: #6b6b6b; }
@media (prefers-color-scheme: dark) { :root { --dim: #a0a0a0; } }
* { box-sizing: border-box; }
body { max-width: 64rem; margin: 0 auto; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
p, ul, dl, figcaption { max-width: 44rem; }
h1 { font-size: 1.25rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
h4 { margin: 0; font-size: .875rem; color: var(--dim); }
.verdict { font-size: 1.25rem; line-height: 1.4; padding: .75rem 1rem; background: var(--own); border-radius: .5rem; }
dl { display: grid; grid-template-columns: fit-content(30%) 1fr; gap: .25rem 1rem; margin: 0; font-size: .9375rem; }
dt { font-weight: 600; } dd { margin: 0; }
nav { margin-top: 1.5rem; } nav a { display: inline-block; margin-right: 1rem; padding: .25rem 0; }
.parts { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 1rem 2.5rem; }
.table { max-width: 100%; } .scroll { overflow-x: auto; overflow-wrap: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .875rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; font-weight: 400; }
th, td { white-space: nowrap; }
th.long, td.long { white-space: normal; overflow-wrap: anywhere; min-width: 6.5rem; }
td.long { text-align: left; } td b { font-weight: 800; }
td small { display: block; color: var(--dim); font-size: .75rem; }
table { table-layout: fixed; width: calc(var(--name) + var(--each) * var(--columns)); --name: 10rem; --each: 7.5rem; }
th:first-child { width: var(--name); }
summary { cursor: pointer; } summary h2 { display: inline; } section > details { margin-top: 2.5rem; }
.own { background: var(--own); }
thead th { background: var(--soft); vertical-align: bottom; font-weight: 600; }
tbody th, thead th:first-child { text-align: left; padding-left: .25rem; position: sticky; left: 0; }
tbody th { background: Canvas; }
thead th:first-child { background: linear-gradient(var(--soft), var(--soft)) Canvas; }
figure { margin: 0; flex: 1 1 20rem; max-width: 27rem; } figure svg { display: block; width: 100%; height: auto; }
figcaption, .dim { color: var(--dim); font-size: .875rem; }
.lists { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 13.5rem), 1fr)); gap: .75rem 1.5rem; }
.lists > div { border-left: 3px solid var(--line); padding-left: .75rem; } .lists > .first { border-color: #d9822b; }
ol { margin: .25rem 0; padding-left: 1.25rem; font-size: .9375rem; }
@media (max-width: 30rem) {
  table { font-size: .8125rem; --name: 6.5rem; --each: 5.75rem; } th, td { padding: .3rem .35rem; }
  dl { display: block; } dt { margin-top: .5rem; }
}
"""
LONG = 14  # letters
INTRODUCTION = (
    "fastflow turns sentences into vectors, so that the cosine of two vectors measures how similar two sentences are. "
    "This page measures one model, which is an encoder with a calibration fitted without labels, beside the subjects "
    "listed here. The model is always the first column."
)


def page(
    title: str,
    verdict: tuple[str, str],
    facts: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    left_out: Sequence[Any],
    details: Sequence[tuple[str, str]] = (),
) -> str:
    """The whole page; ``verdict`` with the meaning of its measure, ``left_out`` holds {"section", "needs"}.

    ``details`` and folded sections are shown on request.
    """
    body = [f"<h1>{escape(title)}</h1>", f'<p class="verdict" id="verdict">{escape(verdict[0])}</p>']
    if verdict[1]:
        body.append(f'<p class="dim">{escape(verdict[1])}</p>')
    body += [f"<p>{escape(INTRODUCTION)}</p>", _facts(facts)]
    if details:
        body.append(f'<details id="details"><summary>Poolings and calibrations</summary>{_facts(details)}</details>')
    links = [f'<a href="#{s.id}">{escape(s.title.split(":")[0])}</a>' for s in sections]
    links += ['<a href="#left-out">Left out</a>'] if left_out else []
    body.append(f"<nav>{' '.join(links)}</nav>")
    body += [_section(section) for section in sections]
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


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts) + "</dl>"


def _section(section: Section) -> str:
    parts = [_table(table) for table in section.tables]
    for index, plot in enumerate(section.plots):
        drawn = apart(plot.svg, f"{section.id}-{index}-").replace("<svg", '<svg aria-hidden="true"', 1)
        parts.append(f"<figure>{drawn}<figcaption>{escape(plot.caption)}</figcaption></figure>")
    title, body = f"<h2>{escape(section.title)}</h2>", [f"<p>{escape(section.text)}</p>"]
    body += [f'<div class="parts">{"".join(parts)}</div>'] if parts else []
    for query, lists in section.lists:
        beside = "\n".join(_list(name, found, not i) for i, (name, found) in enumerate(lists))
        body += [f"<h3>Nearest to: {escape(query)}</h3>", f'<div class="lists">{beside}</div>']
    inside = "\n".join(body)
    if section.folded:
        inside = f"<details><summary>{title}</summary>{inside}</details>"
    else:
        inside = f"{title}\n{inside}"
    return f'<section id="{section.id}">{inside}</section>'


def _list(name: str, found: Sequence[Neighbour], first: bool) -> str:
    items = "".join(f'<li><span class="dim">{cosine}</span> {escape(text)}</li>' for cosine, text in found)
    kind = ' class="first"' if first else ""
    return f"<div{kind}><h4>{escape(name)}</h4><ol>{items}</ol></div>"


def _table(table: Columns) -> str:
    own = ["own" if name == MODEL else "" for name in table.columns]
    head = "".join(_cell('th scope="col"', name, kind) for name, kind in zip(table.columns, own, strict=True))
    rows = "".join(_row(row, own) for row in table.rows)
    inside = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    # focusable, so that a keyboard can scroll wide tables
    wide = f'<div class="scroll" tabindex="0"><table style="--columns: {len(own) - 1}">{inside}</table></div>'
    return f'<div class="table"><div class="dim">{escape(table.caption)}</div>{wide}</div>'  # the caption stays in view


def _row(row: Sequence[str], own: Sequence[str]) -> str:
    cells = [_cell("td", text, kind) for text, kind in zip(row[1:], own[1:], strict=True)]
    name = _cell('th scope="row"', row[0], "")
    return f"<tr>{name}{''.join(cells)}</tr>"


def _cell(tag: str, text: str, kind: str) -> str:
    """A cell; a short text never breaks within a word, a long one may, so that it leaves the model's column in view."""
    kinds = " ".join([kind] * bool(kind) + ["long"] * (len(text) > LONG))
    inside = f"<b>{escape(text)}</b>" if isinstance(text, Best) else escape(text)
    if isinstance(text, Figure) and text.interval:
        inside += f"<small>{escape(text.interval)}</small>"
    classes = f' class="{kinds}"' if kinds else ""
    return f"<{tag}{classes}>{inside}</{tag.split()[0]}>"
