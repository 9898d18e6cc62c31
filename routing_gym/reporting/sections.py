"""What a report says of a part, in order, whichever way it is laid out."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from routing_gym.evaluation.report import Sheet, remarks, sheets, summarise
from routing_gym.reporting.analysis import NEEDED, Analysis, analyse, check, has_scale, newer
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.tables import (
    counted,
    headline_of,
    how_to_read,
    seeds_said,
    seeds_table,
    selection_table,
    verdict,
)
from routing_gym.studies.results import PartResults

# More tables than this nobody reads.
MOST_CONDITIONS = 40
FAMILIES = {"cluster": "Inference cluster", "cloud_edge": "Cloud–edge batches"}
LEARNED = "learned"
NO_FIGURES = 'No figures: matplotlib is missing; pip install "routing-gym[plots]"'

MODEL = {
    "cluster": (
        "One simulated model: a replica serves one request at a time, without batching, prefix caches or "
        "scheduling of tokens. No number is a measurement of a real system."
    ),
    "cloud_edge": (
        "One simulated model: throughputs, prices and powers are a catalogue's, a batch's speed-up is one "
        "number, and destinations on a node do not slow each other. No number is a measurement of a system "
        "or of a provider."
    ),
}


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` in backticks."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    facts: dict[str, str]


@dataclass(frozen=True)
class Bullets:
    """A list."""

    lines: list[str]


@dataclass(frozen=True)
class Folded:
    """What is shown on demand."""

    title: str
    blocks: list[Block]


Block = Text | Facts | Bullets | Sheet | Figure | Folded


@dataclass(frozen=True)
class Chapter:
    """Part of a section.

    Attributes:
        title: of its heading; empty of what stands first.
        blocks: in order.
    """

    title: str
    blocks: list[Block]


@dataclass(frozen=True)
class Section:
    """What is said of a part.

    Attributes:
        name: for links and files.
        title: of its heading.
        chapters: in order.
    """

    name: str
    title: str
    chapters: list[Chapter]


def slug(name: str) -> str:
    """Return a name that files and links can bear."""
    return re.sub(r"[^\w.-]+", "-", name)


def contents(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """Return what a table of contents links to, and how it is called: parts; of one alone its chapters."""
    if len(sections) > 1:
        return [(section.name, section.title) for section in sections]
    (section,) = sections
    titles = [chapter.title for chapter in section.chapters if chapter.title]
    return [(f"{section.name}-{slug(title)}", title) for title in titles]


def section_of(results: PartResults, brief: bool = False) -> Section:
    """Say what came out of a part.

    Args:
        results: of the part.
        brief: for a page that says itself how to read tables and what they do not show: leave that out, and
            each condition's table, and how many seeds differences need.

    Raises:
        ResultsError: the results lack what a report needs; says what, and which version writes it.
    """
    found = analyse(results)
    chapters = [Chapter("", _about(results, found, brief))]
    if found.lines:
        table = headline_of(results, found)
        lines = verdict(results, found)
        if brief and found.normalised is not None and found.normalised.left_out:
            kept, count = len(found.normalised.kept), counted(len(found.conditions), "condition")
            lines.append(f"Normalised over {kept} of {count}; in the others there is too little to gain.")
        blocks: list[Block] = [table, *([Bullets(lines)] if lines else [])]
        chapters.append(
            Chapter(table.title, blocks if brief else [*blocks, Text(how_to_read(results, found))])
        )
    if results.selection is not None:
        chapters.append(Chapter("Selection", _selection(results, results.selection)))
    if not brief and found.normalised is not None and found.normalised.left_out:
        left_out = found.normalised.left_out.items()
        lines = [f"{found.conditions[k]}: {reason}." for k, reason in left_out]
        chapters.append(Chapter("Conditions that are not normalised", [Bullets(lines)]))
    figures = _figures(results, found) if found.lines else []
    if figures:
        chapters.append(Chapter("Figures", figures))
    if not brief and any(line.difference for line in found.lines):
        text = (
            "By a two-sided t-test at 5 % with a power of 80 %, of means over conditions, from the variance "
            "seen here. paired: both routers on the same seeds; unpaired: seeds of each router."
        )
        table = seeds_table(results, found)
        chapters.append(Chapter("How many seeds a difference needs", [table, Text(text)]))
    if not brief and found.lines:
        chapters.append(Chapter("Each condition", _each_condition(results)))
    if not brief:
        chapters.append(Chapter("What these results do not show", [Bullets(_not_shown(results, found))]))
    title = results.part.get("title") or f"{FAMILIES[results.run['family']]}: {results.name}"
    return Section(slug(results.name), title, chapters)


def _about(results: PartResults, found: Analysis, brief: bool) -> list[Block]:
    run, plan = results.run, results.plan
    count = len(results.conditions)
    blocks: list[Block] = []
    if found.played < found.planned:
        text = f"Incomplete: {found.played} of {found.planned} episodes are played."
        if found.lines and len(found.conditions) < count:
            text += f" The table is of the {len(found.conditions)} of {count} conditions that are."
        if found.waiting:
            text += f" Without all their episodes, and so not in it: {', '.join(found.waiting)}."
        blocks.append(Text(text, warning=True))
    if found.undefined:
        text = f"Not in the table, as {results.show.score} is undefined in some episode: "
        blocks.append(Text(text + f"{', '.join(found.undefined)}.", warning=True))
    if found.lines and found.normalised is None and has_scale(results):
        text = "Scores are normalised when random, the documented routers and the clairvoyant are complete."
        blocks.append(Text(text, warning=True))
    made = newer(results)
    if made:
        text = f"Made with routing-gym {made}, which is newer than what has written this report."
        blocks.append(
            Text(f"{text} It knows what {NEEDED} and later write, and may leave out what is new.", True)
        )
    note = results.part.get("note")
    blocks += [Text(str(note))] if note else []
    versions = ", ".join(f"{name} {number}" for name, number in plan["versions"].items())
    facts = {
        "Family": f"{FAMILIES[run['family']]}, `{run['environment']}`",
        "Conditions": str(count) if count > 1 else f"1 ({results.conditions[0]['name']})",
        "Seeds": seeds_said(results.seeds),
        "Episodes": f"{found.played} of {found.planned}",
        "Reference": results.reference + (", chosen on development seeds" if results.selection else ""),
        "Command": f"`{plan['command']}`",
        "Versions": f"{versions}, Python {plan['python']}",
        "Machine": str(plan["machine"]),
    }
    if brief:
        said = "; ".join(f"{name.lower()}: {what}" for name, what in facts.items() if name != "Family")
        return [*blocks, Text(f"{facts['Family']}; {said}.")]
    return [*blocks, Facts(facts)]


def _selection(results: PartResults, selection: PartResults) -> list[Block]:
    check(selection)
    text = (
        f"Mean {results.show.score} over the conditions; seeds: {seeds_said(selection.seeds)}. "
        f"{results.reference} is the reference of this part, whose own seeds had no say in that."
    )
    return [Text(text), selection_table(selection, results.reference)]


def _figures(results: PartResults, found: Analysis) -> list[Block]:
    if importlib.util.find_spec("matplotlib") is None:
        return [Text(NO_FIGURES)]
    from routing_gym.reporting.figures import figures_of

    return list(figures_of(results, found))


def _each_condition(results: PartResults) -> list[Block]:
    count = len(results.conditions)
    if count > MOST_CONDITIONS:
        text = f"The part has {count} conditions; tables of each are left out above {MOST_CONDITIONS}."
        return [Text(text)]
    tables: list[tuple[Sheet, list[str]]] = []
    for condition in results.conditions:
        name = condition["name"]
        rows = results.rows(name)
        if not rows:
            continue
        plan = {**results.plan, "run": {**results.run, "conditions": [condition]}}
        summary = summarise(plan, rows, results.curves(name) if results.show.pool else ())
        tables.append((sheets(summary)[0], remarks(summary)))
    said: Sequence[str] = tables[0][1] if tables else ()
    everywhere = [line for line in said if all(line in lines for _, lines in tables)]
    blocks: list[Block] = [Text(line) for line in everywhere]
    for table, lines in tables:
        own: list[Block] = [Text(line) for line in lines if line not in everywhere]
        blocks += [Folded(table.title, [table, *own])] if count > 1 else [table]
    return blocks


def _not_shown(results: PartResults, found: Analysis) -> list[str]:
    names = [router["name"].partition("/")[2] for router in results.run["routers"]]
    count = len(results.seeds)
    lines = [
        MODEL[results.run["family"]],
        "Seeds vary only what a condition leaves to chance, such as arrivals and lengths. Intervals and "
        f"p-values are over {counted(count, 'seed')}: they say nothing about other conditions, "
        "configs or loads.",
        "p-values are corrected within a table, not over the tables of several parts.",
    ]
    if len(found.conditions) > 1:
        lines.append(
            "A mean over conditions weighs each alike: which were chosen decides it as much as routers do."
        )
    if LEARNED in names or results.group("trained"):
        lines.append(
            "Intervals hold trained networks fixed: they do not say how another training would turn out."
        )
    if any(line.published is not None for line in found.lines):
        lines.append(
            "Published figures are of the source's own conditions, not all of which it states: how far ours "
            "are from them is not tested."
        )
    overlapping = [
        condition["name"]
        for condition in results.conditions
        if count * condition["labels"].get("cutoff_s", 0.0) > condition["labels"].get("trace_s", math.inf)
    ]
    if overlapping:
        lines.append(
            f"The seeds' stretches of a trace overlap ({'; '.join(overlapping)}), so that intervals "
            "understate how much another trace would differ."
        )
    return lines
