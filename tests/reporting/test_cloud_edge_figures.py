"""Figures of cloud–edge batches: the terms, the frontier with its hulls, convergence, decision times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing_gym.evaluation.cloud_edge_plots import mean_convergence
from routing_gym.evaluation.results import ResultFolder
from routing_gym.evaluation.runner import make_jobs, run_jobs
from routing_gym.evaluation.statistics import bootstrap_mean
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.figures import figures_of
from routing_gym.reporting.frontier_figure import bases
from routing_gym.studies.results import PartResults, read_part
from tests.evaluation.cloud_edge_runs import condition, plan_of, router
from tests.reporting.made import FIRST_SEED, drawn, luck, made, records, texts

ROUTERS = ("greedy", "cema", "optimal")


def named(results: PartResults, name: str) -> Figure:
    return next(figure for figure in figures_of(results) if figure.name == name)


def names_of(results: PartResults) -> list[str]:
    return [figure.name for figure in figures_of(results)]


# Terms


def test_terms_are_means_over_conditions_and_a_term_of_zeros_is_not_drawn() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    scores = {label: luck(2, 4) for label in ROUTERS}
    metrics = {
        name: {label: 3e4 * luck(2, 4, seed=10 * k + j) for j, label in enumerate(ROUTERS)}
        for k, name in enumerate(("quality_loss", "energy_j", "completion_s"))
    }
    costs = {label: np.zeros((2, 4)) for label in ROUTERS}
    figure = named(made(scores, family="cloud_edge", cost_usd=costs, **metrics), "terms")
    assert len(figure.panels) == 3 and len(figure.rows) == 12
    titles = {
        "quality loss Q": "quality_loss",
        "energy E, J": "energy_j",
        "completion time T, s": "completion_s",
    }
    for line in records(figure):
        if line["term"] in titles:
            expected = bootstrap_mean(metrics[titles[line["term"]]][line["router"]].mean(axis=0))
            np.testing.assert_allclose([line["mean"], line["low"], line["high"]], expected)
        else:
            assert line["mean"] == 0.0
    shown = [f"{line['mean']:.0f}" for line in records(figure) if line["term"] == "energy E, J"]
    assert texts(drawn(figure.panels[1])) == shown[::-1]


# Frontier


def frontier_of(
    points: dict[str, list[tuple[float, float]]],
    labels: list[dict[str, Any]] | None = None,
    params: dict[str, dict[str, Any]] | None = None,
) -> PartResults:
    """Return results with these (cost of a thousand requests, quality) by router and condition."""
    wide = {label: np.array(one) for label, one in points.items()}
    both = np.array([0.5, 1.5])
    count = len(next(iter(wide.values())))
    return made(
        {label: np.ones((count, 2)) for label in points},
        labels,
        "cloud_edge",
        params=params,
        # Two windows of a batch each, of ten requests in all; the seeds' mean is the point.
        cost_usd={label: one[:, :1] * both * 10 / 2 / 1000 for label, one in wide.items()},
        nonempty_windows={label: np.full((count, 2), 2.0) for label in points},
        dispatched={label: np.full((count, 2), 10.0) for label in points},
        quality={label: one[:, 1:] * both for label, one in wide.items()},
    )


def test_a_router_with_a_dial_has_a_hull_and_its_aiq() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    points = {
        "uniroute": [(1.0, 0.2)],
        "uniroute:w=1": [(3.0, 0.6)],
        "uniroute:w=2": [(2.0, 0.3)],
        "cema": [(5.0, 0.4)],
    }
    params = {"uniroute:w=1": {"w": 1}, "uniroute:w=2": {"w": 2.5}}
    figure = named(frontier_of(points, params=params), "frontier")
    lines = records(figure)
    found = {line["router"]: (line["cost"], line["quality"]) for line in lines if line["kind"] == "point"}
    for label, [point] in points.items():
        assert found[label] == pytest.approx(point)
    hull = [(line["cost"], line["quality"]) for line in lines if line["kind"] == "hull"]
    np.testing.assert_allclose(hull, [(1.0, 0.2), (3.0, 0.6)])
    [area] = [line for line in lines if line["kind"] == "aiq"]
    assert (area["router"], area["quality"]) == ("uniroute", pytest.approx(0.4))
    assert "uniroute 0.400 over 1 to 3 $" in figure.caption
    assert "No intervals are shown (the data have those of points)" in figure.caption
    assert list(figure.legend) == ["uniroute", "cema"]
    axes = drawn(figure.panels[0])
    [line] = axes.get_lines()
    np.testing.assert_allclose(line.get_xydata(), [(1.0, 0.2), (3.0, 0.6), (5.0, 0.6)])


def test_aiqs_are_over_the_same_range() -> None:
    points = {
        "a:w=0": [(1.0, 0.0)],
        "a:w=1": [(3.0, 1.0)],
        "b:w=0": [(2.0, 0.5)],
        "b:w=1": [(6.0, 0.5)],
    }
    figure = named(frontier_of(points, params={label: {"w": int(label[-1])} for label in points}), "frontier")
    areas = {line["router"]: line["quality"] for line in records(figure) if line["kind"] == "aiq"}
    # From 2, where b begins, to 6: a rises from 0.5 to 1 at 3 and is level from there.
    assert areas == {"a": pytest.approx((0.75 + 3.0) / 4.0), "b": pytest.approx(0.5)}


def test_weights_are_a_dial_and_other_labels_make_panels() -> None:
    labels = [
        {"weights": weights, "requests": requests}
        for requests in (10, 30)
        for weights in ([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0])
    ]
    points = {"cema": [(4.0, 0.8), (1.0, 0.4), (4.0, 0.6), (1.0, 0.2)], "fixed": [(2.0, 0.5)] * 4}
    figure = named(frontier_of(points, labels), "frontier")
    assert [panel.title for panel in figure.panels] == ["R 10", "R 30"]
    areas = [
        (line["panel"], line["router"], line["quality"]) for line in records(figure) if line["kind"] == "aiq"
    ]
    assert areas == [("R 10", "cema", pytest.approx(0.6)), ("R 30", "cema", pytest.approx(0.4))]


def test_where_nothing_costs_anything_there_is_no_frontier() -> None:
    assert "frontier" not in names_of(frontier_of({"greedy": [(0.0, 0.5)], "cema": [(0.0, 0.75)]}))


def test_a_dial_is_a_number_in_which_routers_of_a_name_differ() -> None:
    def one(label: str, **params: Any) -> dict[str, Any]:
        return {"label": label, "name": f"cloud_edge/{label.partition(':')[0]}", "params": params}

    listed = [
        one("cema"),
        one("cema:normalisation=fixed", normalisation="fixed"),
        one("cema:generations=5:normalisation=fixed", generations=5, normalisation="fixed"),
        one("learned:name=a", name="a"),
        one("learned:name=b", name="b"),
        one("uniroute:price_weight=1:on=True", price_weight=1, on=True),
        one("uniroute:price_weight=2:on=True", price_weight=2, on=True),
        one("greedy:depth=3", depth=3),
        one("local_search", starts=1, moves=1),
        one("local_search:starts=2", starts=2, moves=1),
        one("local_search:moves=2", starts=1, moves=2),
    ]
    assert list(bases(listed).values()) == [
        "cema",
        "cema:normalisation=fixed",
        "cema:normalisation=fixed",
        "learned:name=a",
        "learned:name=b",
        "uniroute:on=True",
        "uniroute:on=True",
        "greedy:depth=3",
        "local_search",
        "local_search:starts=2",
        "local_search:moves=2",
    ]


# Decisions


def test_decision_times_are_over_all_decisions_of_batches_that_are_not_empty() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    curves = {
        "condition 0": [
            {
                "router": "greedy",
                "condition": "condition 0",
                "seed": FIRST_SEED,
                "requests": [3, 0, 2],
                "decision_ms": [1.0, 99.0, 3.0],
            },
            {
                "router": "greedy",
                "condition": "condition 0",
                "seed": FIRST_SEED + 1,
                "requests": [1, 1, 0],
                "decision_ms": [2.0, 7.0, 99.0],
            },
        ]
    }
    results = made(
        {"greedy": luck(1, 2), "cema": luck(1, 2), "optimal": luck(1, 2)},
        family="cloud_edge",
        curves=curves,
        decision_ms_median={"greedy": [[0.0, 0.0]], "cema": [[4.0, 6.0]], "optimal": [[np.nan, np.nan]]},
        decision_ms_p99={"greedy": [[0.0, 0.0]], "cema": [[8.0, 10.0]], "optimal": [[np.nan, np.nan]]},
    )
    figure = named(results, "decision_time")
    assert figure.rows == [("condition 0", "greedy", 2.5, 7.0), ("condition 0", "cema", 5.0, 9.0)]
    assert texts(drawn(figure.panels[0])) == ["5 / 9", "2.5 / 7"]


def test_curves_of_four_conditions_at_most_are_read() -> None:
    results = made({"greedy": luck(9, 2)}, family="cloud_edge")
    assert names_of(results) == ["rank", "heatmap"]
    assert results.asked == [f"condition {k}" for k in (0, 3, 5, 8)]


def test_convergence_says_which_searches_are_left_out() -> None:
    labels = [f"cema:seed={k}" for k in range(14)]
    curves = [
        {"router": label, "condition": "condition 0", "seed": FIRST_SEED, "convergence": [[0.1, 0.5]]}
        for label in labels
    ]
    scores = {label: [[k / 20.0]] for k, label in enumerate(labels)}
    scores["random"] = [[2.0]]
    for count in (12, 14):
        some = {label: scores[label] for label in [*labels[:count], "random"]}
        results = made(some, family="cloud_edge", curves={"condition 0": curves[:count]})
        figure = named(results, "convergence")
        assert len(figure.legend) == 12
        said = "Left out, as their means are among the worst: cema:seed=12, cema:seed=13."
        assert figure.caption.endswith(said) == ("eft out" in figure.caption) == (count == 14)


# A real run


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> PartResults:
    pytest.importorskip("highspy", reason="needs the extra `optimal`")
    routers, conditions, seeds = [router(name) for name in ROUTERS], [condition("one")], [20_000, 20_001]
    folder = ResultFolder(tmp_path_factory.mktemp("played"), plan_of(routers, conditions, seeds, gap=True))
    for result in run_jobs(make_jobs(routers, conditions, seeds), curves=True, gap=True):
        folder.add(result)
    folder.finish()
    return read_part(folder.path)


def test_a_run_has_the_figures_that_its_data_allow(played: PartResults) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    figures = figures_of(played)
    assert [figure.name for figure in figures] == [
        "rank",
        "terms",
        "frontier",
        "convergence",
        "decision_time",
    ]
    for figure in figures:
        assert len(records(figure)) > 0
        for panel in figure.panels:
            assert drawn(panel).has_data()


def test_convergence_is_of_searches_beside_the_proven_optimum(played: PartResults) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    figure = named(played, "convergence")
    curves = [one for one in played.curves("one") if one["router"] == "cema"]
    instants, best = mean_convergence([np.array(one["convergence"]) for one in curves])
    found = [line for line in records(figure) if line["router"] == "cema"]
    np.testing.assert_allclose([line["ms"] for line in found], 1000.0 * instants)
    np.testing.assert_allclose([line["objective_predicted"] for line in found], best)
    [optimum] = [line for line in records(figure) if line["router"] == "proven optimum"]
    assert optimum["ms"] is None
    assert optimum["objective_predicted"] == pytest.approx(np.mean([one["bound"][0] for one in curves]))
    assert list(figure.legend) == ["cema", "proven optimum"]
    lines = drawn(figure.panels[0]).get_lines()
    np.testing.assert_allclose(lines[0].get_ydata(), best)


def test_results_on_disk_are_the_same_wherever_they_are_read_from(played: PartResults) -> None:
    again = read_part(Path(played.folder))
    assert [figure.rows for figure in figures_of(again)] == [figure.rows for figure in figures_of(played)]
