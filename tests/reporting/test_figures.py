"""Figures of both families: what they draw is in their data, and their data follow from the episodes."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.evaluation.drawing import COLOURS, YARDSTICK
from routing_gym.evaluation.scales import normalise, performance_profile
from routing_gym.evaluation.statistics import bootstrap_mean
from routing_gym.reporting.cluster_figures import CLASSES
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.figures import figures_of
from routing_gym.reporting.html import STYLE
from routing_gym.reporting.view import called, identifying, short_names, spread
from tests.evaluation.runs import hide_matplotlib
from tests.reporting.made import drawn, luck, made, records, texts

GROUPS = {"documented": ["round_robin", "adaptive"], "fixed": ["random", "quick"]}
LABELS = ["random", "round_robin", "adaptive", "quick", "clairvoyant"]


def some_scores(conditions: int = 4, seeds: int = 6) -> dict[str, np.ndarray]:
    """Return scores of which each router's are better than the one's before, nearly always."""
    return {
        label: 0.1 * place + 0.5 * luck(conditions, seeds, seed=place) for place, label in enumerate(LABELS)
    }


def named(figures: list[Figure], name: str) -> Figure:
    return next(figure for figure in figures if figure.name == name)


def conditions_of(*labels: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": f"condition {k}", "labels": one} for k, one in enumerate(labels)]


# Names of conditions


def test_conditions_are_called_by_what_varies_and_cannot_be_told_from_the_rest() -> None:
    crossed = conditions_of(
        *(
            {"load": load, "rate_per_s": rate, "heterogeneity": h, "scenario": "steady", "cutoff_s": 15.0}
            for h in (0.5, 1.0)
            for rate, load in ((100, 0.3 + h / 10), (180, 0.6 + h / 10))
        )
    )
    assert identifying(crossed) == ["rate_per_s", "heterogeneity"]
    assert short_names(crossed) == ["100/s, h 0.5", "180/s, h 0.5", "100/s, h 1", "180/s, h 1"]
    assert identifying(crossed, ["rate_per_s"]) == ["heterogeneity"]


def test_what_follows_from_other_labels_still_tells_apart_where_nothing_else_does() -> None:
    assert identifying(conditions_of({"load": 0.3, "place": 1}, {"load": 0.6, "place": 1})) == ["load"]


def test_conditions_that_labels_do_not_tell_apart_keep_their_names() -> None:
    assert short_names(conditions_of({"rate_per_s": 1}, {"rate_per_s": 1})) == ["condition 0", "condition 1"]
    assert short_names(conditions_of({"rate_per_s": 1})) == ["condition 0"]


def test_values_are_short() -> None:
    labels = {"weights": [0.5, 0.25, 0.25, 0], "admission": True, "requests": 30.0, "trace": None}
    [condition] = conditions_of(labels)
    assert called(condition, list(labels)) == "ω 0.5/0.25/0.25/0, admission yes, R 30, trace none"


@given(
    rows=st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=12),
    first=st.lists(st.sampled_from("abc"), unique=True, max_size=2),
)
def test_identifying_labels_tell_apart_all_that_any_labels_do_and_none_is_idle(
    rows: list[tuple[int, ...]], first: list[str]
) -> None:
    conditions = conditions_of(*(dict(zip("abc", row, strict=True)) for row in rows))

    def groups(names: list[str]) -> int:
        return len({tuple(one["labels"][name] for name in names) for one in conditions})

    chosen = identifying(conditions, first)
    assert groups([*first, *chosen]) == groups(["a", "b", "c"])
    for k, name in enumerate(chosen):
        assert groups([*first, *chosen[: k + 1]]) > groups([*first, *chosen[:k]]), name


@given(count=st.integers(1, 100), most=st.integers(2, 9))
def test_a_spread_is_even_and_has_both_ends(count: int, most: int) -> None:
    chosen = spread(count, most)
    assert len(chosen) == min(count, most)
    assert (chosen[0], chosen[-1]) == (0, count - 1)
    assert max(np.diff(chosen), default=0) - min(np.diff(chosen), default=0) <= 1


# Ranking


def test_the_ranking_is_of_means_over_conditions_with_intervals_over_seeds() -> None:
    scores = some_scores()
    rank = named(figures_of(made(scores)), "rank")
    lines = records(rank)
    assert [line["router"] for line in lines] == LABELS[::-1]
    for line in lines:
        expected = bootstrap_mean(100.0 * scores[line["router"]].mean(axis=0))
        np.testing.assert_allclose([line["attainment_pct"], line["low"], line["high"]], expected)
        assert line["role"] == ("yardstick" if line["router"] == "clairvoyant" else "router")


def test_less_is_better_of_batches() -> None:
    rank = named(figures_of(made(some_scores(), family="cloud_edge")), "rank")
    assert [line["router"] for line in records(rank)] == LABELS
    assert "objective" in rank.columns


def test_what_is_drawn_of_the_ranking_is_its_data() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    results = made(some_scores(), part={"published": {"adaptive": 0.7242, "absent": 0.5}})
    rank = named(figures_of(results), "rank")
    lines = records(rank)
    assert {line["router"]: line["published"] for line in lines if line["published"]} == {
        "adaptive": pytest.approx(72.42)
    }
    axes = drawn(rank.panels[0])
    assert [label.get_text() for label in axes.get_yticklabels()] == [line["router"] for line in lines][::-1]
    assert texts(axes) == [f"{line['attainment_pct']:.2f}" for line in lines][::-1]
    hollow = [line for line in axes.get_lines() if line.get_markerfacecolor() == "none"]
    assert [float(line.get_xdata()[0]) for line in hollow] == [pytest.approx(72.42)]


def test_one_seed_has_no_interval() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    rank = named(figures_of(made({"adaptive": [[0.5]], "round_robin": [[0.25]]})), "rank")
    assert [row[2:5] for row in rank.rows] == [(50.0, None, None), (25.0, None, None)]
    assert "best first, of 1 seed, and so without an interval; " in rank.caption
    assert texts(drawn(rank.panels[0])) == ["25.00", "50.00"]


# Heat map


def test_the_heat_map_has_each_mean_and_how_much_better_it_is_than_the_best_documented() -> None:
    scores = some_scores()
    heat = named(figures_of(made(scores, part={"groups": GROUPS})), "heatmap")
    cells = {(line["condition"], line["router"]): line for line in records(heat)}
    assert len(cells) == 4 * len(LABELS)
    for k in range(4):
        best = max(scores[label][k].mean() for label in GROUPS["documented"])
        for label in LABELS:
            line = cells[f"condition {k}", label]
            mean = scores[label][k].mean()
            assert line["attainment_pct"] == pytest.approx(100.0 * mean)
            assert line["better_than_documented"] == pytest.approx(100.0 * (mean - best))


def test_without_documented_routers_the_heat_map_is_against_the_reference_and_less_may_be_better() -> None:
    scores = {"greedy": [[0.25, 0.75], [1.0, 1.0]], "cema": [[0.75, 0.75], [0.5, 0.75]]}
    heat = named(figures_of(made(scores, family="cloud_edge")), "heatmap")
    assert [line["better_than_reference"] for line in records(heat)] == [0.0, -0.25, 0.0, 0.375]


def relative_luminance(colour: Any) -> float:
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_lines_are_seen_on_a_dark_page_and_legends_in_its_ink() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    from routing_gym.reporting.render import swatch_svg

    _, dark = re.findall(r"--page: (#\w+);", STYLE)
    for colour in COLOURS:
        assert (relative_luminance(colour) + 0.05) / (relative_luminance(dark) + 0.05) >= 3.0, colour
    legend = named(figures_of(made(some_scores())), "heatmap").legend
    assert all("stroke: currentColor" in swatch_svg(style, "s") for style in legend.values())


def test_scores_that_are_equal_have_no_colour_but_from_a_shown_difference_on() -> None:
    same = {"adaptive": np.full((2, 2), 0.5), "quick": np.full((2, 2), 0.5)}
    for family, said in (("cluster", "from 0.1 points on"), ("cloud_edge", "from 0.001 J on")):
        caption = named(figures_of(made(same, family=family)), "heatmap").caption
        assert f"in full colour {said}" in caption, caption


def test_each_cell_can_be_read_on_its_colour_and_the_best_router_is_bold() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    scores = {
        "adaptive": np.full((41, 2), 0.5),
        "quick": np.linspace(0.1, 0.9, 41)[:, None] + np.zeros(2),
        "bound": np.ones((41, 2)),
    }
    [panel] = named(figures_of(made(scores)), "heatmap").panels
    axes = drawn(panel)
    colours = axes.collections[0].get_facecolors()
    assert len(colours) == len(axes.texts) == 123
    for colour, text in zip(colours, axes.texts, strict=True):
        bright, dark = sorted(
            (relative_luminance(colour), relative_luminance(text.get_color())), reverse=True
        )
        assert (bright + 0.05) / (dark + 0.05) >= 4.5
    bold = [k % 3 for k, text in enumerate(axes.texts) if text.get_weight() == "bold"]
    assert bold == [0] * 20 + [1] * 20, "where both are alike, none is"


def test_columns_are_shared_out_among_panels_and_empty_cells_stay_empty() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    scores = {f"router {k}": luck(3, 4, seed=k) for k in range(9)}
    scores["router 8"][1] = np.nan
    heat = named(figures_of(made(scores)), "heatmap")
    panels = [drawn(panel) for panel in heat.panels]
    assert [len(panel.get_xticks()) for panel in panels] == [5, 4]
    shown = {label.get_text() for panel in panels for label in panel.get_xticklabels()}
    assert shown == set(scores)
    assert [len(panel.texts) for panel in panels] == [15, 11]
    empty = [line for line in records(heat) if line["attainment_pct"] is None]
    assert [(line["condition"], line["router"]) for line in empty] == [("condition 1", "router 8")]


@pytest.mark.parametrize("count", [1, 61])
def test_one_condition_or_too_many_have_no_heat_map(count: int) -> None:
    names = [figure.name for figure in figures_of(made({"adaptive": luck(count, 2)}))]
    assert names == ["rank"]


# Against an axis


def crossed() -> list[dict[str, Any]]:
    """Return labels of rates crossed with scenarios; the load follows from the rate."""
    return [
        {"rate_per_s": rate, "scenario": scenario, "load": rate / 200.0}
        for scenario in ("steady", "burst")
        for rate in (250, 100, 180)
    ]


@pytest.mark.parametrize("axis", ["rate_per_s", "load"])
def test_lines_run_along_the_axis_a_panel_for_each_of_the_other_labels(axis: str) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    scores = {label: luck(6, 5, seed=k) for k, label in enumerate(LABELS)}
    figure = named(figures_of(made(scores, crossed(), part={"axis": axis})), "against")
    assert [panel.title for panel in figure.panels] == ["steady", "burst"]
    places = {"steady": [1, 2, 0], "burst": [4, 5, 3]}
    for panel in figure.panels:
        axes = drawn(panel)
        lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
        for label, line in zip(LABELS, lines, strict=True):
            data = [one for one in records(figure) if (one["panel"], one["router"]) == (panel.title, label)]
            for k, one, x, y in zip(
                places[panel.title], data, line.get_xdata(), line.get_ydata(), strict=True
            ):
                expected = bootstrap_mean(100.0 * scores[label][k])
                np.testing.assert_allclose([one["value"], one["low"], one["high"]], expected)
                assert (one[axis], one["value"]) == (x, y) == (crossed()[k][axis], expected.value)
    marked = [line for line in drawn(figure.panels[0]).get_lines() if list(line.get_xdata()) == [1.0, 1.0]]
    assert len(marked) == (axis == "load")


def test_rates_make_a_line_over_load_although_each_load_is_of_one_condition() -> None:
    labels = [
        {"rate_per_s": rate, "heterogeneity": h, "load": rate * (1.1 - 0.1 * h) / 300.0}
        for rate in (100, 200)
        for h in (0.5, 1.0)
    ]
    figure = named(figures_of(made({"adaptive": luck(4, 3)}, labels, part={"axis": "load"})), "against")
    assert [panel.title for panel in figure.panels] == ["h 0.5", "h 1"]


def test_the_band_of_p99_is_the_middle_half_of_the_seeds() -> None:
    p99 = [np.arange(9.0) + 10.0, np.arange(9.0)[::-1] + 50.0]
    results = made(
        {"adaptive": luck(2, 9)},
        [{"load": 0.3}, {"load": 0.6}],
        part={"axis": "load"},
        p99_all_ms={"adaptive": p99},
    )
    rows = [row[4:] for row in named(figures_of(results), "against").rows if row[1] == "p99_all_ms"]
    assert rows == [(14.0, 12.0, 16.0), (54.0, 52.0, 56.0)]
    assert "▲" not in named(figures_of(results), "against").caption


def test_p99_is_the_median_and_stops_where_it_is_infinite() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    labels = [{"load": load} for load in (0.3, 0.6, 0.9)]
    p99 = [[10.0, 30.0, 20.0, np.nan], [40.0, 50.0, np.inf, 60.0], [np.inf, np.inf, np.inf, 70.0]]
    results = made({"adaptive": luck(3, 4)}, labels, part={"axis": "load"}, p99_all_ms={"adaptive": p99})
    figure = named(figures_of(results), "against")
    found = [line for line in records(figure) if line["metric"] == "p99_all_ms"]
    assert [line["value"] for line in found] == [20.0, 55.0, math.inf]
    assert [line["low"] for line in found] == [15.0, 47.5, math.inf]
    assert [line["high"] for line in found] == [25.0, math.inf, math.inf]
    axes = drawn(figure.panels[1])
    assert axes.get_yscale() == "log"
    line, open_above = axes.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [20.0, 55.0, np.nan])
    np.testing.assert_array_equal(open_above.get_xydata(), [(0.6, 55.0)])
    assert (open_above.get_marker(), open_above.get_color()) == ("^", line.get_color())
    assert "▲" in figure.caption


def test_routers_without_a_line_are_not_in_the_legend() -> None:
    scores = {"adaptive": luck(2, 4), "quick": np.full((2, 4), np.nan)}
    results = made(scores, [{"load": 0.3}, {"load": 0.6}], part={"axis": "load"})
    assert list(named(figures_of(results), "against").legend) == ["adaptive"]


def test_at_most_six_panels_are_drawn_and_the_data_hold_the_others() -> None:
    labels = [{"replicas": n, "scenario": f"s{k}"} for k in range(8) for n in (3, 6)]
    figure = named(figures_of(made({"adaptive": luck(16, 3)}, labels, part={"axis": "replicas"})), "against")
    assert len(figure.panels) == 6 and len(figure.rows) == 16
    assert "Of 8 groups of conditions the first 6" in figure.caption


@pytest.mark.parametrize("values", [(1, 1), ("a", "b"), (1, None), (True, False)])
def test_an_axis_without_different_numbers_has_no_figure(values: tuple[Any, Any]) -> None:
    labels = [{"x": value, "place": k} for k, value in enumerate(values)]
    names = [figure.name for figure in figures_of(made({"adaptive": luck(2, 3)}, labels, part={"axis": "x"}))]
    assert names == ["rank", "heatmap"]


def test_of_many_routers_the_best_and_the_yardsticks_are_drawn_as_lines() -> None:
    scores = {f"router {k}": np.full((2, 3), k / 40.0) for k in range(20)} | {"bound": np.ones((2, 3))}
    labels = [{"load": 0.3}, {"load": 0.6}]
    figure = named(figures_of(made(scores, labels, part={"axis": "load"})), "against")
    assert list(figure.legend) == [*(f"router {k}" for k in range(9, 20)), "bound"]
    assert "The 9 routers with the worst means are left out" in figure.caption


# Performance profiles


def test_profiles_are_of_scores_between_random_and_the_best_documented() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    scores = some_scores()
    scores["clairvoyant"][2] = scores["adaptive"][2]
    figure = named(figures_of(made(scores, part={"groups": GROUPS})), "profile")
    scaled = normalise(scores, "random", GROUPS["documented"], "clairvoyant", 1.0)
    assert scaled.kept == [0, 1, 3] and "3 conditions; 1 is not normalised" in figure.caption
    for label in LABELS:
        lines = [line for line in records(figure) if line["router"] == label]
        found = performance_profile(scaled, label, [line["threshold"] for line in lines])
        assert [line["share"] for line in lines] == found.share.tolist()
        assert [line["low"] for line in lines] == found.low.tolist()
    assert lines[0]["threshold"] == 0.0 and lines[-1]["threshold"] > 1.0
    assert len(drawn(figure.panels[0]).get_lines()) == len(LABELS) + 1


def test_without_random_routing_there_are_no_profiles() -> None:
    scores = some_scores()
    del scores["random"]
    names = [figure.name for figure in figures_of(made(scores, part={"groups": GROUPS}))]
    assert names == ["rank", "heatmap"]


# All of them


def test_figures_are_made_without_matplotlib_and_only_drawing_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide_matplotlib(monkeypatch)
    results = made(some_scores(), crossed()[:4], part={"groups": GROUPS, "axis": "load"})
    figures = figures_of(results)
    assert len(figures) == 4
    with pytest.raises(ImportError):
        named(figures, "heatmap").panels[0].draw(None)


def test_yardsticks_are_told_apart_from_routers_and_from_each_other() -> None:
    scores = {label: luck(2, 2) for label in ("adaptive", "clairvoyant", "bound")}
    figure = named(figures_of(made(scores, crossed()[:2], part={"axis": "load"})), "against")
    colours = [style["color"] for style in figure.legend.values()]
    assert colours[0] != colours[1] == colours[2] == YARDSTICK
    assert figure.legend["clairvoyant"]["dashes"] != figure.legend["bound"]["dashes"]


def test_incomplete_results_are_drawn_as_far_as_they_go() -> None:
    scores = some_scores()
    for label in LABELS:
        scores[label][2:] = np.nan
    figures = figures_of(made(scores, part={"groups": GROUPS}))
    rank = named(figures, "rank")
    assert "over 2 conditions" in rank.caption
    assert records(rank)[-1]["attainment_pct"] == pytest.approx(100.0 * scores["random"][:2].mean())
    heat = {line["condition"] for line in records(named(figures, "heatmap"))}
    assert heat == {"condition 0", "condition 1"}
    said = "Means of unfinished routers and conditions are over fewer seeds."
    scores["quick"][1] = np.nan
    for unfinished, table in ((True, scores), (False, some_scores())):
        figures = figures_of(made(table, crossed()[:4], part={"axis": "load"}))
        for name in ("heatmap", "against"):
            assert (said in named(figures, name).caption) == unfinished


def test_no_caption_speaks_of_intervals_of_one_seed() -> None:
    labels = [{"load": 0.3}, {"load": 0.6}]
    classes = {name: {"adaptive": [[0.5], [0.6]]} for name in CLASSES}
    terms = {name: {"adaptive": [[0.5], [0.6]]} for name in ("quality_loss", "cost_usd", "energy_j")}
    shown = []
    for family, metrics in (("cluster", classes), ("cloud_edge", terms)):
        results = made({"adaptive": [[0.5], [0.6]]}, labels, family, {"axis": "load"}, **metrics)
        shown += [figure for figure in figures_of(results) if figure.name != "heatmap"]
    names = {figure.name for figure in shown}
    assert names >= {"rank", "against", "who_pays", "terms"}
    for figure in shown:
        assert "of 1 seed, and so without a" in figure.caption and "bootstrap" not in figure.caption


def test_figures_are_named_once_and_their_data_are_plain_and_the_same_each_time() -> None:
    results = made(some_scores(6, 4), crossed(), part={"groups": GROUPS, "axis": "load"})
    figures, again = figures_of(results), figures_of(results)
    names = [figure.name for figure in figures]
    assert names == ["rank", "heatmap", "against", "profile"]
    for figure, other in zip(figures, again, strict=True):
        assert figure.rows == other.rows and figure.caption == other.caption
        assert {type(cell) for row in figure.rows for cell in row} <= {str, float, int, type(None)}
        buffer = io.StringIO()
        csv.writer(buffer).writerows(figure.rows)
        buffer.seek(0)
        assert all(len(row) == len(figure.columns) for row in csv.reader(buffer))
