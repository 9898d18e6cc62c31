"""Plots of predicted quality: what they draw is what was measured, and every model is told apart."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing_gym.quality.assessment import POOLED, Assessment, assess
from routing_gym.quality.selection import ClusterTrial, Trial
from tests.evaluation.runs import hide_matplotlib

pytest.importorskip("matplotlib", reason="needs the extra `plots`")
from matplotlib.figure import Figure
from matplotlib.image import imread

from routing_gym.evaluation.drawing import YARDSTICK
from routing_gym.evaluation.quality_plots import (
    draw_assessment,
    draw_cross_validation,
    draw_deferral,
    write_plots,
)
from routing_gym.evaluation.quality_report import FILES, Deferral

MODELS = [f"model-{k}" for k in range(11)]
TRIALS: dict[str, list[Any]] = {
    "neighbours": [
        Trial(count, threshold, 0.2 + 0.1 / count + threshold, 0.4, 0.6 - 0.1 / count, 1.0)
        for threshold, count in itertools.product((0.5, 0.0), (40, 1, 10))
    ],
    "clusters": [ClusterTrial(count, 0.2 + 0.001 * count, 0.4, 0.5) for count in (20, 5, 10)],
}
CHOSEN = {"neighbours": 10, "threshold": 0.0, "clusters": 5}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """Return the figures that are drawn, by file."""
    drawn: dict[str, Figure] = {}
    savefig = Figure.savefig

    def save(figure: Figure, path: Path, **how: Any) -> None:
        drawn[path.name] = figure
        savefig(figure, path, **how)

    monkeypatch.setattr(Figure, "savefig", save)
    return drawn


def made_up(models: list[str], tasks: int = 1, rows: int = 400) -> Assessment:
    rng = np.random.default_rng(0)
    predicted = rng.uniform(0.1, 0.9, (rows, len(models)))
    scores = (rng.random(predicted.shape) < predicted).astype(float)
    return assess(scores, predicted, scores.mean(axis=0), models, [f"{k % tasks}" for k in range(rows)])


def deferral(cheapest: float) -> Deferral:
    curve = np.array([(0.0, 0.8, 3e-3), (1.0, 0.75, 2e-3), (2.0, 0.5, 1e-4)])
    singles = {model: (0.4 + 0.03 * k, cheapest * 2.0**k) for k, model in enumerate(MODELS)}
    return Deferral(10, "USD a prompt", np.ones(len(MODELS)), curve, singles)


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def looks_drawn(path: Path) -> bool:
    """Tell whether an image is of a fair size and shows something."""
    pixels = imread(path)[..., :3]
    height, width = pixels.shape[:2]
    return height > 200 and width > 400 and (np.abs(pixels - pixels[0, 0]).max(axis=-1) > 0.1).mean() > 0.005


def nothing_is_clipped(figure: Figure) -> bool:
    """Tell whether all of a figure lies within its page."""
    box, page = figure.get_tightbbox(), figure.get_size_inches()
    return min(box.x0, box.y0) >= -0.01 and box.x1 <= page[0] + 0.01 and box.y1 <= page[1] + 0.01


@pytest.mark.parametrize("count", [1, 4, 11])
def test_bins_and_areas_are_drawn_as_measured(count: int, tmp_path: Path, figures: dict[str, Figure]) -> None:
    found = made_up(MODELS[:count])
    path = draw_assessment(tmp_path / "assessment.png", found)
    assert path == tmp_path / "assessment.png" and looks_drawn(path)
    figure = figures["assessment.png"]
    assert nothing_is_clipped(figure)
    reliability, areas = figure.axes
    diagonal, *lines = reliability.get_lines()
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 1]
    half, *marks = areas.get_lines()
    assert list(half.get_xdata()) == [0.5, 0.5]
    for k, one in enumerate([*found.models, found.pooled]):
        assert list(lines[k].get_xdata()) == [held.predicted for held in one.bins]
        assert list(lines[k].get_ydata()) == [held.recorded for held in one.bins]
        interval, value = marks[2 * k], marks[2 * k + 1]
        assert list(interval.get_xdata()) == [one.auc.low, one.auc.high]
        assert (list(value.get_xdata()), list(value.get_ydata())) == ([one.auc.value], [count - k])
        assert (value.get_color() == YARDSTICK) == (one.model == POOLED)
        assert areas.get_yticklabels()[count - k].get_text() == one.model
    looks = {(line.get_color(), line.get_marker()) for line in lines}
    assert len(looks) == count + 1, "no two look alike"
    assert legend(figure) == ["calibrated", *MODELS[:count], POOLED]


def test_of_several_tasks_the_areas_within_them_stand_below(
    tmp_path: Path, figures: dict[str, Figure]
) -> None:
    found = made_up(["x", "y"], tasks=3)
    draw_assessment(tmp_path / "assessment.png", found)
    figure = figures["assessment.png"]
    assert nothing_is_clipped(figure)
    assert legend(figure) == ["calibrated", "x", "y", POOLED, "within tasks"]
    _, *marks = figure.axes[1].get_lines()
    for k, one in enumerate([*found.models, found.pooled]):
        interval, value = marks[4 * k + 2 : 4 * k + 4]
        assert list(interval.get_xdata()) == list(one.auc_within_tasks[1:3])
        assert list(value.get_xdata()) == [one.auc_within_tasks.value]
        assert value.get_ydata()[0] < marks[4 * k + 1].get_ydata()[0]
        assert value.get_markerfacecolor() == "white"


def test_a_model_without_scores_is_left_out(tmp_path: Path, figures: dict[str, Figure]) -> None:
    scores = np.array([[0.0, np.nan], [1.0, np.nan]])
    found = assess(scores, [[0.2, 0.5], [0.8, 0.5]], [0.5, 0.5], ["x", "y"], ["", ""])
    draw_assessment(tmp_path / "assessment.png", found)
    assert legend(figures["assessment.png"]) == ["calibrated", "x", POOLED]


@pytest.mark.parametrize("kinds", [["neighbours"], ["neighbours", "clusters"]])
def test_what_was_tried_is_drawn_and_the_choice_ringed(
    kinds: list[str], tmp_path: Path, figures: dict[str, Figure]
) -> None:
    trials = {kind: TRIALS[kind] for kind in kinds}
    assert looks_drawn(draw_cross_validation(tmp_path / "curve.png", trials, CHOSEN))
    figure = figures["curve.png"]
    assert nothing_is_clipped(figure)
    by_cluster = ["errors by cluster"] * (len(kinds) - 1)
    assert legend(figure) == ["cosine > 0", "cosine > 0.5", *by_cluster, "chosen"]
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert len(panels) == 1 + len(kinds)
    for panel, measure in zip(panels[:2], ("mse", "auc"), strict=True):
        for line, threshold in zip(panel.get_lines(), (0.0, 0.5), strict=True):
            tried = [trial for trial in TRIALS["neighbours"] if trial.threshold == threshold]
            expected = sorted((trial.neighbours, getattr(trial, measure)) for trial in tried)
            assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == expected
        [best] = [trial for trial in TRIALS["neighbours"] if trial[:2] == (10, 0.0)]
        [ring] = panel.collections
        np.testing.assert_array_equal(ring.get_offsets(), [[10, getattr(best, measure)]])
        assert [text.get_text() for text in panel.get_xticklabels()] == ["1", "10", "40"]
    for panel in panels[2:]:
        [line] = panel.get_lines()
        assert list(line.get_xdata()) == [5, 10, 20]
        np.testing.assert_allclose(panel.collections[0].get_offsets(), [[5, 0.205]])


def test_a_setting_that_was_not_tried_is_not_ringed(tmp_path: Path, figures: dict[str, Figure]) -> None:
    draw_cross_validation(tmp_path / "curve.png", TRIALS, {"neighbours": 7, "threshold": 0.0, "clusters": 7})
    assert "chosen" not in legend(figures["curve.png"])


@pytest.mark.parametrize(("cheapest", "scale"), [(1e-5, "log"), (0.0, "linear")])
def test_the_deferral_curve_stands_beside_every_model_alone(
    cheapest: float, scale: str, tmp_path: Path, figures: dict[str, Figure]
) -> None:
    path = draw_deferral(tmp_path / "deferral.png", deferral(cheapest))
    assert looks_drawn(path)
    figure = figures["deferral.png"]
    assert nothing_is_clipped(figure)
    [panel] = figure.axes
    [line] = panel.get_lines()
    found = deferral(cheapest)
    np.testing.assert_array_equal(np.column_stack([line.get_ydata(), line.get_xdata()]), found.curve[:, 1:])
    assert [tuple(mark.get_offsets()[0]) for mark in panel.collections] == [
        (cost, score) for score, cost in found.singles.values()
    ]
    assert panel.get_xscale() == scale
    assert panel.get_xlabel() == "mean cost, USD a prompt"
    assert legend(figure)[1:] == MODELS


def test_only_what_there_is_is_drawn(tmp_path: Path) -> None:
    def names(*arguments: Any) -> list[str]:
        return [path.name for path in write_plots(tmp_path, made_up(["x"]), *arguments)]

    assert names(None, {}, CHOSEN) == ["assessment.png"]
    assert names(deferral(1.0), {}, CHOSEN) == ["assessment.png", "deferral.png"]
    everything = names(deferral(1.0), TRIALS, CHOSEN)
    assert everything == ["assessment.png", "cross_validation.png", "deferral.png"]
    assert set(everything) == {name for name in FILES if name.endswith(".png")}


def test_without_matplotlib_an_import_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_matplotlib(monkeypatch)
    with pytest.raises(ImportError, match="matplotlib"):
        draw_assessment(tmp_path / "assessment.png", made_up(["x"]))
