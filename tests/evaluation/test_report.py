"""Reports: what a table says follows from the episodes, and no router looks better than it was."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from routing_gym.cluster.metrics import METRICS
from routing_gym.evaluation.report import (
    DASH,
    INFINITE,
    best_of,
    markdown_table,
    remarks,
    sheets,
    summarise,
    to_markdown,
)
from routing_gym.evaluation.results import strict_json
from routing_gym.evaluation.statistics import paired_difference
from routing_gym.evaluation.terminal import print_tables
from tests.evaluation.runs import condition, plan_of, router, table_cells

Scores = Mapping[str, Sequence[float | None]]
NAMES = {"a": "round_robin", "b": "least_queue", "c": "adaptive", "bound": "bound", "seer": "clairvoyant"}


def episodes(places: Mapping[str, Scores], **metrics: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the plan and the rows of a run with these attainments, by condition, router and seed.

    Of `metrics`, a list has one value for each seed, and a mapping one entry for each router.
    """
    first = next(iter(places.values()))
    seeds = list(range(len(next(iter(first.values())))))
    listed = [router(NAMES[label], label) for label in first]
    plan = plan_of(listed, [condition(name) for name in places], seeds)
    rows = []
    for name, scores in places.items():
        for label, values in scores.items():
            for seed, value in zip(seeds, values, strict=True):
                row: dict[str, Any] = {"router": label, "condition": name, "seed": seed}
                row |= {**dict.fromkeys(METRICS), "invalid_actions": 0, "attainment": value}
                for metric, given_ in metrics.items():
                    mine = given_.get(label) if isinstance(given_, Mapping) else given_
                    row[metric] = mine[seed] if isinstance(mine, list) else mine
                rows.append(row)
    return plan, rows


def summary_of(places: Mapping[str, Scores], **metrics: Any) -> dict[str, Any]:
    return summarise(*episodes(places, **metrics))


def cells_of(summary: Mapping[str, Any], sheet: int = 0) -> dict[str, dict[str, str]]:
    """Return the cells of a sheet by router and header."""
    one = sheets(summary)[sheet]
    return {row[0].split()[0]: dict(zip(one.headers, row, strict=True)) for row in one.rows}


def names_of(summary: Mapping[str, Any], sheet: int = 0) -> list[str]:
    """Return the first column of a sheet: routers, with the mark of the best and invalid actions."""
    return [row[0] for row in sheets(summary)[sheet].rows]


def printed(summary: Mapping[str, Any], width: int = 140, **how: Any) -> str:
    out = io.StringIO()
    print_tables(Console(file=out, width=width), summary, **how)
    return out.getvalue()


NOISE = [0.00, 0.02, -0.01, 0.03, -0.02, 0.01, -0.03, 0.00]


def near(mean: float) -> list[float]:
    """Return the attainments of a router that is always as much better than another near its own mean."""
    return [mean + noise for noise in NOISE]


def around(mean: float, seed: int) -> list[float]:
    """Return attainments with a noise of their own."""
    return (mean + 0.05 * np.random.default_rng(seed).standard_normal(len(NOISE))).tolist()


# Best and tied


def test_a_router_better_than_every_other_is_marked() -> None:
    summary = summary_of({"x": {"a": near(0.5), "b": near(0.7), "c": near(0.6)}})
    [place] = summary["conditions"]
    assert (place["best"], place["tied"]) == ("b", [])
    assert names_of(summary) == ["a", "b ★", "c"]


def test_who_is_tied_with_the_highest_mean_is_named_and_nobody_is_best() -> None:
    summary = summary_of({"x": {"a": near(0.3), "b": around(0.7, 1), "c": around(0.7, 2)}})
    [place] = summary["conditions"]
    assert place["best"] is None
    assert sorted(place["tied"]) == ["b", "c"]
    assert not any("★" in name for name in names_of(summary))
    [line] = [remark for remark in remarks(summary) if remark.startswith("No single best router")]
    assert line in ("No single best router: x: b, c.", "No single best router: x: c, b.")
    assert line in " ".join(printed(summary, 300).splitlines())


