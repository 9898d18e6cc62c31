"""Figures of the cluster: latency over all arrivals under the hardest conditions, and who pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from routing_gym.cluster.metrics import CDF_GRID_MS
from routing_gym.evaluation.statistics import bootstrap_mean
from routing_gym.reporting.cluster_figures import CLASSES
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.figures import figures_of
from tests.reporting.made import FIRST_SEED, Made, drawn, luck, made, records

ROUTERS = ("adaptive", "quick")


def curve(router: str, condition: int, seed: int) -> dict[str, Any]:
    """Return an episode's curves; no two are alike."""
    top = 0.9 - 0.1 * ROUTERS.index(router) - 0.01 * seed - 0.001 * condition
    return {
        "router": router,
        "condition": f"condition {condition}",
        "seed": FIRST_SEED + seed,
        "latency_cdf": (top * np.linspace(0.0, 1.0, len(CDF_GRID_MS))).tolist(),
    }


def with_curves(best: list[float], labels: list[dict[str, Any]], seeds: int = 2) -> Made:
    """Return results in which the documented router has these means; the other one is far better."""
    scores = {"adaptive": np.array(best)[:, None] + np.zeros(seeds), "quick": np.ones((len(best), seeds))}
    curves = {
        f"condition {k}": [curve(router, k, seed) for router in ROUTERS for seed in range(seeds)]
        for k in range(len(best))
    }
    return made(scores, labels, part={"groups": {"documented": ["adaptive"]}}, curves=curves)


def named(results: Made, name: str) -> Figure:
    return next(figure for figure in figures_of(results) if figure.name == name)


def test_the_hardest_condition_of_each_scenario_comes_first() -> None:
    best = [0.9, 0.5, 0.8, 0.1, 0.2, 0.3, 0.95]
    scenarios = ["steady", "steady", "burst", "failure", "failure", "failure", "burst"]
    labels = [{"scenario": one, "place": k} for k, one in enumerate(scenarios)]
    results = with_curves(best, labels)
    figure = named(results, "latency_cdf")
    chosen = [f"condition {k}" for k in (1, 2, 3, 4)]
    assert results.asked == chosen, "only the curves that are drawn are read"
    assert list(dict.fromkeys(line["condition"] for line in records(figure))) == chosen
    assert "4 of 7 conditions" in figure.caption and "of each scenario first" in figure.caption


def test_without_scenarios_the_hardest_conditions_are_drawn() -> None:
    results = with_curves([0.5, 0.1, 0.4, 0.2, 0.3, 0.6], [{"load": 0.1 * k} for k in range(6)])
    figure = named(results, "latency_cdf")
    assert results.asked == [f"condition {k}" for k in (1, 2, 3, 4)]
    assert "scenario" not in figure.caption


def test_a_latency_curve_is_the_mean_over_seeds_of_all_arrivals() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    figure = named(with_curves([0.5], [{"scenario": "steady"}]), "latency_cdf")
    [panel] = figure.panels
    lines = [line for line in drawn(panel).get_lines() if len(line.get_xdata()) > 2]
    for label, line in zip(ROUTERS, lines, strict=True):
        mean = np.mean([curve(label, 0, seed)["latency_cdf"] for seed in range(2)], axis=0)
        np.testing.assert_allclose(line.get_ydata(), mean)
        np.testing.assert_array_equal(line.get_xdata(), CDF_GRID_MS)
        found = {
            one["latency_ms"]: one["share_of_arrivals"] for one in records(figure) if one["router"] == label
        }
        shown = (CDF_GRID_MS >= 3.0) & (CDF_GRID_MS <= 3000.0)
        np.testing.assert_allclose(list(found), CDF_GRID_MS[shown], atol=1e-5)
        np.testing.assert_allclose(list(found.values()), mean[shown], atol=1e-5)
    assert list(figure.legend) == ["deadline", *ROUTERS]
    assert "of 1 conditions" not in figure.caption


def test_without_curves_there_is_no_latency() -> None:
    names = [figure.name for figure in figures_of(made({"adaptive": luck(2, 3)}))]
    assert "latency_cdf" not in names and "who_pays" not in names


def test_who_pays_is_attainment_by_demand_of_means_over_conditions() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    metrics = {
        name: {
            "adaptive": luck(3, 5, seed=k),
            "quick": luck(3, 5, seed=10 + k),
            "bound": np.full((3, 5), np.nan),
        }
        for k, name in enumerate(CLASSES)
    }
    # A seed in which nobody asks for so much in one condition says nothing of the mean over conditions.
    metrics["attainment_q4"]["quick"][1, 2] = np.nan
    scores = {"adaptive": luck(3, 5), "quick": luck(3, 5), "bound": np.ones((3, 5))}
    figure = named(made(scores, **metrics), "who_pays")
    assert "so that every line falls" in figure.caption and "over 3 conditions" in figure.caption
    lines = records(figure)
    assert len(lines) == 10 and list(figure.legend) == ["adaptive", "quick"]
    for line in lines:
        values = 100.0 * metrics[line["requests"]][line["router"]]
        expected = bootstrap_mean(values[:, ~np.isnan(values).any(axis=0)].mean(axis=0))
        np.testing.assert_allclose([line["attainment_pct"], line["low"], line["high"]], expected)
    axes = drawn(figure.panels[0])
    for label, line in zip(ROUTERS, axes.get_lines(), strict=True):
        assert line.get_ydata().tolist() == [one["attainment_pct"] for one in lines if one["router"] == label]
