"""The study's report in Markdown, made of the results on disk alone (DESIGN 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from routing_agents.study_scores import (
    Floats,
    Results,
    defined_mean,
    median_over_conditions,
    share_of_way,
)
from routing_gym.common.percentiles import nearest_rank
from routing_gym.evaluation.presentations import DASH, INFINITE
from routing_gym.evaluation.report import FEW_SEEDS, Sheet, markdown_table
from routing_gym.evaluation.statistics import Estimate, bootstrap_mean, paired_difference

COMMAND = "routing-gym study learned"
REPORT_COMMAND = "routing-gym report-learned"
GOAL = "clairvoyant"
MEAN = "mean of {} trained"

HOW_TO_READ = (
    "Intervals are 95 % bootstraps over the seeds of episodes, which all conditions and routers share; Δ is "
    "the mean of paired differences, a tie where its interval holds 0. The rows of single trained routers "
    "are training seeds of one method, and the row of their mean says what the method is worth. Intervals "
    "are of these training seeds, their networks held fixed; how far training seeds spread is in each "
    "section's first finding. Yardsticks (italic) know more than a router can, or are bounds."
)
CLUSTER_COLUMNS = (
    "Attainment: on time / all arrivals, mean over conditions and seeds. Way: the share of the way from "
    f"{{reference}} to {GOAL} that a router above it goes. p99: over all arrivals, {INFINITE} where it falls "
    "on a request that was not completed; median over conditions of medians over seeds, and under how many "
    "conditions it is infinite. Largest 5 %: attainment of the largest requests. Latency: mean over "
    "completed requests."
)
CLOUD_EDGE_COLUMNS = (
    "J: what a batch costs within fixed bounds, mean over conditions and seeds; less is better. Loss: "
    "quality loss per request. Latency: from arrival to answer, mean and p99. Requests that still wait at an "
    "episode's end are in none of these figures. Backlog: the longest of any destination when a window has "
    "passed, mean (largest) over windows. Decision: time to assign a batch of {batch} requests, median and "
    "p95 over the {count} such batches, the {routers} routers taking turns; it depends on the machine and on "
    "what else runs there."
)


def report(results: Mapping[str, Results], plots: Sequence[Path], about: str = "") -> str:
    """Return the report: a section for each part, below a heading of level 3.

    Args:
        results: of each part, by name, in order.
        plots: pictures that lie beside it, named `learned_PART.png`.
        about: a paragraph before the sections.
    """
    drawn = {plot.stem.removeprefix("learned_"): plot.name for plot in plots}
    lines = [f"    {COMMAND} --data FOLDER", f"    {REPORT_COMMAND}", "", HOW_TO_READ, ""]
    lines += [about, ""] if about else []
    for name, mine in results.items():
        other = results.get(mine.report.beside or "")
        mine = mine.beside(other) if other else mine
        lines += [f"### {mine.title}", "", _about(name, mine), ""]
        show = _cluster if mine.family == "cluster" else _cloud_edge
        split = mine.report.split
        groups = (
            [(f"{split} {v}", mine.where(split, v)) for v in mine.values(split)] if split else [("", mine)]
        )
        for title, group in groups:
            lines += [f"**{title}**", ""] if title else []
            lines += show(group)
        lines += [_columns(mine), ""]
        if name in drawn:
            lines += [f"![{mine.title}]({drawn[name]})", ""]
    return "\n".join(lines)


def findings(results: Results) -> list[str]:
    """Say what the trained routers are worth, in sentences."""
    show, trained = results.played.show, results.trained
    if not trained:
        return []
    mean = results.mean_scores(trained, show.score).mean(axis=0)
    each = [float(results.scores(router, show.score).mean()) for router in trained]
    decimals = show.decimals[0]
    lines = []
    if len(each) > 1:
        spread = ", ".join(f"{show.scale * value:.{decimals}f}" for value in sorted(each))
        deviation = show.scale * float(np.std(each, ddof=1))
        shown = np.format_float_positional(deviation, 2, unique=False, fractional=False, trim="-")
        lines.append(f"The {len(each)} training seeds reach {spread}; standard deviation {shown}.")
    best = _best_documented(results)
    against = [results.reference, *results.report.also, *([best] if best else [])]
    for router in dict.fromkeys(against):
        found = paired_difference(mean, results.scores(router, show.score).mean(axis=0))
        assert found is not None
        better = show.sign * found.value > 0.0
        word = ("better than" if better else "worse than") if found.excludes_zero else "no different from"
        what = f"{router}, the best documented router" if router == best else router
        text = f"Trained routers, on average, are {word} {what}: {_signed(found, show.scale, decimals)}"
        lines.append(f"{text} {show.unit}.")
    if GOAL in results.roles:
        start, end = (results.scores(router, show.score).mean(axis=0) for router in (against[0], GOAL))
        share = share_of_way(mean, start, end)
        if share is not None and share.value > 0.0:
            lines.append(f"Of the way from {against[0]} to {GOAL} they go {_interval(share, 100.0, 0)} %.")
    if results.family == "cloud_edge":
        backlog, most = _backlog(results, (against[0],))
        lines.append(
            f"What carries over: {against[0]} leaves {backlog} s of backlog behind a window on average, "
            f"{most} s at most."
        )
    return lines


def _about(name: str, results: Results) -> str:
    """Say what was played."""
    seeds, played, few = results.seeds, results.played, results.load_of_replicas
    count = len(results.conditions)
    data = " --data FOLDER" if "trace" in results.crossed else ""
    versions = ", ".join(f"{package} {number}" for package, number in played.plan["versions"].items())
    text = (
        f"`{COMMAND} --parts {name}{data}`: {count} condition{'s' * (count > 1)} × {len(seeds)} "
        f"seed{'s' * (len(seeds) > 1)} ({_span(seeds)}), {versions}."
    )
    if few is not None:
        text += (
            f" Rates are those of {few} replicas; here they are higher, for the same load. "
            "Events still hit one replica."
        )
    if played.selection is not None:
        show = played.show
        means = played.selection.scores(show.score).mean(axis=(1, 2))
        scores = ", ".join(
            f"{label} {show.scale * mean:.{show.decimals[0]}f}"
            for label, mean in zip(played.selection.routers, means, strict=True)
        )
        text += (
            f" Reference: {results.reference}, the best on development seeds "
            f"{_span(played.selection.seeds)} ({show.score}, {show.mean}: {scores})."
        )
    if results.outdated:
        text += (
            " Played with other weights than those of today; play it again. Such a router is trained by "
            f"`{results.report.train}`."
        )
    if len(seeds) < FEW_SEEDS:
        text += f" So few seeds give no interval of 95 %; take {FEW_SEEDS} at least."
    overlapping = [
        condition["labels"]["trace"]
        for condition in results.conditions
        if len(seeds) * condition["labels"].get("cutoff_s", 0.0)
        > condition["labels"].get("trace_s", math.inf)
    ]
    if overlapping:
        text += (
            f" The seeds' stretches of a trace overlap ({', '.join(overlapping)}), so that intervals "
            "understate how much another trace would differ."
        )
    return f"{text} {played.part['note']}".strip()


def _columns(results: Results) -> str:
    """Say what the columns of a part's tables are."""
    if results.family == "cluster":
        return CLUSTER_COLUMNS.format(reference=results.reference)
    return CLOUD_EDGE_COLUMNS.format(
        batch=results.report.decision_batch,
        count=len(_decision_times(results, results.reference)),
        routers=len(results.routers),
    )