def test_routers_that_do_the_same_are_tied() -> None:
    [place] = summary_of({"x": {"a": near(0.5), "b": near(0.5)}})["conditions"]
    assert (place["best"], place["tied"]) == (None, ["a", "b"])


def test_no_yardstick_is_best_and_none_keeps_a_router_from_being_it() -> None:
    summary = summary_of({"x": {"a": near(0.5), "b": near(0.7), "seer": near(0.9), "bound": near(0.95)}})
    assert summary["conditions"][0]["best"] == "b"
    assert names_of(summary) == ["a", "b ★", "seer", "bound"]
    alone = summary_of({"x": {"seer": near(0.9), "bound": near(0.95)}})
    assert (alone["conditions"][0]["best"], alone["overall"]["best"]) == (None, None)


def test_a_router_that_is_alone_is_not_best() -> None:
    summary = summary_of({"x": {"a": near(0.5), "bound": near(0.9)}, "y": {"a": near(0.5), "bound": near(1)}})
    assert [place["best"] for place in summary["conditions"]] == [None, None]
    assert summary["overall"]["best"] is None
    assert "★" not in printed(summary).replace("★: better", "")


def test_a_single_seed_makes_nobody_best() -> None:
    summary = summary_of({"x": {"a": [0.1], "b": [0.9]}})
    [place] = summary["conditions"]
    assert place["best"] is None and sorted(place["tied"]) == ["a", "b"]
    assert cells_of(summary)["b"]["Δ to a, points"] == f"tie +80.0 [-{INFINITE}, +{INFINITE}]"
    text = printed(summary)
    assert "over 1 seed with" in text and "1 seed is too few" in text


@pytest.mark.parametrize(("seeds", "warned"), [(2, True), (5, True), (6, False), (10, False)])
def test_few_seeds_are_called_few(seeds: int, warned: bool) -> None:
    scores = np.random.default_rng(0).random(seeds).tolist()
    assert any("too few" in line for line in remarks(summary_of({"x": {"a": scores}}))) == warned


def test_undefined_scores_make_nobody_best() -> None:
    nothing: list[float | None] = [None] * 8
    assert summary_of({"x": {"a": nothing, "b": nothing}})["conditions"][0]["best"] is None
    # A router whose seeds never meet those of another cannot be better than it.
    for other in ([None] * 4 + [0.1] * 4, nothing):
        [place] = summary_of({"x": {"a": [0.9] * 4 + [None] * 4, "b": other}})["conditions"]
        assert (place["best"], sorted(place["tied"])) == (None, ["a", "b"])


score_lists = st.lists(st.sampled_from([0.2, 0.25, 0.5, 0.8]), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from("abcde"), score_lists, min_size=1))
def test_best_is_one_whose_interval_to_every_other_excludes_zero(scores: dict[str, list[float]]) -> None:
    arrays = {label: np.array(values) for label, values in scores.items()}
    found = best_of(arrays)
    means = {label: values.mean() for label, values in arrays.items()}
    if found["best"]:
        assert found["tied"] == []
        for label in arrays.keys() - {found["best"]}:
            difference = paired_difference(arrays[found["best"]], arrays[label])
            assert difference is not None and difference.low > 0
    elif len(arrays) > 1:
        top, *others = found["tied"]
        assert others and means[top] == max(means.values())
        for label in arrays.keys() - {top}:
            difference = paired_difference(arrays[top], arrays[label])
            assert difference is not None
            assert (label in others) == (difference.low <= 0 <= difference.high)


# Differences


