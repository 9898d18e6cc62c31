"""The score against parameters: which settings belong together, and that means are what is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.common.config import packaged
from routing_gym.evaluation.statistics import bootstrap_mean
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.figures import figures_of
from routing_gym.reporting.parameter_figure import MOST_PANELS
from routing_gym.reporting.sweeps import Sweep, sweeps
from tests.reporting.made import Made, drawn, luck, made, records

SHIPPED_C = packaged("routers", "cluster")["adaptive"]["c"]
CEMA = packaged("routers", "cloud_edge")["cema"]


def label_of(name: str, params: Mapping[str, Any]) -> str:
    return ":".join([name, *(f"{key}={value}" for key, value in params.items())])


def settings(name: str, *each: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return parameters of a router's settings by label."""
    return {label_of(name, params): dict(params) for params in each}


def varied(name: str, key: str, *values: Any, **fixed: Any) -> dict[str, dict[str, Any]]:
    return settings(name, *({**fixed, key: value} for value in values))


def found_in(params: Mapping[str, Mapping[str, Any]], family: str = "cloud_edge") -> list[Sweep]:
    routers = [
        {"label": label, "name": f"{family}/{label.partition(':')[0]}", "params": one}
        for label, one in params.items()
    ]
    return sweeps(routers, family)


def results_of(
    params: Mapping[str, Mapping[str, Any]], *more: str, family: str = "cluster", **metrics: Any
) -> Made:
    scores = {label: luck(3, 5, seed=k) for k, label in enumerate([*params, *more])}
    return made(scores, family=family, params=params, **metrics)


def named(results: Made, name: str = "parameters") -> Figure:
    [figure] = [figure for figure in figures_of(results) if figure.name == name]
    return figure


def names_of(results: Made) -> list[str]:
    return [figure.name for figure in figures_of(results)]


# Which settings belong together


def test_the_plain_router_stands_at_the_value_that_ships() -> None:
    [sweep] = found_in({"adaptive": {}, **varied("adaptive", "c", 0.5, 0.0)}, "cluster")
    assert sweep.lines == {None: {0.0: "adaptive:c=0.0", SHIPPED_C: "adaptive", 0.5: "adaptive:c=0.5"}}
    assert list(sweep.lines[None]) == [0.0, SHIPPED_C, 0.5]
    assert (sweep.parameter, sweep.held, sweep.shipped) == ("c", [], {"c": SHIPPED_C})


def test_one_parameter_at_a_time_makes_a_sweep_of_each_through_the_plain_router() -> None:
    found = found_in(
        {
            "cema": {},
            **varied("cema", "generations", 5, 10),
            **varied("cema", "population", 10, 20, 45),
            **varied("cema", "mutation", 0.05),
        }
    )
    assert {sweep.parameter: list(sweep.lines[None]) for sweep in found} == {
        "population": [10, 20, CEMA["population"], 45],
        "generations": [5, 10, CEMA["generations"]],
    }
    assert all(sweep.second is None and "cema" in sweep.labels for sweep in found)


def test_settings_that_differ_in_more_are_apart_and_what_holds_them_apart_is_said() -> None:
    fixed = varied("cema", "population", 10, 20, 60, normalisation="fixed")
    found = found_in({"cema": {}, **varied("cema", "population", 10, 20), **fixed})
    assert [sweep.held for sweep in found] == [[], ["normalisation=fixed"]]
    assert found[1].labels == set(fixed)


def test_whole_numbers_are_equal_however_they_are_written() -> None:
    params = settings("cema", *({"population": p, "mutation": m} for p, m in ((10, 1), (20, 1.0), (30, 1))))
    assert [sweep.labels for sweep in found_in(params)] == [set(params)]


def test_of_a_router_with_unknown_defaults_only_what_is_set_counts() -> None:
    some = varied("token_time", "output_weight", 1, 3)
    assert found_in({"token_time": {}, **some}, "cluster") == []
    [sweep] = found_in({"token_time": {}, **some, **varied("token_time", "output_weight", 7)}, "cluster")
    assert (list(sweep.lines[None]), sweep.shipped) == ([1, 3, 7], {})


@pytest.mark.parametrize(
    "params",
    [
        varied("cema", "population", 10, 20),
        varied("cema", "normalisation", "fixed", "population", "none"),
        settings("cema", {"population": 10}, {"generations": 5}, {"mutation": 0.05}),
        varied("cema", "time_budget_s", None, True, 2.0, 3.0),
        {"cema:a": {}, "cema:b": {"population": CEMA["population"]}, "cema:c": {"population": 10}},
    ],
    ids=["two values", "no numbers", "nothing in common", "two numbers", "the same value twice"],
)
def test_fewer_than_three_numbers_are_no_sweep(params: dict[str, dict[str, Any]]) -> None:
    assert found_in(params) == []


