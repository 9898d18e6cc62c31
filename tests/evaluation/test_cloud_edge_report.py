"""Reports on batches: the lowest objective is best, and pooled figures follow from every window."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from routing_gym.cloud_edge.metrics import METRICS, WINDOW_TERMS
from routing_gym.evaluation.cloud_edge_report import pool
from routing_gym.evaluation.decisions import DECISION_METRICS
from routing_gym.evaluation.presentations import DASH, INFINITE
from routing_gym.evaluation.report import remarks, sheets, summarise, to_markdown
from routing_gym.evaluation.results import strict_json
from routing_gym.evaluation.terminal import print_tables
from tests.evaluation.cloud_edge_runs import condition, plan_of, router

Records = list[dict[str, Any]]
NAMES = {"a": "round_robin", "b": "uniroute", "c": "cema", "best": "optimal"}
NOISE = [0.00, 0.02, -0.01, 0.03, -0.02, 0.01, -0.03, 0.00]
SEEDS = range(len(NOISE))
HEADER = "Δ to a, J"


def near(mean: float) -> list[float]:
    """Return the objectives of a router that is always as much better than another near its own mean."""
    return [mean + noise for noise in NOISE]


def around(mean: float, seed: int) -> list[float]:
    """Return objectives with a noise of their own."""
    return (mean + 0.05 * np.random.default_rng(seed).standard_normal(len(NOISE))).tolist()


def episodes(
    places: Mapping[str, Mapping[str, Sequence[float | None]]], **metrics: Any
) -> tuple[dict[str, Any], Records, Records]:
    """Return the plan, the rows and the curves of a run with these objectives, by condition and router.

    Each episode has two windows, the first of which is empty. A mapping of `metrics` has an entry per router.
    """
    first = next(iter(places.values()))
    plan = plan_of(
        [router(NAMES[label], label) for label in first], [condition(name) for name in places], list(SEEDS)
    )
    rows, curves = [], []
    for name, scores in places.items():
        for label, values in scores.items():
            for seed, value in zip(SEEDS, values, strict=True):
                key = {"router": label, "condition": name, "seed": seed}
                row = {**key, **dict.fromkeys((*METRICS, *DECISION_METRICS))}
                row |= {"invalid_actions": 0, "nonempty_windows": 1, "objective": value}
                for metric, given_ in metrics.items():
                    row[metric] = given_.get(label) if isinstance(given_, Mapping) else given_
                rows.append(row)
                curve: dict[str, Any] = {"requests": [0, 6], "decision_ms": [0.0, 1.0 + seed]}
                curve |= {term: [0.0, value if value is not None else 0.0] for term in WINDOW_TERMS}
                curves.append(key | curve)
    return plan, rows, curves


def summary_of(places: Mapping[str, Any], **metrics: Any) -> dict[str, Any]:
    return summarise(*episodes(places, **metrics))


def cells_of(summary: Mapping[str, Any], sheet: int = 0) -> dict[str, dict[str, str]]:
    one = sheets(summary)[sheet]
    return {row[0].split()[0]: dict(zip(one.headers, row, strict=True)) for row in one.rows}


def printed(summary: Mapping[str, Any], width: int) -> str:
    out = io.StringIO()
    print_tables(Console(file=out, width=width), summary)
    return out.getvalue()


# The lowest is best


def test_the_router_with_the_lowest_objective_is_best() -> None:
    summary = summary_of({"x": {"a": near(0.5), "b": near(0.3), "c": near(0.4)}})
    [place] = summary["conditions"]
    assert (place["best"], place["tied"]) == ("b", [])
    assert [row[0] for row in sheets(summary)[0].rows] == ["a", "b ★", "c"]


def test_who_is_tied_with_the_lowest_mean_is_named() -> None:
    [place] = summary_of({"x": {"a": near(0.9), "b": around(0.3, 1), "c": around(0.3, 2)}})["conditions"]
    assert place["best"] is None
    assert sorted(place["tied"]) == ["b", "c"]


def test_no_optimum_is_best_and_none_keeps_a_router_from_being_it() -> None:
    summary = summary_of({"x": {"a": near(0.5), "b": near(0.3), "best": near(0.1)}})
    assert summary["conditions"][0]["best"] == "b"
    assert summary["overall"]["best"] == "b"


def test_a_difference_below_zero_is_better() -> None:
    summary = summary_of({"x": {"a": near(0.5), "b": near(0.3)}})
    assert cells_of(summary)["b"][HEADER] == "-0.2000 [-0.2000, -0.2000]"
    assert cells_of(summary)["a"][HEADER] == "reference"
    assert cells_of(summary_of({"x": {"a": near(0.5), "b": around(0.5, 1)}}))["b"][HEADER].startswith("tie ")


def test_the_overall_table_ranks_by_the_lowest() -> None:
    # Of 16 pairs in the first condition b is below a in 12 and the same in 2; in the second it always is.
    places = {
        "x": {"a": [0.1, 0.2, 0.3, 0.4] * 2, "b": [0.0, 0.1, 0.16, 0.2] * 2},
        "y": {"a": [0.9] * 8, "b": [0.8] * 8},
    }
    summary = summary_of(places)
    overall = summary["overall"]["routers"]
    assert overall["b"]["probability_of_improvement"] == pytest.approx((13 / 16 + 1) / 2)
    assert summary["overall"]["best"] == "b"
    last = sheets(summary)[-1]
    assert (last.title, last.headers[1]) == ("All 2 conditions, objective", "mean J")
    cells = cells_of(summary, 2)["b"]
    assert (cells["mean J"], cells["P(better)"]) == ("0.4575", "0.91")
    assert cells[HEADER].startswith("-0.1175 [")
    assert cells["IQM [95 %]"].startswith(f"{overall['b']['iqm']['value']:.4f} [")


def test_means_are_shown_and_said_to_be() -> None:
    summary = summary_of({"x": {"a": [0.0] * 7 + [0.8]}}, cost_usd=0.0073, completion_s={"a": 1.5})
    cells = cells_of(summary)["a"]
    assert (cells["J"], cells["C m$"], cells["T s"], cells["Q"]) == ("0.1000", "7.30", "1.500", DASH)
    assert remarks(summary)[0].startswith("Means over seeds")


# What belongs to a condition as a whole


def plain_source_objective(values: Mapping[str, list[Sequence[float]]], weights: Sequence[float]) -> dict:
    """Return the mean of Σ ω (term - least)/(largest - least) over batches, in plain Python."""
    count = len(next(iter(values.values())))
    sums = dict.fromkeys(values, 0.0)
    for k in range(count):
        for term, weight in enumerate(weights):
            here = {label: batches[k][term] for label, batches in values.items()}
            low, high = min(here.values()), max(here.values())
            for label, value in here.items():
                sums[label] += weight * (value - low) / (high - low) if high > low else 0.0
    return {label: total / count for label, total in sums.items()}


numbers = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_sources_objective_is_that_of_the_windows(data: Any) -> None:
    labels = "abc"[: data.draw(st.integers(2, 3))]
    windows = data.draw(st.lists(st.booleans(), min_size=1, max_size=4).filter(any))
    weights = data.draw(st.sampled_from([(0.25, 0.25, 0.25, 0.25), (0.7, 0.1, 0.2, 0.0)]))
    curves, values = [], {label: [] for label in labels}
    for seed in range(data.draw(st.integers(1, 3))):
        for label in labels:
            terms = [data.draw(st.tuples(*[numbers] * 4)) for _ in windows]
            values[label] += [term for term, filled in zip(terms, windows, strict=True) if filled]
            curve = {"router": label, "seed": seed, "requests": [3 * filled for filled in windows]}
            curve |= {name: [term[k] for term in terms] for k, name in enumerate(WINDOW_TERMS)}
            curves.append({**curve, "decision_ms": [1.0] * len(windows)})
    pooled = pool({"config": {"weights": weights}}, list(labels), [], curves)
    expected = plain_source_objective(values, weights)
    for label in labels:
        assert pooled[label]["source_objective"] == pytest.approx(expected[label], abs=1e-12)


def test_table_v_of_the_source_gives_its_objectives_of_the_source() -> None:
    """Means normalised within the table, which for one batch is the same, give the paper's J."""
    table = {  # Q, C, E, T, and J as printed
        "cema": ((0.370, 0.0073, 390.2, 0.456), 0.087),
        "uniroute": ((0.317, 0.0061, 545.0, 1.441), 0.212),
        "edge_only": ((0.627, 0.0039, 393.8, 1.188), 0.369),
        "least_loaded": ((0.465, 0.0260, 1033.4, 1.347), 0.562),
        "cloud_only": ((0.400, 0.0413, 1438.4, 2.281), 0.817),
    }
    curves = [
        {"router": label, "seed": 0, "requests": [30], "decision_ms": [1.0]}
        | {name: [term] for name, term in zip(WINDOW_TERMS, terms, strict=True)}
        for label, (terms, _) in table.items()
    ]
    pooled = pool({"config": {"weights": [0.25] * 4}}, list(table), [], curves)
    for label, (_, printed_) in table.items():
        assert pooled[label]["source_objective"] == pytest.approx(printed_, abs=0.035), label


