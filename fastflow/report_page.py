"""Sections -> one self-contained HTML page: no script, no link, no request; one column that a phone can show."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from fastflow.report_plots import apart
from fastflow.report_sections import Section, Table

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --dim: #767676; }
@media (prefers-color-scheme: dark) { :root { --dim: #a0a0a0; } }
* { box-sizing: border-box; }
body { max-width: 46rem; margin: 0 auto; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
nav a { display: inline-block; margin-right: 1rem; padding: .25rem 0; }
.scroll { overflow-x: auto; margin: 1rem 0; overflow-wrap: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .875rem; }
caption { text-align: left; color: var(--dim); padding-bottom: .25rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: .25rem; }
thead th { background: var(--soft); white-space: normal; vertical-align: bottom; }
@media (max-width: 30rem) { table { font-size: .8125rem; } th, td { padding: .3rem .35rem; } }
figure { margin: 1rem 0; } figure svg { display: block; width: 100%; max-width: 34rem; height: auto; }
figcaption, .dim { color: var(--dim); font-size: .875rem; }
ol { margin: .25rem 0 .75rem; padding-left: 1.5rem; }
"""


def page(title: str, facts: Sequence[tuple[str, str]], sections: Sequence[Section], left_out: Sequence[Any]) -> str:
    """The whole page; ``left_out`` holds {"section", "needs"}."""
    body = [f"<h1>{escape(title)}</h1>", _facts(facts)]
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
    rows = "".join(f"<li><b>{escape(name)}</b>: {escape(value)}</li>" for name, value in facts)
    return f"<ul>{rows}</ul>"


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>", f"<p>{escape(section.text)}</p>"]
    parts += [_table(table) for table in section.tables]
    for index, plot in enumerate(section.plots):
        drawn = apart(plot.svg, f"{section.id}-{index}-").replace("<svg", '<svg role="img" aria-hidden="true"', 1)
        parts.append(f"<figure>{drawn}<figcaption>{escape(plot.caption)}</figcaption></figure>")
    for heading, lists in section.lists:
        parts.append(f"<h3>{escape(heading)}</h3>")
        for name, items in lists:
            inside = "".join(f"<li>{escape(item)}</li>" for item in items)
            parts.append(f'<div class="dim">{escape(name)}</div><ol>{inside}</ol>')
    return f'<section id="{section.id}">' + "\n".join(parts) + "</section>"


def _table(table: Table) -> str:
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in table.rows)
    # focusable, so that a keyboard can scroll what does not fit
    inside = f"{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="scroll" tabindex="0"><table>{inside}</table></div>'