@given(
    a=st.sets(st.integers(1, 99), min_size=3, max_size=6),
    b=st.sets(st.integers(1, 99), min_size=2, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_a_grid_is_one_sweep_along_the_parameter_with_more_values(
    a: set[int], b: set[int], order: Any
) -> None:
    each = [{"population": p, "generations": g} for p, g in product(a, b)]
    order.shuffle(each)
    [sweep] = found_in(settings("cema", *each))
    assert sweep.labels == {label_of("cema", one) for one in each}
    assert {sweep.parameter, sweep.second} == {"population", "generations"}
    assert sweep.longest == max(len(a), len(b))
    for second, line in sweep.lines.items():
        for value, label in line.items():
            assert settings("cema", *each)[label] == {sweep.parameter: value, sweep.second: second}


def test_every_sweep_shows_a_setting_that_the_others_do_not() -> None:
    each = [
        {"population": p, "generations": g, "mutation": m}
        for p, g, m in product((10, 20, 40), (5, 10, 15, 25), (0.05, 0.2))
    ]
    found = found_in(settings("cema", *each))
    assert set().union(*(sweep.labels for sweep in found)) == set(settings("cema", *each))
    assert [sweep.held for sweep in found] == [["mutation=0.05"], ["mutation=0.2"]]
    assert {(sweep.parameter, sweep.second) for sweep in found} == {("generations", "population")}


# What is drawn


def test_points_are_the_means_over_conditions_with_intervals_over_seeds() -> None:
    params = {"adaptive": {}, **varied("adaptive", "c", 0.0, 0.1, 1.0)}
    results = results_of(params, "quick", "bound")
    figure = named(results)
    lines = records(figure)
    assert [line["value"] for line in lines] == [0.0, 0.1, SHIPPED_C, 1.0]
    for line in lines:
        label = "adaptive" if line["value"] == SHIPPED_C else label_of("adaptive", {"c": line["value"]})
        expected = bootstrap_mean(100.0 * results.of(label, "attainment").mean(axis=0))
        np.testing.assert_allclose([line["attainment_pct"], line["low"], line["high"]], expected)
        assert (line["name"], line["parameter"], line["other_parameters"]) == ("adaptive", "c", "")
        assert line["decision_ms"] is None
    assert "Decision time" not in figure.caption
    assert names_of(results)[:2] == ["rank", "parameters"]


def test_what_is_drawn_is_the_data_beside_the_shipped_value_and_the_best_of_the_others() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    params = {"adaptive": {}, **varied("adaptive", "c", 0.0, 0.1, 1.0)}
    flat = {"quick": 0.2, "random": 0.1, "clairvoyant": 0.8, "bound": 0.9}
    scores = {label: luck(2, 4, seed=k) for k, label in enumerate(params)}
    levels_first = {label: np.full((2, 4), value) for label, value in flat.items()} | scores
    results = made(levels_first, params=params)
    figure = named(results)
    [panel] = figure.panels
    assert panel.title == "adaptive"
    assert list(figure.legend) == ["shipped value", "best yardstick: bound", "best other router: quick"]
    axes = drawn(panel)
    line, ring, *levels = axes.get_lines()
    table = records(figure)
    assert list(line.get_xdata()) == [one["value"] for one in table]
    assert list(line.get_ydata()) == [one["attainment_pct"] for one in table]
    assert (list(ring.get_xdata()), ring.get_markerfacecolor()) == ([SHIPPED_C], "none")
    assert list(ring.get_ydata()) == [one["attainment_pct"] for one in table if one["value"] == SHIPPED_C]
    assert [level.get_ydata()[0] for level in levels] == [pytest.approx(90.0), pytest.approx(20.0)]
    assert len({line.get_color(), *(level.get_color() for level in levels)}) == 3
    assert axes.get_xscale() == "linear" and axes.get_xlabel() == "c"


def test_less_is_better_of_batches_and_settings_of_the_same_router_are_no_others() -> None:
    params = {**varied("cema", "population", 10, 20, 30), "greedy": {}, "local_search": {}}
    flat = dict(zip(params, (0.1, 0.2, 0.3, 0.6, 0.5), strict=True))
    scores = {label: np.full((1, 2), value) for label, value in flat.items()}
    figure = named(made(scores, family="cloud_edge", params=params))
    assert "best other router: local_search" in figure.legend


@pytest.mark.parametrize(("values", "scale"), [((10, 20, 50), "log"), ((11, 20, 50), "linear")])
def test_an_axis_is_logarithmic_from_a_fivefold_on(values: tuple[int, ...], scale: str) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    figure = named(results_of(varied("cema", "population", *values), family="cloud_edge"))
    assert drawn(figure.panels[0]).get_xscale() == scale


def test_a_grid_has_a_line_for_each_value_of_the_second_and_one_ring() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    populations, generations = (10, CEMA["population"], 60), (CEMA["generations"], 50)
    each = [{"population": p, "generations": g} for p, g in product(populations, generations)]
    results = results_of(settings("cema", *each), family="cloud_edge")
    figure = named(results)
    names = [f"generations={g}" for g in generations]
    assert list(figure.legend) == [*names, "shipped value"]
    table = records(figure)
    assert [line["other_parameters"] for line in table] == [name for name in names for _ in populations]
    axes = drawn(figure.panels[0])
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) > 1]
    for name, g, line in zip(names, generations, lines, strict=True):
        expected = [
            results.of(f"cema:population={p}:generations={g}", "objective").mean() for p in populations
        ]
        np.testing.assert_allclose(line.get_ydata(), expected)
        assert line.get_color() == figure.legend[name]["color"]
    [ring] = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (populations[1], lines[0].get_ydata()[1])