def test_the_difference_of_a_table_is_that_of_the_episodes() -> None:
    scores = {"a": around(0.5, 1), "b": around(0.6, 2), "c": near(0.5)}
    summary = summary_of({"x": scores})
    header = "Δ to a, points"
    assert summary["reference"] == "a"
    assert cells_of(summary)["a"][header] == "reference"
    for label in "bc":
        kept = summary["conditions"][0]["routers"][label]["difference"]
        value, low, high = paired_difference(scores[label], scores["a"]) or (0, 0, 0)
        assert (kept["value"], kept["low"], kept["high"]) == (value, low, high)
        cell = f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        assert kept["tie"] == (low <= 0 <= high)
        assert cells_of(summary)[label][header] == ("tie " + cell if kept["tie"] else cell)


def test_the_reference_may_be_any_router_that_was_run() -> None:
    plan, rows = episodes({"x": {"a": near(0.5), "b": near(0.7), "bound": near(0.9)}})
    plan["run"]["reference"] = "bound"
    summary = summarise(plan, rows)
    assert cells_of(summary)["bound"]["Δ to bound, points"] == "reference"
    assert cells_of(summary)["b"]["Δ to bound, points"] == "-20.0 [-20.0, -20.0]"


def test_without_a_reference_there_is_a_dash() -> None:
    summary = summary_of({"x": {"a": [None] * 8, "b": near(0.7)}})
    assert cells_of(summary)["b"]["Δ to a, points"] == DASH


def test_rows_in_another_order_give_the_same_summary() -> None:
    plan, rows = episodes(
        {"x": {"a": around(0.5, 1), "b": around(0.6, 2)}, "y": {"a": near(0.3), "b": near(0.4)}}
    )
    shuffled = [rows[k] for k in np.random.default_rng(0).permutation(len(rows))]
    assert summarise(plan, shuffled) == summarise(plan, rows)


# Numbers of a metric


def test_medians_and_ranges_leave_undefined_values_out() -> None:
    summary = summary_of({"x": {"a": [0.5, None, 0.9, 0.7]}}, p99_ms=[30.0, None, 10.0, 90.0])
    metric = summary["conditions"][0]["routers"]["a"]["metrics"]
    assert metric["p99_ms"] == {"median": 30.0, "min": 10.0, "max": 90.0, "mean": 130 / 3, "defined": 3}
    assert metric["attainment"]["defined"] == 3
    assert cells_of(summary)["a"]["p99 ms (min–max)"] == "30 (10–90)"
    assert cells_of(summary)["a"]["attain %"] == "70.0"


def test_what_no_episode_defines_is_a_dash() -> None:
    cells = cells_of(summary_of({"x": {"a": near(0.5), "bound": near(0.9)}}, p50_ms={"a": 12.0}))
    assert cells["a"]["p50 ms"] == "12.0"
    assert [cells["bound"][name] for name in ("p50 ms", "p99 all", "shed %")] == [DASH] * 3


def test_infinity_is_shown_as_such_and_kept_out_of_no_median() -> None:
    inf = math.inf
    summary = summary_of({"x": {"a": near(0.5)}}, p99_all_ms=[10, 20, 30, inf, inf, inf, inf, inf])
    assert cells_of(summary)["a"]["p99 all"] == INFINITE
    metric = summary["conditions"][0]["routers"]["a"]["metrics"]["p99_all_ms"]
    assert (metric["min"], metric["median"], metric["mean"]) == (10, inf, inf)
    less = summary_of({"x": {"a": near(0.5)}}, p99_all_ms=[10, 20, 30, 40, 50, inf, inf, inf])
    assert cells_of(less)["a"]["p99 all"] == "45"


def test_the_summary_is_strict_json() -> None:
    summary = summary_of({"x": {"a": [0.1], "b": [0.9]}, "y": {"a": [None], "b": [0.2]}}, p99_all_ms=math.inf)
    text = json.dumps(strict_json(summary), allow_nan=False)
    back = json.loads(text)
    assert back["conditions"][0]["routers"]["a"]["metrics"]["p99_all_ms"]["median"] == "inf"
    assert back["conditions"][0]["routers"]["b"]["difference"]["low"] == "-inf"


