"""The source's experiments: its tables beside ours, and what a run of them shows (DESIGN 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from routing_baselines.cloud_edge.reproduction.findings import (
    Finding,
    agreement_finding,
    information_finding,
    joint_finding,
    pair_finding,
    scaling_finding,
    search_finding,
    settings_finding,
)
from routing_baselines.cloud_edge.reproduction.published import (
    COMPARED,
    DECISION,
    NORMALISED,
    OURS,
    PAIR,
    PAIR_J,
    PUBLISHED,
    TERMS,
    WITHIN,
    Beside,
    Figures,
    J,
    Played,
    figures,
    published_only,
)

Report = tuple[list[Beside], list[Finding]]
Rows = dict[tuple[str, ...], Figures]


def table_v(conditions: Sequence[Played]) -> Report:
    """Return Table V, a condition per prediction: its few batches, all of ours, and the normalised terms."""
    source = PUBLISHED["table_v"]
    stated = {
        name: {**row, "decision_s": source["decision_s"].get(name)} for name, row in source["routers"].items()
    }
    within = {
        name: dict(zip(NORMALISED, values, strict=True)) for name, values in source["normalised"].items()
    }
    tables, found = [], [settings_finding()]
    for played in conditions:
        where = _where(played)
        few = played.first(source["batches"])
        columns = (J, *TERMS, *OURS, DECISION)
        for part, title in ((few, f"the first {few.batches} batches"), (played, f"{played.batches} batches")):
            rows: Rows = {(name,): figures(part, name, stated.get(name)) for name in played.routers}
            tables.append(
                Beside(
                    f"Table V, {title}, {where}",
                    ("router",),
                    rows,
                    columns,
                    played.yardsticks,
                    part is played,
                )
            )
        rows = {(name,): figures(played, name, within[name]) for name in COMPARED}
        title = f"Table V, terms between the least and the largest of six, {played.batches} batches, {where}"
        tables.append(Beside(title, ("router",), rows, WITHIN, intervals=False))
        found += [search_finding(played, where), agreement_finding(played, where)]
    found += _information(conditions)
    found.append(joint_finding({_where(played): played for played in conditions}))
    return tables, found


def tables_vi_vii(conditions: Sequence[Played]) -> Report:
    """Return Tables VI and VII, a condition per number of requests and prediction."""
    main, sizes = PUBLISHED["table_vi"], PUBLISHED["table_vii"]
    tables, found = [], [pair_finding()]
    for where, alike in by_prediction(conditions).items():
        of_main: Rows = {}
        by_size: Rows = {}
        for played in alike:
            k = sizes["requests"].index(played.labels["requests"])
            for name in played.routers:
                key = ("GSM8K", str(played.labels["requests"]), name)
                by_size[key] = figures(played, name, _nth(sizes["gsm8k"].get(name, {}), k))
                if played.labels["requests"] == main["requests"]:
                    of_main["GSM8K", name] = figures(played, name, main["gsm8k"].get(name))
        of_main |= {("MMLU", name): published_only(main["mmlu"][name]) for name in PAIR}
        for k, count in enumerate(sizes["requests"]):
            by_size |= {
                ("MMLU", str(count), name): published_only(_nth(sizes["mmlu"][name], k)) for name in PAIR
            }
        standing_in = ", with stand-ins" if alike[0].labels["stand_ins"] else ""
        runs, yardsticks = f"{alike[0].batches} runs, {where}{standing_in}", alike[0].yardsticks
        raw = [term for term in TERMS if term.metric != "cost_usd"]
        title = f"Table VI, {main['requests']} requests, {runs}"
        columns = (J, PAIR_J, *raw, *OURS, DECISION)
        tables.append(Beside(title, ("data", "router"), of_main, columns, yardsticks))
        columns = (J, PAIR_J, *OURS, DECISION)
        tables.append(Beside(f"Table VII, {runs}", ("data", "R", "router"), by_size, columns, yardsticks))
        named = {f"R = {played.labels['requests']}, {where}": played for played in alike}
        found += [search_finding(played, name) for name, played in named.items()]
        found.append(joint_finding(named))
    return tables, found + _information(conditions)


def figure_7(conditions: Sequence[Played]) -> Report:
    """Return Figure 7 as a table, a condition per number of destinations and prediction."""
    source = PUBLISHED["figure_7"]
    ends = {source["destinations"][0]: 0, source["destinations"][-1]: -1}
    tables, found = [], [settings_finding()]
    for where, alike in by_prediction(conditions).items():
        rows: Rows = {}
        for played in alike:
            count = played.labels["destinations"]
            for name in played.routers:
                stated = source["routers"].get(name, {}) if count in ends else {}
                rows[str(count), name] = figures(played, name, _nth(stated, ends.get(count, 0)))
        title = f"Figure 7, {alike[0].batches} batches, {where}"
        columns = (J, *OURS, DECISION)
        tables.append(Beside(title, ("M", "router"), rows, columns, alike[0].yardsticks))
        named = {f"M = {played.labels['destinations']}, {where}": played for played in alike}
        found.append(scaling_finding(alike[0], alike[-1], where))
        found += [search_finding(played, name) for name, played in named.items()]
        found.append(joint_finding(named))
    return tables, found + _information(conditions)


def _where(played: Played) -> str:
    return f"prediction {played.labels['prediction']}"


def by_prediction(conditions: Sequence[Played]) -> dict[str, list[Played]]:
    """Group conditions by what routers know, in words."""
    found: dict[str, list[Played]] = {}
    for played in conditions:
        found.setdefault(_where(played), []).append(played)
    return found


def _nth(lists: Mapping[str, Sequence[float]], k: int) -> dict[str, float]:
    return {metric: values[k] for metric, values in lists.items()}


def _information(conditions: Sequence[Played]) -> list[Finding]:
    """Hold perfect prediction against every other one of the same batches."""

    def batch(played: Played) -> dict[str, Any]:
        return {name: played.labels[name] for name in ("requests", "destinations")}

    return [
        information_finding(
            exact, other, f"R = {exact.labels['requests']}, M = {exact.labels['destinations']}: "
        )
        for exact in conditions
        for other in conditions
        if exact.labels["prediction"] == "perfect" != other.labels["prediction"]
        and batch(exact) == batch(other)
    ]