def _span(seeds: Sequence[int]) -> str:
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def _best_documented(results: Results) -> str | None:
    means = {r: float(results.scores(r, "attainment").mean()) for r in results.documented}
    return max(means, key=lambda router: means[router]) if means else None


def _rows(results: Results) -> list[tuple[str, bool, tuple[str, ...]]]:
    """Return a table's rows: name, whether it is a yardstick, and the routers that it is the mean of."""
    trained = results.trained
    rows: list[tuple[str, bool, tuple[str, ...]]] = [
        (router, role == "yardstick", (router,)) for router, role in results.roles.items()
    ]
    if len(trained) > 1:
        last = max(k for k, row in enumerate(rows) if row[0] in trained)
        rows.insert(last + 1, (f"**{MEAN.format(len(trained))}**", False, trained))
    return sorted(rows, key=lambda row: row[1])


def _cluster(results: Results) -> list[str]:
    reference = results.reference
    scores = {router: results.scores(router, "attainment").mean(axis=0) for router in results.routers}
    way = GOAL in scores
    headers = ["router", "attainment %", f"Δ to {reference}, points"]
    headers += ["way %"] if way else []
    headers += ["p99, ms", "largest 5 %", "latency, ms"]
    rows = []
    for name, yardstick, routers in _rows(results):
        mine = np.mean([scores[router] for router in routers], axis=0)
        cells = [name, _interval(bootstrap_mean(mine), 100.0, 2)]
        cells.append(_difference(name, reference, mine, scores[reference], 100.0, 2))
        if way:
            share = share_of_way(mine, scores[reference], scores[GOAL])
            shown = not yardstick and name != reference and share is not None and share.value > 0.0
            cells.append(_interval(share if shown else None, 100.0, 0))
        p99, infinite = median_over_conditions(results.mean_scores(routers, "p99_all_ms"))
        largest, latency = (
            defined_mean(results.mean_scores(routers, metric))
            for metric in ("attainment_largest_5pct", "mean_latency_ms")
        )
        cells.append(_number(p99, 1.0, 0))
        if infinite:
            cells[-1] += f" ({infinite} of {len(results.conditions)} {INFINITE})"
        rows.append([*cells, _number(largest, 100.0, 1), _number(latency, 1.0, 1)])
    yardsticks = [yardstick for _, yardstick, _ in _rows(results)]
    lines = [*markdown_table(Sheet("", tuple(headers), rows, yardsticks)), ""]
    found = findings(results)
    lines += [*(f"- {finding}" for finding in found), ""] if found else []
    return lines + (_each_cluster_condition(results) if found and len(results.conditions) > 1 else [])


