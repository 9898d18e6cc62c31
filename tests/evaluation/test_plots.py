"""Plots: what they draw is what was measured, whatever the run looks like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing_gym.cluster.metrics import CDF_GRID_MS, TIMELINE_POINTS
from routing_gym.evaluation.runner import Condition, Router, make_jobs, run_jobs
from tests.evaluation.runs import condition, hide_matplotlib, plan_of, router

pytest.importorskip("matplotlib", reason="needs the extra `plots`")
from matplotlib.figure import Figure
from matplotlib.image import imread

from routing_gym.evaluation.drawing import YARDSTICK
from routing_gym.evaluation.plots import MOST_PANELS, write_plots

SEEDS = [1, 2, 3]
STRAGGLER: list[dict[str, Any]] = [
    {"time_s": 0.2, "kind": "slowdown", "replica": 0, "factor": 3.0},
    {"time_s": 0.4, "kind": "slowdown", "replica": 0, "factor": 1.0},
]


class Drawn:
    """A run, and the figures that were drawn of it, by file."""

    def __init__(
        self,
        folder: Path,
        routers: Sequence[Router],
        conditions: Sequence[Condition],
        monkeypatch: pytest.MonkeyPatch,
        curves: bool = True,
        keep: slice = slice(None),
    ) -> None:
        self.figures: dict[str, Figure] = {}
        savefig = Figure.savefig

        def save(figure: Figure, path: Path, **how: Any) -> None:
            self.figures[path.name] = figure
            savefig(figure, path, **how)

        monkeypatch.setattr(Figure, "savefig", save)
        self.plan = plan_of(routers, conditions, SEEDS, curves=curves)
        results = list(run_jobs(make_jobs(routers, conditions, SEEDS)[keep], curves=curves))
        keys = [dict(zip(("router", "condition", "seed"), r.job.key, strict=True)) for r in results]
        self.rows = [{**key, **r.metrics} for key, r in zip(keys, results, strict=True)]
        self.curves = [{**key, **r.curves} for key, r in zip(keys, results, strict=True) if r.curves]
        self.paths = write_plots(folder, self.plan, self.rows, self.curves)

    def panels(self, name: str) -> list[Any]:
        return [panel for panel in self.figures[name].axes if panel.get_visible()]

    def mean_curve(self, router: str, condition: str, key: str) -> np.ndarray:
        found: Any = [c[key] for c in self.curves if (c["router"], c["condition"]) == (router, condition)]
        return np.mean(found, axis=0)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    routers = [router("round_robin"), router("least_queue"), router("clairvoyant"), router("bound")]
    places = [
        condition("steady"),
        condition("straggler", events=STRAGGLER),
        condition("few", rate_per_s=60.0),
    ]
    with pytest.MonkeyPatch.context() as monkeypatch:
        return Drawn(tmp_path_factory.mktemp("plots"), routers, places, monkeypatch)


def is_blank(path: Path) -> bool:
    """Tell whether an image shows hardly anything."""
    pixels = imread(path)[..., :3]
    marked = np.abs(pixels - pixels[0, 0]).max(axis=-1) > 0.1
    return marked.mean() < 0.005


def test_there_are_three_plots_and_something_is_on_them(drawn: Drawn) -> None:
    assert [path.name for path in drawn.paths] == ["attainment.png", "latency_cdf.png", "queues.png"]
    assert len({path.parent for path in drawn.paths}) == 1
    for path in drawn.paths:
        height, width = imread(path).shape[:2]
        assert height > 200 and width > 400
        assert not is_blank(path)


def test_every_condition_has_a_panel_of_its_own(drawn: Drawn) -> None:
    for name in drawn.figures:
        titles = [panel.get_title(loc="left") for panel in drawn.panels(name)]
        assert titles == ["steady", "straggler", "few"]


def test_latency_curves_are_means_over_all_arrivals_with_the_deadline_marked(drawn: Drawn) -> None:
    played = ["round_robin", "least_queue", "clairvoyant"]
    for panel, place in zip(drawn.panels("latency_cdf.png"), ("steady", "straggler", "few"), strict=True):
        deadline, *lines = panel.get_lines()
        assert list(deadline.get_xdata()) == [50.0, 50.0]
        assert len(lines) == len(played), "a bound has no latencies"
        for line, label in zip(lines, played, strict=True):
            np.testing.assert_array_equal(line.get_xdata(), CDF_GRID_MS)
            np.testing.assert_array_equal(line.get_ydata(), drawn.mean_curve(label, place, "latency_cdf"))
        assert panel.get_ylim()[0] == 0 and panel.get_ylim()[1] >= 1
    texts = [text.get_text() for text in drawn.figures["latency_cdf.png"].legends[0].get_texts()]
    assert texts == ["deadline", *played]


def test_attainment_is_the_mean_with_its_interval_between_the_bound_and_the_rest(drawn: Drawn) -> None:
    labels = ["round_robin", "least_queue", "clairvoyant", "bound"]
    for panel, place in zip(drawn.panels("attainment.png"), ("steady", "straggler", "few"), strict=True):
        assert [text.get_text() for text in panel.get_yticklabels()] == labels[::-1]
        lines = panel.get_lines()
        assert len(lines) == 2 * len(labels)
        for k, label in enumerate(labels[::-1]):
            interval, mean = lines[2 * k], lines[2 * k + 1]
            values = [
                100 * row["attainment"]
                for row in drawn.rows
                if (row["router"], row["condition"]) == (label, place)
            ]
            [x], [y] = mean.get_xdata(), mean.get_ydata()
            assert (x, y) == (pytest.approx(np.mean(values)), k)
            low, high = interval.get_xdata()
            assert min(values) - 1e-9 <= low <= x <= high <= max(values) + 1e-9
            left, right = panel.get_xlim()
            assert left < low and high < right


def test_queues_are_means_around_the_event(drawn: Drawn) -> None:
    steady, straggler, _ = drawn.panels("queues.png")
    for panel, place in ((steady, "steady"), (straggler, "straggler")):
        lines = panel.get_lines()[:3]
        for line, label in zip(lines, ("round_robin", "least_queue", "clairvoyant"), strict=True):
            assert len(line.get_xdata()) == TIMELINE_POINTS
            assert (line.get_xdata()[0], line.get_xdata()[-1]) == (0.0, 0.5)
            np.testing.assert_array_equal(line.get_ydata(), drawn.mean_curve(label, place, "outstanding"))
    marked = [line.get_xdata()[0] for line in straggler.get_lines()[3:]]
    assert marked == [0.2, 0.4]
    assert [text.get_text() for text in straggler.texts] == ["slowdown 0 ×3", "slowdown 0 ×1"]
    assert len(steady.get_lines()) == 3 and not steady.texts


def test_an_event_after_the_end_is_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = [*STRAGGLER, {"time_s": 6.0, "kind": "failure", "replica": 1}]
    places = [condition("late", events=late), condition("later", events=late[2:])]
    drawn = Drawn(tmp_path, [router("round_robin")], places, monkeypatch)
    for panel in drawn.panels("queues.png"):
        left, right = panel.get_xlim()
        assert left < right <= 1.0, "time goes forwards, over the episode"
        assert not [text for text in panel.texts if "failure" in text.get_text()]
    assert len(drawn.panels("queues.png")[0].texts) == 2


def test_the_event_lies_within_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shifted = [{**event, "time_s": event["time_s"] + 4} for event in STRAGGLER]
    place = condition("long", events=shifted, measured_s=9.875, rate_per_s=60.0)
    drawn = Drawn(tmp_path, [router("round_robin")], [place], monkeypatch)
    [panel] = drawn.panels("queues.png")
    left, right = panel.get_xlim()
    assert 0 < left < 4.2 < 4.4 < right < 10, "around the event, not the whole episode"


def test_colours_follow_the_list_and_yardsticks_are_black(drawn: Drawn) -> None:
    styles: dict[str, set[Any]] = {}
    for name in ("latency_cdf.png", "queues.png"):
        for panel in drawn.panels(name):
            lines = panel.get_lines()[name == "latency_cdf.png" :][:3]
            for label, line in zip(("round_robin", "least_queue", "clairvoyant"), lines, strict=True):
                styles.setdefault(label, set()).add(line.get_color())
    assert [len(colours) for colours in styles.values()] == [1, 1, 1], "a router keeps its colour"
    assert styles["clairvoyant"] == {YARDSTICK}
    assert len(set.union(*styles.values())) == 3


def test_no_two_of_the_default_routers_look_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "round_robin",
        "least_queue",
        "latency_aware",
        "adaptive",
        "least_work",
        "deadline_aware",
        "random",
    ]
    drawn = Drawn(tmp_path, list(map(router, names)), [condition("steady")], monkeypatch)
    [panel] = drawn.panels("latency_cdf.png")
    looks = {(line.get_color(), str(line._dash_pattern)) for line in panel.get_lines()[1:]}
    assert len(looks) == len(names)


def test_without_curves_only_attainment_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(tmp_path, [router("round_robin")], [condition("steady")], monkeypatch, curves=False)
    assert [path.name for path in drawn.paths] == ["attainment.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attainment.png"]


def test_one_seed_and_a_single_yardstick_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "bound"):
        (tmp_path / name).mkdir()
    one = Drawn(tmp_path / "one", [router("round_robin")], [condition("x")], monkeypatch, keep=slice(1))
    assert not any(map(is_blank, one.paths))
    bound = Drawn(tmp_path / "bound", [router("bound")], [condition("x")], monkeypatch)
    assert [path.name for path in bound.paths] == ["attainment.png"]
    assert not is_blank(bound.paths[0])


def test_an_episode_without_arrivals_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(tmp_path, [router("round_robin")], [condition("x", rate_per_s=0.0)], monkeypatch)
    [panel] = drawn.panels("attainment.png")
    assert not panel.get_lines(), "an undefined attainment is not a 0"


def test_of_many_conditions_the_first_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [condition(f"place {k}", rate_per_s=10.0) for k in range(MOST_PANELS + 1)]
    drawn = Drawn(tmp_path, [router("round_robin")], places, monkeypatch, curves=False)
    titles = [panel.get_title(loc="left") for panel in drawn.panels("attainment.png")]
    assert titles == [place.name for place in places[:MOST_PANELS]]


def test_without_matplotlib_an_import_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_matplotlib(monkeypatch)
    with pytest.raises(ImportError, match="matplotlib"):
        write_plots(tmp_path, plan_of([router("round_robin")], [condition("x")], [1]), [], [])
