"""An analysis as tables, and as sentences on how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from routing_gym.evaluation.presentations import DASH, INFINITE, Presentation
from routing_gym.evaluation.report import FEW_SEEDS, Sheet
from routing_gym.evaluation.runner import (
    DEVELOPMENT_SEEDS,
    TEST_SEEDS_FROM,
    TRAINING_SEEDS_FROM,
    VALIDATION_SEEDS,
)
from routing_gym.evaluation.statistics import CONFIDENCE, EXACT_SEEDS, RESAMPLES, Estimate
from routing_gym.reporting.analysis import BESIDE, ONE_POINT, Analysis, Line, analyse
from routing_gym.studies.results import PartResults

LEAST_SHOWN = 0.001
# Means that are nearer to each other differ by rounding.
ALIKE = 1e-9
OPTIMAL = "cloud_edge/optimal"
ON_PREDICTIONS = (
    "proven on the predictions that routers decide on, so that luck, or a router that predicts better, may "
    "put J below optimal's"
)
STAR, CHOSEN = " ★", "✓"

BESIDE_SAID = {
    "cluster": (
        f"p99 all: over all arrivals, {INFINITE} where it falls on one that was not completed; median over "
        "conditions of medians over seeds. largest 5 %: attainment of the largest requests, mean."
    ),
    "cloud_edge": (
        "J: weighted objective per batch within fixed bounds; less is better, so that a Δ below 0 is in the "
        "router's favour. Q: quality loss per request; C: cost, thousandths of a dollar; E: energy, joules; "
        "T: completion time; all per batch, means. decision: median time to assign a batch, median over "
        "conditions of medians over seeds; it depends on the machine and on what else runs there. Optima are "
        f"{ON_PREDICTIONS}."
    ),
}


def headline(results: PartResults) -> Sheet:
    """Return a part's table over all conditions; see `headline_of`.

    Raises:
        ResultsError: the results lack what a report needs.
    """
    return headline_of(results, analyse(results))


def headline_of(results: PartResults, found: Analysis) -> Sheet:
    """Lay out an analysis: a row per router, the columns that the part has figures for."""
    show, reference = results.show, results.reference
    normalised = any(line.normalised for line in found.lines)
    published = any(line.published is not None for line in found.lines)
    headers = ["router", show.mean, "IQM [95 %]", f"Δ to {reference}, {show.unit} [95 %]", "p (Holm)"]
    headers += ["P(better) [95 %]", *["normalised [95 %]"] * normalised, *["published"] * published]
    headers += [column.title for column in BESIDE[show.family]]
    rows = []
    for line in found.lines:
        invalid = f" ({line.invalid} invalid)" if line.invalid else ""
        cells = [
            f"{line.label}{STAR if line.label == found.best else ''}{invalid}",
            number(line.mean, show.scale, show.decimals[0]),
            interval(line.iqm, show.scale, show.decimals[1]),
            _difference(line, reference, show),
            DASH if line.p_value is None else probability(line.p_value),
            interval(line.better, 1.0, 2),
        ]
        cells += [interval(line.normalised, 1.0, 2)] * normalised
        cells += [number(line.published, show.scale, show.decimals[0])] * published
        cells += [
            column.number(value) for column, value in zip(BESIDE[show.family], line.beside, strict=True)
        ]
        rows.append(cells)
    return Sheet(
        f"{conditions_said(len(found.conditions), len(results.conditions))}, {show.score}",
        tuple(headers),
        rows,
        [line.yardstick for line in found.lines],
    )


def seeds_table(results: PartResults, found: Analysis) -> Sheet:
    """Lay out how many seeds differences to the reference need, paired against unpaired."""
    show = results.show
    point = f"{show.scale * ONE_POINT:g} {show.unit.rstrip('s')}"
    headers = ["router", f"Δ observed, {show.unit}"]
    headers += [f"{effect}: {how}" for effect in (point, "Δ observed") for how in ("paired", "unpaired")]
    lines = [line for line in found.lines if line.difference is not None]
    rows = []
    for line in lines:
        assert line.difference is not None
        counts = [*line.one_point, *line.observed]
        shown = [DASH if count is None else f"{count:,}".replace(",", "\u202f") for count in counts]
        rows.append([line.label, number(line.difference.value, show.scale, show.decimals[1], "+"), *shown])
    return Sheet("", tuple(headers), rows, [line.yardstick for line in lines])


def selection_table(results: PartResults, chosen: str) -> Sheet:
    """Lay out the candidates' means on development seeds, and which was chosen.

    Args:
        results: of the selection.
        chosen: label of the router that became the reference.
    """
    show = results.show
    means = results.scores(show.score).mean(axis=(1, 2))
    rows = []
    for label, mean in zip(results.routers, means.tolist(), strict=True):
        shown = number(None if math.isnan(mean) else mean, show.scale, show.decimals[0])
        rows.append([label, shown, CHOSEN if label == chosen else ""])
    return Sheet("", ("candidate", show.mean, "chosen"), rows, [False] * len(rows))


def verdict(results: PartResults, found: Analysis) -> list[str]:
    """Say which router is best, or which ones are not told apart, and where seeds are too few to say."""
    seeds = len(results.seeds)
    compared = [line for line in found.lines if not line.yardstick]
    least = 2.0 ** (1 - seeds) if seeds <= EXACT_SEEDS else 1.0 / (RESAMPLES + 1)
    family = len(compared) - 1
    lines = []
    if family > 0 and least * family > 1.0 - CONFIDENCE:
        lines.append(
            f"{found.tied[0]} has the best mean. With {counted(seeds, 'seed')} and "
            f"{counted(family, 'comparison')} no corrected p can be below "
            f"{probability(min(1.0, least * family))}, however large a difference is: take more "
            "seeds for a ★."
        )
    elif found.best:
        lines.append(
            f"{found.best}{STAR} is better than every other router: each difference is significant at "
            "5 %, Holm-corrected."
        )
    elif found.tied:
        first, *others = found.tied
        lines.append(
            f"No single best router: {first} has the best mean, and is not told apart from "
            f"{', '.join(others)} (Holm-corrected p above {1.0 - CONFIDENCE:.2g})."
        )
    if seeds < FEW_SEEDS:
        lines.append(f"So few seeds give no interval of 95 % either; take {FEW_SEEDS} at least.")
    below = _below_optimal(results, found)
    if below:
        lines.append(f"Better than optimal in the mean: {', '.join(below)}. Optima are {ON_PREDICTIONS}.")
    return lines


def _below_optimal(results: PartResults, found: Analysis) -> list[str]:
    sign = results.show.sign
    optimal = [router["label"] for router in results.run["routers"] if router["name"] == OPTIMAL]
    means = [sign * line.mean for line in found.lines if line.label in optimal]
    routers = [line for line in found.lines if not line.yardstick]
    return [line.label for line in routers if means and sign * line.mean > max(means) + ALIKE]


def how_to_read(results: PartResults, found: Analysis) -> str:
    """Say what the columns of the headline table are."""
    show = results.show
    text = (
        f"Means of {show.score} over conditions and seeds; IQM: mean of the middle half of all episodes. Δ: "
        "mean over seeds of paired differences, each of means over conditions, with its bootstrap interval; "
        "a tie where that holds 0. p: of that difference, by flipping signs, Holm-corrected among all "
        f"routers against {results.reference}; yardsticks (italic) are not tested, they {show.yardsticks}. "
        "P(better): chance that an episode of the router beats one of the reference. ★: better than every "
        "other router, Holm-corrected. "
    )
    if found.normalised is not None:
        text += (
            "normalised: interquartile mean where per condition the random router is 0 and the best "
            f"documented one 1, over {len(found.normalised.kept)} of "
            f"{counted(len(found.conditions), 'condition')}. "
        )
    if any(line.published is not None for line in found.lines):
        text += "published: the mean that the source reports. "
    return text + BESIDE_SAID[show.family]


def seeds_said(seeds: Sequence[int]) -> str:
    """Say which seeds these are, and of which range of the protocol (DESIGN 6)."""
    run = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    which = f"{seeds[0]}–{seeds[-1]}" if run and len(seeds) > 1 else ", ".join(map(str, seeds))
    kinds = dict.fromkeys(map(_kind, seeds))
    return f"{len(seeds)} ({which}; {', '.join(kinds)})"


def _kind(seed: int) -> str:
    if seed in DEVELOPMENT_SEEDS:
        return "development"
    if seed in VALIDATION_SEEDS:
        return "validation"
    if seed >= TRAINING_SEEDS_FROM:
        return "training"
    return "test" if seed >= TEST_SEEDS_FROM else "of no range of the protocol"


def conditions_said(count: int, planned: int) -> str:
    """Say over how many conditions of those planned."""
    if count < planned:
        return f"{count} of {planned} conditions"
    return f"All {count} conditions" if count > 1 else "One condition"


def counted(count: int, noun: str) -> str:
    """Say how many of something there are."""
    return f"{count} {noun}{'s' * (count != 1)}"


def number(value: float | None, scale: float, decimals: int, sign: str = "") -> str:
    """Format a number; what rounds to -0 is 0, but keeps the minus where signs are shown."""
    if value is None:
        return DASH
    shown = np.round(scale * value, decimals)
    if not (sign and value < 0.0):
        shown += 0.0
    return f"{shown:{sign}.{decimals}f}".replace("inf", INFINITE)


def interval(estimate: Estimate | None, scale: float, decimals: int, sign: str = "") -> str:
    """Format a value with its interval."""
    if estimate is None:
        return DASH
    value, low, high = (number(part, scale, decimals, sign) for part in estimate)
    return f"{value} [{low}, {high}]"


def probability(value: float) -> str:
    """Format a p-value."""
    return f"{value:.3f}" if value >= LEAST_SHOWN else f"<{LEAST_SHOWN}"


def _difference(line: Line, reference: str, show: Presentation) -> str:
    if line.label == reference:
        return "reference"
    if line.difference is None:
        return DASH
    text = interval(line.difference, show.scale, show.decimals[1], "+")
    return text if line.difference.excludes_zero else f"tie {text}"