@pytest.mark.parametrize(("slowest", "scale"), [(3.0, "linear"), (30.0, "log")])
def test_decision_time_is_the_median_and_is_drawn_where_it_more_than_doubles(
    slowest: float, scale: str
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    slow = varied("cema", "generations", 5, 10, 15)
    alike = varied("cema", "mutation", 0.05, 0.15, 0.2)
    times = [1.0, 2.0, slowest, 4.0, 6.0, 8.0]
    results = results_of(
        {**slow, **alike},
        family="cloud_edge",
        decision_ms_median={
            label: [[time, time, time, time, 99.0]] * 3
            for label, time in zip([*slow, *alike], times, strict=True)
        },
    )
    figure = named(results)
    assert [line["decision_ms"] for line in records(figure)] == times
    panels = [drawn(panel) for panel in figure.panels]
    assert [panel.get_xlabel() for panel in panels] == ["generations", "generations", "mutation"]
    assert panels[1].get_ylabel() == "median decision time, ms" and panels[1].get_yscale() == scale
    assert scale == "log" or panels[1].get_ylim()[0] == 0.0
    assert list(panels[1].get_lines()[0].get_ydata()) == times[:3]
    assert "Decision time" in figure.caption


def test_one_seed_has_no_band() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    params = varied("adaptive", "c", 0.0, 0.1, 0.2)
    figure = named(made({label: [[0.5]] for label in params}, params=params))
    assert [row[4:7] for row in figure.rows] == [(50.0, None, None)] * 3
    assert "of 1 seed, and so without a band" in figure.caption
    assert list(drawn(figure.panels[0]).get_lines()[0].get_ydata()) == [50.0] * 3


def test_no_more_panels_than_can_be_seen_and_the_data_hold_all() -> None:
    names = [f"router{k}" for k in range(MOST_PANELS + 1)]
    params = {label: one for name in names for label, one in varied(name, "x", 1, 2, 3).items()}
    figure = named(results_of(params))
    assert [panel.title for panel in figure.panels] == names[:-1]
    assert len(figure.rows) == 3 * len(names)
    assert "8 of 9" in figure.caption


def test_routers_without_a_mean_are_left_out_and_too_few_left_are_not_drawn() -> None:
    params = varied("adaptive", "c", 0.0, 0.1, 0.2, 0.3)
    results = results_of(params)
    results.tables["attainment"][0, 1, 2] = np.nan
    assert [row[2] for row in named(results).rows] == [0.1, 0.2, 0.3]
    results.tables["attainment"][1, 1, 2] = np.nan
    assert names_of(results) == ["rank", "heatmap"]


def test_routers_of_which_nothing_is_varied_have_no_figure() -> None:
    results = results_of({"adaptive": {}, "adaptive:c=0.5": {"c": 0.5}}, "quick", "random")
    assert names_of(results) == ["rank", "heatmap"]


# Candidates


def test_candidates_are_drawn_from_their_own_results() -> None:
    params = {"adaptive": {}, **varied("adaptive", "c", 0.0, 0.1)}
    selection = results_of(params)
    results = replace(made({"quick": luck(3, 4), "adaptive": luck(3, 4, seed=1)}), selection=selection)
    assert names_of(results) == ["rank", "selection", "heatmap"]
    figure = named(results, "selection")
    assert figure.title == "Candidates on development seeds"
    assert figure.rows == named(selection).rows
    assert "over 5 seeds" in figure.caption and "best other" not in str(figure.legend)


def test_candidates_that_are_different_routers_have_no_figure() -> None:
    results = replace(made({"quick": luck(2, 2)}), selection=results_of({"adaptive": {}, "least_work": {}}))
    assert names_of(results) == ["rank", "heatmap"]
