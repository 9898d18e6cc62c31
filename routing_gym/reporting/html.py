"""A report as one page of HTML that needs nothing else: no network, no script, no file beside it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from urllib.parse import quote

from routing_gym.evaluation.report import Sheet
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.render import csv_of, panel_svg, swatch_svg
from routing_gym.reporting.sections import Block, Bullets, Facts, Folded, Section, Text, contents, slug
from routing_gym.reporting.tables import STAR

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b1d1f; --soft: #54595e; --line: #d4d8dc;
  --band: #f3f5f7; --link: #0b57a4; --warn: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --page: #15181b; --ink: #e8eaec; --soft: #aab1b8;
  --line: #3a4046; --band: #1e2226; --link: #8abfff; --warn: #ffc078; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 1240px; padding: 1rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 2.5rem 0 .5rem; padding-top: 1rem;
  border-top: 2px solid var(--line); }
h3 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
h4 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p, ul, figcaption, dl { max-width: 52rem; }
p, li, dd, h1, h2, h3, summary, figcaption { overflow-wrap: anywhere; }
a { color: var(--link); }
code { font: .875em/1.4 ui-monospace, Menlo, Consolas, monospace; }
.warning { color: var(--warn); font-weight: 600; }
.note, figcaption { color: var(--soft); font-size: .9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .9rem; }
dt { color: var(--soft); }
dd { margin: 0; }
.wide { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; white-space: normal; font-weight: 600; }
tbody th { vertical-align: inherit; white-space: nowrap; font-weight: inherit; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
tr.yardstick { font-style: italic; color: var(--soft); }
tr.best { font-weight: 700; }
figure { margin: 1rem 0 2rem; }
.panels { display: flex; flex-wrap: wrap; align-items: flex-end; gap: .5rem 1rem; }
.panel { max-width: 100%; overflow-x: auto; }
svg { display: block; max-width: 100%; height: auto; font-family: system-ui, Arial, sans-serif; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; list-style: none; margin: .4rem 0; padding: 0;
  max-width: none; font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: .4rem; }
.legend svg { flex: none; max-width: none; }
details { margin: .4rem 0; }
summary { cursor: pointer; }
@media (max-width: 600px) { body { padding: .75rem 1rem; } th, td { padding: .25rem .45rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; }
  th:first-child { min-width: 6.5rem; max-width: 8.5rem; white-space: normal;
    overflow-wrap: break-word; } }
"""


def page(title: str, about: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the page.

    Args:
        title: of it.
        about: paragraphs below the title.
        sections: a part each.
    """
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{_inline(title)}</h1>",
        *(f"<p>{_inline(text)}</p>" for text in about),
        '<nav aria-label="Contents">',
        "<ul>",
        *(f'<li><a href="#{name}">{_inline(what)}</a></li>' for name, what in contents(sections)),
        "</ul>",
        "</nav>",
        "<main>",
    ]
    for section in sections:
        lines += _section(section, heading=section.title != title)
    return "\n".join([*lines, "</main>", "</body>", "</html>", ""])


def _section(section: Section, heading: bool) -> list[str]:
    lines = [f'<section id="{section.name}">', *[f"<h2>{_inline(section.title)}</h2>"] * heading]
    level = 3 if heading else 2
    for chapter in section.chapters:
        if chapter.title:
            name = f"{section.name}-{slug(chapter.title)}"
            lines.append(f'<h{level} id="{name}">{_inline(chapter.title)}</h{level}>')
        called = f"{section.title}: {chapter.title}"
        lines += [line for block in chapter.blocks for line in _block(block, section.name, level + 1, called)]
    return [*lines, "</section>"]


def _block(block: Block, part: str, level: int, around: str) -> list[str]:
    """Return a block.

    Args:
        block: of a chapter.
        part: prefix of ids.
        level: of the headings of figures.
        around: what tables are called.
    """
    match block:
        case Facts():
            pairs = (f"<dt>{name}</dt><dd>{_inline(what)}</dd>" for name, what in block.facts.items())
            return ["<dl>", *pairs, "</dl>"]
        case Bullets():
            return ["<ul>", *(f"<li>{_inline(line)}</li>" for line in block.lines), "</ul>"]
        case Sheet():
            return _table(block, around)
        case Folded():
            called = f"{around}: {block.title}"
            inner = [line for one in block.blocks for line in _block(one, part, level, called)]
            return ["<details>", f"<summary>{_inline(block.title)}</summary>", *inner, "</details>"]
        case Figure():
            return _figure(block, f"{part}-{slug(block.name)}", level)
        case Text():
            return [f'<p class="{"warning" if block.warning else "note"}">{_inline(block.text)}</p>']


def _table(sheet: Sheet, called: str) -> list[str]:
    region = f'role="region" aria-label="{html.escape(called)}"'
    lines = [f'<div class="wide" tabindex="0" {region}>', "<table>", "<thead>", "<tr>"]
    lines += [f'<th scope="col">{html.escape(header)}</th>' for header in sheet.headers]
    lines += ["</tr>", "</thead>", "<tbody>"]
    for cells, yardstick in zip(sheet.rows, sheet.yardsticks, strict=True):
        kind = "yardstick" if yardstick else "best" if STAR in cells[0] else ""
        first, *others = map(html.escape, cells)
        row = f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in others)
        lines.append(f'<tr class="{kind}">{row}</tr>' if kind else f"<tr>{row}</tr>")
    return [*lines, "</tbody>", "</table>", "</div>"]


def _figure(figure: Figure, name: str, level: int) -> list[str]:
    title = f"<h{level}>{_inline(figure.title)}</h{level}>"
    lines = [f'<figure id="{name}">', title, '<div class="panels">']
    for k, panel in enumerate(figure.panels):
        called = f"{figure.title}: {panel.title}" if panel.title else figure.title
        group = f'tabindex="0" role="group" aria-label="{html.escape(called)}"'
        lines.append(f'<div class="panel" {group}>{panel_svg(panel, f"{name}-{k}", called)}</div>')
    lines.append("</div>")
    if figure.legend:
        lines.append('<ul class="legend">')
        for k, (label, style) in enumerate(figure.legend.items()):
            lines.append(f"<li>{swatch_svg(style, f'{name}-l{k}')}{html.escape(label)}</li>")
        lines.append("</ul>")
    data = f"data:text/csv;charset=utf-8,{quote(csv_of(figure))}"
    which = html.escape(f"data (CSV): {figure.title}")
    link = f'<a download="{name}.csv" href="{data}" aria-label="{which}">data (CSV)</a>'
    return [*lines, f"<figcaption>{_inline(figure.caption)} {link}</figcaption>", "</figure>"]


def _inline(text: str) -> str:
    """Return text with what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