def test_attainment_never_stands_alone() -> None:
    [sheet] = sheets(summary_of({"x": {"a": near(0.5)}}))
    assert {"attain %", "p99 ms (min–max)", "p99 all", "largest 5 %"} <= set(sheet.headers)


def test_invalid_actions_are_counted_by_the_routers_name() -> None:
    places = {"x": {"a": near(0.5), "b": near(0.6)}, "y": {"a": near(0.5), "b": near(0.6)}}
    invalid = {"a": 0, "b": [0, 0, 1, 0, 0, 0, 2, 0]}
    summary = summary_of(places, invalid_actions=invalid)
    assert names_of(summary, 0) == ["a", "b ★ (3 invalid)"]
    assert names_of(summary, 2) == ["a", "b ★ (6 invalid)"]
    rare = summary_of({"x": {"b": near(0.6)}}, invalid_actions={"b": [1] + [0] * 7})
    assert names_of(rare) == ["b (1 invalid)"], "rounding must not hide it"
    unknown = summary_of({"x": {"bound": near(0.6)}}, invalid_actions=None)
    assert names_of(unknown) == ["bound"]


# Over all conditions


def test_the_overall_table_is_recomputed_by_hand() -> None:
    # Two conditions, four seeds: the middle four of eight scores, and four pairs of pairs.
    places = {
        "x": {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.2, 0.3, 0.4, 0.5]},
        "y": {"a": [0.5, 0.6, 0.7, 0.8], "b": [0.7, 0.8, 0.9, 1.0]},
    }
    overall = summary_of(places)["overall"]["routers"]
    assert overall["a"]["mean"] == pytest.approx(0.45)
    assert overall["a"]["iqm"]["value"] == pytest.approx((0.3 + 0.4 + 0.5 + 0.6) / 4)
    assert overall["b"]["iqm"]["value"] == pytest.approx((0.4 + 0.5 + 0.7 + 0.8) / 4)
    difference = overall["b"]["difference"]
    assert [difference[key] for key in ("value", "low", "high")] == pytest.approx([0.15] * 3)
    # Condition x: of 16 pairs 3 are ties and 10 wins; y: 2 ties and 13 wins.
    assert overall["b"]["probability_of_improvement"] == pytest.approx((11.5 / 16 + 14 / 16) / 2)
    assert overall["a"]["difference"] is None and overall["a"]["probability_of_improvement"] is None
    last = cells_of(summary_of(places), 2)
    assert last["b"]["mean %"] == "60.00"
    assert last["b"]["Δ to a, points"] == "+15.0 [+15.0, +15.0]"
    assert last["b"]["P(better)"] == "0.80"
    assert last["a"]["P(better)"] == DASH


def test_a_router_with_an_undefined_episode_is_not_compared_over_all_and_that_is_said() -> None:
    places: dict[str, Scores] = {
        "x": {"a": near(0.5), "b": near(0.6), "c": near(0.7)},
        "y": {"a": near(0.5), "b": [None, *near(0.6)[1:]], "c": near(0.7)},
    }
    summary = summary_of(places)
    assert list(summary["overall"]["routers"]) == ["a", "c"]
    assert "undefined in some episode: b." in " ".join(remarks(summary))
    assert "undefined in some episode: b." in " ".join(printed(summary, 300).split("\n"))
    for scores in places.values():
        del scores["b"]  # type: ignore[attr-defined]
    assert not any("undefined" in line for line in remarks(summary_of(places)))


def test_one_condition_needs_no_table_over_all() -> None:
    assert len(sheets(summary_of({"x": {"a": near(0.5)}}))) == 1
    assert len(sheets(summary_of({"x": {"a": near(0.5)}, "y": {"a": near(0.5)}}))) == 3


# Markdown


