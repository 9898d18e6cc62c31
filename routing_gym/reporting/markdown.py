"""A report in Markdown, whole or as the part of a page of docs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from routing_gym.evaluation.report import Sheet, markdown_table
from routing_gym.evaluation.results import ResultsError
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.sections import (
    Block,
    Bullets,
    Facts,
    Folded,
    Section,
    Text,
    contents,
    section_of,
    slug,
)
from routing_gym.studies.results import PartResults

BEGIN, END = "<!-- study {} -->", "<!-- end of study {} -->"


def page(title: str, about: Sequence[str], sections: Sequence[Section], figures: Mapping[str, Path]) -> str:
    """Return the whole report.

    Args:
        title: of it.
        about: paragraphs below the title.
        sections: a part each.
        figures: pictures by PART-NAME, as the page links to them.
    """
    lines = [f"# {escaped(title)}", ""]
    for text in about:
        lines += [escaped(text), ""]
    lines += [f"- [{escaped(what)}](#{name})" for name, what in contents(sections)]
    for section in sections:
        heading = section.title != title
        body = _section(section, figures, 2 if heading else 1, heading, anchors=len(sections) == 1)
        lines += ["", f'<a id="{section.name}"></a>', "", *body]
    return "\n".join(lines).rstrip("\n") + "\n"


def section(
    parts: Sequence[PartResults], figures: Mapping[str, Path], brief: bool = True, level: int = 3
) -> str:
    """Return what a study came out with, for a page of docs.

    Args:
        parts: of it.
        figures: pictures by PART-NAME, as the page links to them; others are left out.
        brief: leave out each condition's table, and how many seeds differences need.
        level: of the parts' headings.

    Raises:
        ResultsError: the results lack what a report needs; says what, and which version writes it.
    """
    lines: list[str] = []
    for part in parts:
        lines += [*_section(section_of(part, brief), figures, level), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def place(page_text: str, name: str, section_text: str) -> str:
    """Return a page with what stands between a study's markers replaced, and nothing else.

    Args:
        page_text: with the markers `<!-- study NAME -->` and `<!-- end of study NAME -->`.
        name: of the study.
        section_text: what goes between them.

    Raises:
        ResultsError: the page does not hold each marker once, in order.
    """
    begin, end = BEGIN.format(name), END.format(name)
    if (
        page_text.count(begin) != 1
        or page_text.count(end) != 1
        or page_text.index(begin) > page_text.index(end)
    ):
        raise ResultsError(f"the page must hold one line {begin} and below it one line {end}")
    before = page_text[: page_text.index(begin) + len(begin)]
    after = page_text[page_text.index(end) :]
    inner = section_text.strip("\n")
    return f"{before}\n\n{inner}\n\n{after}"


def _section(
    what: Section, figures: Mapping[str, Path], level: int, heading: bool = True, anchors: bool = False
) -> list[str]:
    lines = [f"{'#' * level} {escaped(what.title)}", ""] if heading else []
    for chapter in what.chapters:
        body: list[str] = []
        for block in chapter.blocks:
            if isinstance(block, Figure):
                name = f"{what.name}-{slug(block.name)}"
                if name not in figures:
                    continue
                body += [f"![{block.title}]({figures[name].as_posix()})", ""]
            body += _block(block)
        if chapter.title and body:
            lines += [f'<a id="{what.name}-{slug(chapter.title)}"></a>', ""] if anchors else []
            lines += [f"{'#' * (level + 1)} {escaped(chapter.title)}", ""]
        lines += body
    return lines


def _block(block: Block) -> list[str]:
    match block:
        case Facts():
            return [*(f"- {name}: {escaped(what)}" for name, what in block.facts.items()), ""]
        case Bullets():
            return [*(f"- {escaped(line)}" for line in block.lines), ""]
        case Sheet():
            # Cells hold no code, whatever stands in backticks.
            head, rule, *rows = (line.replace("<", "&lt;") for line in markdown_table(block))
            return [head, rule.replace("---|", "---:|").replace("---:|", "---|", 1), *rows, ""]
        case Folded():
            inner = [line for one in block.blocks for line in _block(one)]
            return [f"**{escaped(block.title)}**", "", *inner]
        case Figure():
            return [f"*{block.title}.* {escaped(block.caption)}", ""]
        case Text():
            text = escaped(block.text)
            return [f"**{text}**" if block.warning else text, ""]


def escaped(text: str) -> str:
    """Return text of which nothing is taken for HTML; what stands in backticks is code, and kept."""
    return re.sub(r"(`[^`]+`)|<", lambda found: found[1] or "&lt;", text)