def test_a_router_alone_or_a_seed_that_not_all_have_is_not_normalised() -> None:
    assert cells_of(summary_of({"x": {"a": near(0.5)}}))["a"]["source's J"] == DASH
    plan, rows, curves = episodes({"x": {"a": near(0.5), "b": near(0.3)}})
    short = [curve for curve in curves if not (curve["router"] == "b" and curve["seed"] < 4)]
    shown = cells_of(summarise(plan, rows, short))
    assert (shown["a"]["source's J"], shown["b"]["source's J"]) == ("1.000", "0.000")
    none = [curve for curve in curves if (curve["router"] == "b") == (curve["seed"] < 4)]
    assert cells_of(summarise(plan, rows, none))["a"]["source's J"] == DASH


def test_the_gap_is_pooled_over_batches_as_a_share_of_the_bounds() -> None:
    plan, rows, curves = episodes({"x": {"a": near(0.5), "b": near(0.3)}})
    for row in rows:
        row |= {"nonempty_windows": 1 + row["seed"], "unproven_windows": row["router"] == "b"}
        row |= {"gap": 0.01 * row["seed"], "bound": 0.1}
    windows = [1 + seed for seed in SEEDS]
    above = sum(0.01 * seed * (1 + seed) for seed in SEEDS)
    summary = summarise(plan, rows, curves)
    assert cells_of(summary)["a"]["gap %"] == f"{100 * above / (0.1 * sum(windows)):.2f}"
    [line] = [line for line in remarks(summary) if "not proven" in line]
    assert line.endswith("Batches concerned, x: b 8.")
    for row in rows:
        row["unproven_windows"] = 0
    assert not any("not proven" in line for line in remarks(summarise(plan, rows, curves)))


