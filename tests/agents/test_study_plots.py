"""The study's plots: what is drawn is what was measured, and nothing is left out unseen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing_agents.study_scores import Results
from routing_gym.evaluation.arguments import routers_of
from routing_gym.studies.config import Part
from tests.agents.studies import made_up

pytest.importorskip("matplotlib")

from routing_agents.study_plots import draw

PART: dict[str, Any] = {
    "title": "Made up",
    "family": "cluster",
    "config": "default",
    "conditions": {"rate_per_s": [100, 200], "scenario": ["steady", "burst"]},
    "routers": {
        "documented": ["least_queue", "round_robin"],
        "fixed": ["deadline_aware"],
        "trained": ["learned:path=a", "learned:path=b"],
        "yardsticks": ["clairvoyant", "bound"],
    },
    "reference": "deadline_aware",
    "report": {"train": "…"},
}
SEEDS = (1, 2)


def results(folder: Path, part: dict[str, Any], **fixed: float) -> Results:
    """Return results in [0, 1], latencies in hundreds, and a p99 of each router that is given one."""
    parsed = Part.model_validate(part)
    count = len(parsed.conditions_played())
    rng = np.random.default_rng(count)
    groups = parsed.groups(*routers_of(str(parsed.reference), "cluster"))
    labels = [router.label for listed in groups.values() for router in listed]
    shape = (count, len(SEEDS))
    metrics = {
        label: {
            "attainment": rng.random(shape),
            "mean_latency_ms": 100.0 + rng.random(shape),
            "p99_all_ms": np.full(shape, fixed.get(label, 500.0 + k)),
        }
        for k, label in enumerate(labels)
    }
    return made_up(folder, part, metrics, SEEDS)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep every figure that is saved."""
    from matplotlib.figure import Figure

    kept: list[Any] = []
    save = Figure.savefig

    def saved(figure: Any, *args: Any, **how: Any) -> None:
        kept.append(figure)
        save(figure, *args, **how)

    monkeypatch.setattr(Figure, "savefig", saved)
    return kept


def attainment(results: Results, router: str) -> Any:
    return 100.0 * results.scores(router, "attainment").mean(axis=1)


