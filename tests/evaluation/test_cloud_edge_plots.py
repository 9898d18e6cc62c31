"""Plots of batches: what they draw is what was measured, whatever the run looks like."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.evaluation.results import PLOTS
from routing_gym.evaluation.runner import Condition, Router, make_jobs, run_jobs
from tests.evaluation.cloud_edge_runs import condition, install, plan_of, router, several

pytest.importorskip("matplotlib", reason="needs the extra `plots`")
from matplotlib.figure import Figure
from matplotlib.image import imread

from routing_gym.evaluation.cloud_edge_plots import mean_convergence
from routing_gym.evaluation.drawing import YARDSTICK
from routing_gym.evaluation.plots import write_plots

SEEDS = [1, 2, 3]
ROUTERS = [
    router("round_robin"),
    router("cema"),
    router("cema", "cema:normalisation=fixed", normalisation="fixed"),
    router("optimal"),
]
PLACES = [condition("one"), several("slow", rate_per_s=6.0, windows=12)]
TERMS = (("quality_loss", 1.0), ("cost_usd", 1000.0), ("energy_j", 1.0), ("completion_s", 1.0))


class Drawn:
    """A run, and the figures that were drawn of it, by file."""

    def __init__(
        self,
        folder: Path,
        routers: Sequence[Router],
        conditions: Sequence[Condition],
        monkeypatch: pytest.MonkeyPatch,
        gap: bool = True,
    ) -> None:
        self.figures: dict[str, Figure] = {}
        savefig = Figure.savefig

        def save(figure: Figure, path: Path, **how: Any) -> None:
            self.figures[path.name] = figure
            savefig(figure, path, **how)

        monkeypatch.setattr(Figure, "savefig", save)
        self.plan = plan_of(routers, conditions, SEEDS, gap=gap)
        results = list(run_jobs(make_jobs(routers, conditions, SEEDS), curves=True, gap=gap))
        keys = [dict(zip(("router", "condition", "seed"), r.job.key, strict=True)) for r in results]
        self.rows = [{**key, **r.metrics} for key, r in zip(keys, results, strict=True)]
        self.curves = [{**key, **r.curves} for key, r in zip(keys, results, strict=True)]
        self.paths = write_plots(folder, self.plan, self.rows, self.curves)

    def panels(self, name: str) -> list[Any]:
        return [panel for panel in self.figures[name].axes if panel.get_visible()]

    def mean(self, router: str, condition: str, metric: str) -> float:
        found = [row[metric] for row in self.rows if (row["router"], row["condition"]) == (router, condition)]
        return float(np.mean(found))

    def of(self, router: str, condition: str) -> list[dict[str, Any]]:
        return [c for c in self.curves if (c["router"], c["condition"]) == (router, condition)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return Drawn(tmp_path_factory.mktemp("plots"), ROUTERS, PLACES, monkeypatch)


def is_blank(path: Path) -> bool:
    """Tell whether an image shows hardly anything."""
    pixels = imread(path)[..., :3]
    marked = np.abs(pixels - pixels[0, 0]).max(axis=-1) > 0.1
    return marked.mean() < 0.005


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


LABELS = [one.label for one in ROUTERS]


def test_there_are_four_plots_and_something_is_on_them(drawn: Drawn) -> None:
    assert tuple(path.name for path in drawn.paths) == PLOTS["cloud_edge"]
    for path in drawn.paths:
        height, width = imread(path).shape[:2]
        assert height > 200 and width > 400
        assert not is_blank(path)


def test_bars_are_means_with_their_intervals(drawn: Drawn) -> None:
    shown = [("objective", 1.0), *TERMS]
    panels = drawn.panels("terms.png")
    assert len(panels) == 2 * len(shown)
    for panel, (place, (metric, scale)) in zip(panels, itertools.product(PLACES, shown), strict=True):
        bars, intervals = panel.patches, panel.get_lines()
        for place_of, (label, bar, interval) in enumerate(zip(LABELS[::-1], bars, intervals, strict=True)):
            mean = scale * drawn.mean(label, place.name, metric)
            assert bar.get_width() == pytest.approx(mean)
            assert bar.get_y() + bar.get_height() / 2 == pytest.approx(place_of)
            low, high = interval.get_xdata()
            assert low <= mean * (1 + 1e-9) and mean <= high * (1 + 1e-9)
            assert 0 == panel.get_xlim()[0] < high < panel.get_xlim()[1]
        labels = [text.get_text() for text in panel.get_yticklabels()]
        assert labels == (LABELS[::-1] if metric == "objective" else [""] * len(LABELS))
    titles = [panel.get_title(loc="left") for panel in panels]
    assert [title for title in titles if title] == [place.name for place in PLACES]


def test_each_pair_of_terms_has_a_panel_with_a_point_for_each_router(drawn: Drawn) -> None:
    pairs = list(itertools.combinations(TERMS, 2))
    panels = drawn.panels("tradeoffs.png")
    assert len(panels) == 2 * len(pairs) == 12
    for panel, (place, pair) in zip(panels, itertools.product(PLACES, pairs), strict=True):
        points = [tuple(points.get_offsets()[0]) for points in panel.collections]
        assert len(points) == len(LABELS)
        for label, point in zip(LABELS, points, strict=True):
            expected = [scale * drawn.mean(label, place.name, metric) for metric, scale in pair]
            assert point == pytest.approx(expected)
    assert legend(drawn.figures["tradeoffs.png"]) == LABELS


def test_no_two_points_look_alike(drawn: Drawn) -> None:
    [*collections] = drawn.panels("tradeoffs.png")[0].collections
    looks = {
        (str(c.get_facecolor()), c.get_paths()[0].vertices.tobytes(), c.get_sizes()[0]) for c in collections
    }
    assert len(looks) == len(LABELS)
    sizes = [c.get_sizes()[0] for c in collections]
    assert sizes == sorted(set(sizes), reverse=True), "a later one must not hide an earlier one"


def test_convergence_ends_at_what_was_dispatched_above_the_optimum(drawn: Drawn) -> None:
    searches = ["cema", "cema:normalisation=fixed"]
    for panel, place in zip(drawn.panels("convergence.png"), PLACES, strict=True):
        *lines, bound = panel.get_lines()
        assert bound.get_color() == YARDSTICK and len(lines) == 2 * len(searches)
        optimum = np.mean(
            [
                curve["bound"][np.flatnonzero(curve["requests"])[0]]
                for curve in drawn.of("optimal", place.name)
            ]
        )
        assert bound.get_ydata()[0] == pytest.approx(optimum)
        for label, line, end in zip(searches, lines[::2], lines[1::2], strict=True):
            final = np.mean(
                [
                    curve["objective_predicted"][np.flatnonzero(curve["requests"])[0]]
                    for curve in drawn.of(label, place.name)
                ]
            )
            assert end.get_ydata()[0] == pytest.approx(line.get_ydata()[-1])
            assert line.get_ydata()[-1] == pytest.approx(final, abs=1e-5)
            assert line.get_ydata()[0] >= line.get_ydata()[-1] >= optimum - 1e-9
            assert np.all(np.diff(line.get_xdata()) >= 0) and line.get_xdata()[0] > 0
        assert panel.get_xscale() == "log"
    assert legend(drawn.figures["convergence.png"]) == [*searches, "proven optimum"]


def test_backlogs_are_means_and_only_of_several_windows(drawn: Drawn) -> None:
    [panel] = drawn.panels("backlog.png")
    assert panel.get_title(loc="left") == "slow"
    for label, line in zip(LABELS, panel.get_lines(), strict=True):
        expected = np.mean([curve["backlog_s"] for curve in drawn.of(label, "slow")], axis=0)
        np.testing.assert_allclose(line.get_ydata(), expected)
        assert line.get_xdata().tolist() == list(range(1, 13))
        assert (line.get_color() == YARDSTICK) == (label == "optimal")
    assert max(panel.get_lines()[0].get_ydata()) > 0


def test_without_searches_or_windows_there_is_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Drawn(tmp_path, [router("round_robin"), router("optimal")], PLACES[:1], monkeypatch)
    assert [path.name for path in drawn.paths] == ["terms.png", "tradeoffs.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["terms.png", "tradeoffs.png"]
    assert len(drawn.panels("tradeoffs.png")) == 6


def test_without_gaps_convergence_has_no_optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(tmp_path, [router("cema")], PLACES[:1], monkeypatch, gap=False)
    assert legend(drawn.figures["convergence.png"]) == ["cema"]


def test_an_episode_without_requests_and_a_yardstick_that_only_measures_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, ruler="Ruler")
    places = [several("nobody comes", rate_per_s=0.0), PLACES[0]]
    drawn = Drawn(tmp_path, [router("cema"), router("ruler")], places, monkeypatch)
    empty = drawn.panels("terms.png")[1]
    assert not empty.patches, "an undefined term is not a 0"
    assert not any(map(is_blank, drawn.paths))


def test_of_many_conditions_the_first_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routing_gym.evaluation.plots.MOST_PANELS", 1)
    places = [condition(f"place {k}", requests=1 + k) for k in range(2)]
    drawn = Drawn(tmp_path, [router("round_robin")], places, monkeypatch, gap=False)
    titles = [panel.get_title(loc="left") for panel in drawn.panels("tradeoffs.png")[::6]]
    assert titles == ["place 0"]


searches = st.lists(
    st.tuples(st.floats(1e-5, 1.0), st.floats(0.0, 2.0)),
    min_size=1,
    max_size=6,
    unique_by=lambda step: step[0],
).map(lambda steps: np.array(sorted(steps)))


@given(st.lists(searches, min_size=1, max_size=7))
def test_mean_convergence_goes_from_the_first_steps_to_the_last(found: list[np.ndarray]) -> None:
    instants, best = mean_convergence(found)
    assert np.all(np.diff(instants) >= 0)
    for place in (0, -1):
        assert instants[place] == pytest.approx(np.median([one[place, 0] for one in found]))
        assert best[place] == pytest.approx(np.mean([one[place, 1] for one in found]))


def test_a_search_that_was_held_up_does_not_stretch_the_others() -> None:
    steps = np.array([[0.001 * k, 1.0 - 0.1 * k] for k in range(1, 6)])
    late = steps + np.array([[0.0, 0.0]] * 2 + [[0.5, 0.0]] * 3)
    instants, best = mean_convergence([steps, steps, late])
    plain = mean_convergence([steps])
    np.testing.assert_allclose((instants, best), plain)
    assert set(zip(instants.round(9), best.round(9), strict=True)) == set(map(tuple, steps.round(9)))