def test_without_gaps_there_is_a_dash_and_it_is_said() -> None:
    summary = summary_of({"x": {"a": near(0.5)}})
    assert cells_of(summary)["a"]["gap %"] == DASH
    assert "Gaps to the optimum were not worked out." in remarks(summary)
    some = summary_of({"x": {"a": near(0.5), "b": near(0.5)}}, gap={"a": 0.1}, bound=0.1, unproven_windows=0)
    assert "Gaps to the optimum were not worked out." not in remarks(some)
    assert (cells_of(some)["a"]["gap %"], cells_of(some)["b"]["gap %"]) == ("100.00", DASH)
    zero = summary_of({"x": {"a": near(0.5)}}, gap=0.1, bound=0.0, unproven_windows=0)
    assert cells_of(zero)["a"]["gap %"] == DASH, "of a bound of 0 nothing is a share"


def test_requests_that_were_left_waiting_are_told() -> None:
    places = {"x": {"a": near(0.5), "b": near(0.4)}, "y": {"a": near(0.5), "b": near(0.4)}}
    plan, rows, curves = episodes(places)
    for row in rows:
        row["undispatched"] = row["seed"] if row["condition"] == "y" else 0
    [line] = [line for line in remarks(summarise(plan, rows, curves)) if "still wait" in line]
    assert line.endswith("Mean number, y: 3.5.")
    assert not any("still wait" in line for line in remarks(summary_of(places, undispatched=0)))