def test_every_condition_has_a_dot_for_each_router(tmp_path: Path, figures: list[Any]) -> None:
    mine = results(tmp_path / "part", PART)
    (path,) = draw(tmp_path, {"part": mine})
    assert path == tmp_path / "learned_part.png" and path.read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    assert [panel.get_title("left") for panel in figure.axes] == ["100 requests/s", "200 requests/s"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["steady", "burst"]
    best = np.maximum(attainment(mine, "least_queue"), attainment(mine, "round_robin"))
    trained = (attainment(mine, "learned:path=a"), attainment(mine, "learned:path=b"))
    expected = {
        "best documented": best,
        "deadline_aware": attainment(mine, "deadline_aware"),
        "trained, 2 seeds": np.mean(trained, axis=0),
        "clairvoyant": attainment(mine, "clairvoyant"),
        "bound": attainment(mine, "bound"),
    }
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == list(expected)
    for k, panel in enumerate(figure.axes):
        for name, line in zip(names, panel.get_lines(), strict=True):
            assert line.get_xdata() == pytest.approx(expected[name][2 * k : 2 * k + 2])
            assert line.get_ydata().tolist() == [1, 0]
        ranges = [segment for collection in panel.collections for segment in collection.get_segments()]
        ends = sorted((float(segment[0, 0]), float(segment[1, 0])) for segment in ranges)
        for place in (2 * k, 2 * k + 1):
            low, high = min(t[place] for t in trained), max(t[place] for t in trained)
            assert any((low, high) == pytest.approx(end) for end in ends), "the range of training seeds"


def test_a_reference_that_was_chosen_is_called_the_best_of_so_many(
    tmp_path: Path, figures: list[Any]
) -> None:
    mine = results(tmp_path / "part", PART)
    selection = results(
        tmp_path / "selection", {**PART, "routers": {"fixed": ["least_work", "adaptive"]}}
    ).played
    draw(tmp_path, {"part": mine._replace(played=replace(mine.played, selection=selection))})
    names = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert names[1] == "deadline_aware, best of 3"


def test_more_replicas_are_drawn_beside_those_trained_with(tmp_path: Path, figures: list[Any]) -> None:
    usual = results(tmp_path / "usual", PART)
    conditions = {"replicas": [8, 16], "rate_per_s": [100, 200], "scenario": ["steady"]}
    report = {"train": "…", "split": "replicas", "beside": "usual"}
    more = {**PART, "conditions": conditions, "load_of_replicas": 3, "report": report}
    mine = results(tmp_path / "more", more)
    assert len(draw(tmp_path, {"more": mine})) == len(draw(tmp_path, {"usual": usual, "more": mine})) - 1 == 1
    without, _, figure = figures
    for shown, sizes in ((without, ["8", "16"]), (figure, ["3\n(trained)", "8", "16"])):
        panel = shown.axes[1]
        assert panel.get_title("left") == "200 requests/s with 3, load kept"
        assert [text.get_text() for text in panel.get_xticklabels()] == sizes
        names = [text.get_text() for text in shown.legends[0].get_texts()]
        line = panel.get_lines()[names.index("bound")]
        at = mine.where("rate_per_s", 200)
        expected = [attainment(at.where("replicas", n), "bound").mean() for n in (8, 16)]
        if shown is figure:
            expected.insert(0, attainment(usual.where("rate_per_s", 200), "bound").mean())
        assert line.get_ydata() == pytest.approx(expected)


def test_the_frontier_shows_each_router_where_it_is_and_names_those_it_cannot(
    tmp_path: Path, figures: list[Any]
) -> None:
    usual = results(tmp_path / "usual", PART, round_robin=math.inf)
    steered = {"learned": {"path": ["c"], "reward": [[1.0 - w, 0.0, -w, 0.0, 0.0] for w in (0.0, 0.5, 1.0)]}}
    report = {"train": "…", "beside": "usual", "steered": [0.0, 0.5, 1.0]}
    part = {**PART, "routers": {"fixed": ["deadline_aware"], "trained": [steered]}, "report": report}
    mine = results(tmp_path / "weights", part)
    assert [path.name for path in draw(tmp_path, {"usual": usual, "weights": mine})] == [
        "learned_usual.png",
        "learned_weights.png",
    ]
    figure = figures[1]
    left, right = figure.axes
    labels = [f"learned:path=c, w = {share}" for share in ("0", "0.5", "1")]
    curve = left.get_lines()[0]
    assert curve.get_ydata() == pytest.approx([attainment(mine, label).mean() for label in labels])
    assert curve.get_xdata() == pytest.approx([501.0, 502.0, 503.0])
    latency = right.get_lines()[0].get_xdata()
    assert latency == pytest.approx([mine.scores(label, "mean_latency_ms").mean() for label in labels])
    assert [text.get_text() for text in right.texts] == ["w = 0", "w = 1"]
    # All but the bound, which has no latency, are points; on the left all but the one that has no p99.
    points = [router for router in usual.roles if router != "bound"]
    shown = [float(line.get_xdata()[0]) for line in right.get_lines()[1:]]
    both = mine.beside(usual)
    assert shown == pytest.approx([both.scores(router, "mean_latency_ms").mean() for router in points])
    assert len(left.get_lines()) == len(right.get_lines()) - 1
    assert left.get_title("left") == "infinite: round_robin"
    assert right.get_title("left") == ""
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    trained = "trained, 2 seeds"
    others = {"least_queue", "round_robin", "deadline_aware", "clairvoyant"}
    assert set(names) == {"one router, any w", trained, *others}


def test_parts_without_a_picture_have_none(tmp_path: Path) -> None:
    report = {"train": "…", "split": "heterogeneity"}
    part = {**PART, "conditions": {"heterogeneity": [0.5, 1.0]}, "report": report}
    assert draw(tmp_path, {"part": results(tmp_path / "part", part)}) == []