def _each_cluster_condition(results: Results) -> list[str]:
    """Return a table of the conditions, attainment in %."""
    reference, all_trained = results.reference, results.trained
    fields = [field for field in results.crossed if field != results.report.split]
    yardsticks = [router for router, role in results.roles.items() if role == "yardstick"]
    headers = [*fields, "best documented", reference, MEAN.format(len(all_trained))]
    headers += ["Δ, points", *yardsticks]
    rows = []
    for condition in results.conditions:
        here = results._replace(conditions=[condition])
        trained = here.mean_scores(all_trained, "attainment")[0]
        usual = here.scores(reference, "attainment")[0]
        best = _best_documented(here)
        cells = [f"{condition['labels'][field]}" for field in fields]
        cells.append(f"{_percent(here.scores(best, 'attainment'))} {best}" if best else DASH)
        cells += [_percent(usual), _percent(trained), _difference("", reference, trained, usual, 100.0, 1)]
        rows.append([*cells, *(_percent(here.scores(router, "attainment")) for router in yardsticks)])
    return _folded(f"Each of the {len(rows)} conditions, attainment in %", headers, rows)


def _cloud_edge(results: Results) -> list[str]:
    reference, fields = results.reference, results.crossed
    scores = {router: results.scores(router, "objective").mean(axis=0) for router in results.routers}
    against = [reference, *results.report.also]
    headers = ["router", "J", *(f"Δ to {router}" for router in against), "loss", "latency, s", "p99, s"]
    headers += ["backlog, s", "decision, ms", "p95, ms"]
    rows = []
    for name, _, routers in _rows(results):
        mine = np.mean([scores[router] for router in routers], axis=0)
        cells = [name, _interval(bootstrap_mean(mine), 1.0, 4)]
        cells += [_difference(name, router, mine, scores[router], 1.0, 4) for router in against]
        for metric, decimals in (("quality_loss", 3), ("mean_latency_s", 2), ("p99_latency_s", 2)):
            cells.append(_number(defined_mean(results.mean_scores(routers, metric)), 1.0, decimals))
        cells.append("{} ({})".format(*_backlog(results, routers)))
        times = np.concatenate([_decision_times(results, router) for router in routers])
        p95 = nearest_rank(np.sort(times), 95, len(times)) if len(times) else None
        median = float(np.median(times)) if len(times) else None
        rows.append([*cells, _number(median, 1.0, 3), _number(p95, 1.0, 3)])
    yardsticks = [yardstick for _, yardstick, _ in _rows(results)]
    lines = [*markdown_table(Sheet("", tuple(headers), rows, yardsticks)), ""]
    lines += [*(f"- {finding}" for finding in findings(results)), ""]
    headers = [*fields, *(name.strip("*") for name, _, _ in _rows(results))]
    rows = [
        [
            *(f"{condition['labels'][field]}" for field in fields),
            *(
                f"{here.mean_scores(routers, 'objective').mean():.4f}"
                for here in [results._replace(conditions=[condition])]
                for _, _, routers in _rows(results)
            ),
        ]
        for condition in results.conditions
    ]
    return lines + _folded(f"Each of the {len(rows)} conditions, J", headers, rows)


def _decision_times(results: Results, router: str) -> Floats:
    """Return the times of a router's decisions on batches of the size that counts, ms."""
    requests, milliseconds = results.decisions[router].T
    return milliseconds[requests == results.report.decision_batch]


def _backlog(results: Results, routers: tuple[str, ...]) -> tuple[str, str]:
    """Return the mean over windows and the most of what a window leaves behind, s."""
    backlog, most = (results.mean_scores(routers, f"{what}_backlog_s") for what in ("mean", "max"))
    return _number(defined_mean(backlog), 1.0, 2), _number(float(most.max()), 1.0, 1)


def _folded(title: str, headers: Sequence[str], rows: list[list[str]]) -> list[str]:
    table = markdown_table(Sheet(title, tuple(headers), rows, [False] * len(rows)))
    return ["<details>", f"<summary>{title}</summary>", "", *table, "", "</details>", ""]


def _difference(name: str, to: str, mine: Floats, other: Floats, scale: float, decimals: int) -> str:
    found = None if name == to else paired_difference(mine, other)
    if found is None:
        return "reference" if name == to else DASH
    return ("" if found.excludes_zero else "tie ") + _signed(found, scale, decimals)


def _signed(estimate: Estimate, scale: float, decimals: int) -> str:
    return _interval(estimate, scale, decimals, "+")


def _interval(estimate: Estimate | None, scale: float, decimals: int, sign: str = "") -> str:
    if estimate is None:
        return DASH
    # What rounds to -0.0 is shown as 0.0.
    rounded = (round(scale * number, decimals) + 0.0 for number in estimate)
    value, low, high = (f"{number:{sign}.{decimals}f}".replace("inf", INFINITE) for number in rounded)
    return f"{value} [{low}, {high}]"


def _percent(scores: Any) -> str:
    return f"{100.0 * float(np.mean(scores)):.1f}"


def _number(value: float | None, scale: float, decimals: int) -> str:
    if value is None:
        return DASH
    return INFINITE if math.isinf(value) else f"{scale * value:.{decimals}f}"
