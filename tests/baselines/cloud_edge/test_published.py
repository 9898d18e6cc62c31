"""The source's figures as printed, its J among its routers alone, and tables of both beside ours."""

from __future__ import annotations

import numpy as np
import pytest

from routing_baselines.cloud_edge.reproduction.published import (
    COMPARED,
    NORMALISED,
    PAIR,
    PAIR_J,
    PUBLISHED,
    TERMS,
    Beside,
    Figure,
    J,
    Played,
    figures,
    published_only,
)
from routing_gym.cloud_edge.evaluator import cross_router_objective
from routing_gym.cloud_edge.metrics import WINDOW_TERMS
from routing_gym.evaluation.statistics import bootstrap_mean
from tests.baselines.cloud_edge.made_up_runs import WEIGHTS, played, with_values

# The figures, as printed.


def test_table_v_is_that_of_design_6() -> None:
    printed = """
        cema .087 .370 .0073 390.2 .456
        uniroute .212 .317 .0061 545.0 1.441
        edge_only .369 .627 .0039 393.8 1.188
        least_loaded .562 .465 .0260 1033.4 1.347
        round_robin .562 .465 .0260 1033.4 1.347
        cloud_only .817 .400 .0413 1438.4 2.281
    """
    rows = {name: list(map(float, cells)) for name, *cells in map(str.split, printed.strip().splitlines())}
    table = PUBLISHED["table_v"]
    assert {
        name: [row["objective"], *(row[term] for term in WINDOW_TERMS)]
        for name, row in table["routers"].items()
    } == rows
    assert tuple(rows) == COMPARED
    assert (table["requests"], table["batches"], table["destinations"]) == (30, 5, 11)


def test_published_figures_fit_together() -> None:
    table = PUBLISHED["table_v"]
    for name, normalised in table["normalised"].items():
        assert np.mean(normalised) == pytest.approx(table["routers"][name]["objective"], abs=6e-4)
    main, sizes, scaling = PUBLISHED["table_vi"], PUBLISHED["table_vii"], PUBLISHED["figure_7"]
    middle = sizes["requests"].index(main["requests"])
    for data in ("gsm8k", "mmlu"):
        for name in PAIR:
            assert sizes[data][name]["objective"][middle] == main[data][name]["objective"]
            assert {len(values) for values in sizes[data][name].values()} == {len(sizes["requests"])}
    # What the abstract says of GSM8K.
    ours, theirs = (main["gsm8k"][name] for name in PAIR)
    for metric, less in (("objective", 0.863), ("energy_j", 0.338), ("completion_s", 0.271)):
        assert 1.0 - ours[metric] / theirs[metric] == pytest.approx(less, abs=6e-4)
    assert [count // 11 for count in scaling["destinations"]] == [1, 2, 4, 8]
    # DESIGN 7.
    assert scaling["routers"]["cema"]["decision_s"] == [0.077, 0.171]


# The source's J.


def test_the_sources_j_is_that_of_the_six_alone() -> None:
    alone = played(routers=COMPARED)
    terms = np.stack([alone.values[term] for term in WINDOW_TERMS], axis=-1)
    np.testing.assert_allclose(
        alone.source_objective().mean(axis=1), cross_router_objective(terms, WEIGHTS), rtol=1e-12
    )


def test_other_routers_do_not_change_the_sources_j() -> None:
    many = played()
    kept = {metric: values[: len(COMPARED)] for metric, values in many.values.items()}
    alone = Played("six", many.labels, WEIGHTS, COMPARED, frozenset(), kept)
    np.testing.assert_array_equal(many.source_objective()[: len(COMPARED)], alone.source_objective())
    # And they may lie outside, where they are better than all of them.
    best = with_values(many, greedy=dict.fromkeys(WINDOW_TERMS, -1.0))
    np.testing.assert_array_equal(best.source_objective()[: len(COMPARED)], alone.source_objective())
    assert (best.source_objective()[best.routers.index("greedy")] < 0.0).all()


def test_a_term_in_which_the_compared_agree_counts_0() -> None:
    made = played()
    made.values["cost_usd"][: len(COMPARED)] = 3.0
    assert (made.normalised()[..., WINDOW_TERMS.index("cost_usd")] == 0.0).all()
    two = made.source_objective(PAIR)[[made.routers.index(name) for name in PAIR]]
    np.testing.assert_allclose(two.sum(axis=0), 0.75)  # the sum that `pair_finding` speaks of


# Tables.


def test_figures_are_means_with_intervals_beside_what_is_published() -> None:
    made = played(20)
    row = figures(made, "cema", {"objective": 0.5, "energy_j": 7.0, "decision_s": 0.2})
    assert row["energy_j"] == (7.0, *bootstrap_mean(made.of("cema", "energy_j")))
    assert row["source_objective"] == (0.5, *bootstrap_mean(made.source_objective()[0]))
    assert row["objective"].published is None  # no such thing is published
    assert row["decision_ms_median"] == (200.0, np.median(made.of("cema", "decision_ms_median")), None, None)
    gap, bound = made.of("cema", "gap"), made.of("cema", "bound")
    assert row["gap_share"].ours == pytest.approx(gap.sum() / bound.sum())
    assert row[NORMALISED[1]].ours == pytest.approx(made.normalised()[0, :, 1].mean())
    assert "pair_objective" in row and "pair_objective" not in figures(made, "greedy")


def test_tables_show_both_where_something_is_published_and_dashes_where_not() -> None:
    rows = {
        ("GSM8K", "cema"): {
            "source_objective": Figure(0.5, 0.25, 0.125, 0.375),
            "energy_j": Figure(None, 2.0),
        },
        ("MMLU", "cema"): published_only({"objective": 0.75, "energy_j": 3.0, "decision_s": 1.0}),
        ("GSM8K", "optimal"): {"source_objective": Figure(None, 0.0, -0.5, 0.5)},
    }
    table = Beside("T", ("data", "router"), rows, (J, TERMS[0], TERMS[2]), frozenset({"optimal"}))
    means, intervals = table.sheets()
    assert means.headers == (
        "data",
        "router",
        "source's J paper",
        "source's J ours",
        "Q",
        "E J paper",
        "E J ours",
    )
    assert means.rows == [
        ["GSM8K", "cema", "0.500", "0.250", "—", "—", "2.0"],
        ["MMLU", "cema", "0.750", "—", "—", "3.0", "—"],
        ["GSM8K", "optimal", "—", "0.000", "—", "—", "—"],
    ]
    assert means.yardsticks == [False, False, True]
    assert intervals.headers == ("data", "router", "source's J")
    assert intervals.rows == [["GSM8K", "cema", "[0.125, 0.375]"], ["GSM8K", "optimal", "[-0.500, 0.500]"]]
    data = table.data()["rows"][0]
    assert (data["data"], data["router"]) == ("GSM8K", "cema")
    assert data["figures"]["source_objective"] == {
        "published": 0.5,
        "ours": 0.25,
        "low": 0.125,
        "high": 0.375,
    }


def test_intervals_have_dashes_where_some_rows_have_none() -> None:
    made = played(4)
    rows = {(name,): figures(made, name) for name in ("cema", "greedy")}
    _, intervals = Beside("T", ("router",), rows, (PAIR_J, J)).sheets()
    assert [row[1] == "—" for row in intervals.rows] == [False, True]
    assert all(row[2].startswith("[") for row in intervals.rows)