def test_markdown_tables_are_well_formed() -> None:
    places = {f"x|{k}": {"a": near(0.5), "b": around(0.6, k), "bound": near(0.9)} for k in range(2)}
    plan, rows = episodes(places, p99_all_ms=math.inf, invalid_actions={"a": 1, "b": 0})
    rows = [{**row, "router": "b|c" if row["router"] == "b" else row["router"]} for row in rows]
    plan["run"]["routers"][1]["label"] = "b|c"
    summary = summarise(plan, rows)
    for sheet in sheets(summary):
        header, rule, *body = markdown_table(sheet)
        assert table_cells(header) == list(sheet.headers)
        assert rule == "|" + "---|" * len(sheet.headers)
        assert len(body) == len(sheet.rows) == 3
        for line, row in zip(body, sheet.rows, strict=True):
            cells = [cell.replace(r"\|", "|") for cell in table_cells(line)]
            assert [cells[0].strip("*"), *cells[1:]] == row
        assert body[2].startswith("| *bound* |"), "yardsticks are set apart"


def test_the_page_holds_every_table_remark_and_where_it_comes_from() -> None:
    plan, rows = episodes({"x": {"a": near(0.5), "b": near(0.5)}, "y": {"a": near(0.5), "b": near(0.9)}})
    summary = summarise(plan, rows)
    page = to_markdown(summary, plan).splitlines()
    assert page[0] == "# Comparison: routing_gym/InferenceCluster-v0"
    assert f"`{plan['command']}`" in page
    assert any(f"numpy {np.__version__}" in line for line in page)
    titles = [line.removeprefix("## ") for line in page if line.startswith("## ")]
    assert titles == ["x", "y", "All 2 conditions, attainment"]
    for sheet in sheets(summary):
        lines = markdown_table(sheet)
        start = page.index(f"## {sheet.title}") + 2
        assert page[start : start + len(lines)] == lines
        assert page[start - 1] == "" and page[start + len(lines)] == "", "a table stands between empty lines"
    assert all(remark in page for remark in remarks(summary))


# In a terminal


def full(places: int = 1) -> dict[str, Any]:
    """Return a summary with long names, long numbers and every metric of the tables."""
    scores = {"a": around(0.2, 1), "b": around(0.6, 2), "c": around(0.6, 3), "bound": near(0.9)}
    return summary_of(
        {f"straggler, 180/s, load 0.6{k}": scores for k in range(places)},
        p50_ms=123.4,
        p99_ms=[1000.0 + 7 * k for k in range(8)],
        p99_all_ms=2345.0,
        attainment_largest_5pct=0.5,
        slo_miss_rate=0.25,
        shed_rate=0.125,
    )


def test_a_wide_terminal_shows_every_cell() -> None:
    text = printed(full(places=2))
    assert "too narrow" not in text
    for sheet in sheets(full(places=2)):
        assert sheet.title in text
        for row in sheet.rows:
            assert any(all(cell in line for cell in row) for line in text.splitlines()), row


def test_a_narrow_terminal_cuts_no_number() -> None:
    summary = full()
    text = printed(summary, 80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    cells = cells_of(summary)
    for name, row in cells.items():
        shown = [
            row[key] for key in ("attain %", "p99 ms (min–max)", "p99 all", "largest 5 %", "Δ to a, points")
        ]
        assert any(line.split() == [name, *" ".join(shown).split()] for line in text.splitlines()), row
    assert "This terminal is too narrow for p50 ms, miss %, shed %: these are in summary.md." in text


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_very_narrow_terminal_folds_but_drops_nothing(width: int) -> None:
    text = printed(full(), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_of_many_conditions_only_the_table_over_all_is_printed() -> None:
    text = printed(full(places=9), 140)
    assert "9 conditions: each one's table is in summary.md" in text
    assert "All 9 conditions, attainment" in text
    assert text.count("│ bound") == 1
    assert printed(full(places=8)).count("│ bound") == 9


def test_markup_in_a_name_is_shown_as_it_is() -> None:
    plan, rows = episodes({"[/x] [bold]": {"a": near(0.5)}})
    assert "[/x] [bold]" in printed(summarise(plan, rows))