def test_decision_times_are_of_all_decisions_together() -> None:
    summary = summary_of({"x": {"a": near(0.5)}})
    times = [1.0 + seed for seed in SEEDS]
    cells = cells_of(summary)["a"]
    assert cells["decision ms"] == f"{statistics.median(times):.2f}"
    assert cells["p99 ms"] == f"{max(times):.2f}", "an empty window is no decision"
    without = cells_of(summarise(*episodes({"x": {"a": near(0.5)}})[:2]))["a"]
    assert (without["decision ms"], without["p99 ms"]) == (DASH, DASH)


def test_the_summary_is_strict_json_and_pooled_figures_are_in_it() -> None:
    summary = summary_of({"x": {"a": near(0.5), "b": near(0.3)}}, p99_all_latency_s=math.inf)
    back = json.loads(json.dumps(strict_json(summary), allow_nan=False))
    assert back["conditions"][0]["routers"]["b"]["pooled"]["source_objective"] == 0.0
    assert back["family"] == "cloud_edge" and back["score"] == "objective"


# In a page and in a terminal


def full() -> dict[str, Any]:
    """Return a summary with names and numbers as long as they get."""
    scores = {"a": around(0.2, 1), "b": around(0.6, 2), "c": around(0.6, 3), "best": near(0.9)}
    figures = {"quality_loss": 0.5, "cost_usd": 0.04, "energy_j": 12_345.6, "completion_s": 27.123}
    latency = {"mean_latency_s": 12.3, "p99_latency_s": 123.4}
    return summary_of(
        {"routerbench-5node, 30 requests": scores},
        **{**figures, **latency, "gap": 0.1, "bound": 0.1, "unproven_windows": 0},
    )


def test_the_page_holds_every_column() -> None:
    plan, rows, curves = episodes({"x": {"a": near(0.5), "best": near(0.3)}})
    page = to_markdown(summarise(plan, rows, curves), plan)
    assert page.startswith("# Comparison: routing_gym/CloudEdgeBatch-v0")
    titles = [
        "J",
        "source's J",
        "Q",
        "C m$",
        "E J",
        "T s",
        "gap %",
        "latency s",
        "p99 s",
        "decision ms",
        "p99 ms",
    ]
    assert "| " + " | ".join(["router", *titles, HEADER]) + " |" in page.splitlines()
    assert "| *best* |" in page


@pytest.mark.parametrize(
    ("width", "spared"),
    [
        (200, []),
        (118, ["p99 s", "p99 ms"]),
        (95, ["p99 s", "p99 ms", "source's J", "latency s"]),
        (80, ["p99 s", "p99 ms", "source's J", "latency s", "C m$", "E J", "decision ms"]),
    ],
)
def test_a_narrow_terminal_spares_the_least_columns_first(width: int, spared: list[str]) -> None:
    summary = full()
    text = printed(summary, width)
    assert "…" not in text and INFINITE not in text
    assert max(map(len, text.splitlines())) <= width
    [sheet] = sheets(summary)
    shown = [k for k, header in enumerate(sheet.headers) if header not in spared]
    for row in sheet.rows:
        cells = " ".join(row[k] for k in shown).split()
        assert any(line.replace("│", " ").split() == cells for line in text.splitlines()), row
    told = " ".join(text.split())
    for header in spared:
        assert "too narrow" in told and header in told.partition("too narrow for")[2]
    assert ("too narrow" in told) == bool(spared)
