"""The numbers of a report: what plain statistics give, of whatever is there."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing_gym.evaluation.report import summarise
from routing_gym.evaluation.results import PLAN, ResultsError
from routing_gym.evaluation.statistics import (
    Estimate,
    improvement,
    paired_difference,
    paired_p_value,
    seeds_needed,
)
from routing_gym.reporting.analysis import analyse, newer, over_conditions
from routing_gym.reporting.tables import (
    headline,
    how_to_read,
    interval,
    number,
    probability,
    seeds_said,
    seeds_table,
    selection_table,
    verdict,
)
from tests.reporting.made import made
from tests.reporting.runs import change_plan, luck, results_of

NAN = math.nan


def test_means_and_differences_are_those_of_a_comparisons_summary(tmp_path: Path) -> None:
    scores = {name: luck(3, 7, seed=k) for k, name in enumerate(("adaptive", "least_queue", "bound"))}
    results = results_of(tmp_path / "run", scores)
    rows = [row for condition in results.conditions for row in results.rows(condition["name"])]
    expected = summarise(results.plan, rows)["overall"]["routers"]
    for line in analyse(results).lines:
        other = expected[line.label]
        assert line.mean == pytest.approx(other["mean"])
        assert line.iqm.value == pytest.approx(other["iqm"]["value"])
        if line.label == "adaptive":
            assert line.difference is line.better is line.p_value is None
        else:
            assert line.difference is not None and line.better is not None
            assert line.difference.low == pytest.approx(other["difference"]["low"])
            assert line.better.value == pytest.approx(other["probability_of_improvement"])


def test_a_lines_statistics_are_of_means_over_conditions_paired_by_seed(tmp_path: Path) -> None:
    a, b = luck(4, 9, seed=1), luck(4, 9, seed=2)
    line = analyse(results_of(tmp_path / "run", {"adaptive": a, "least_queue": b})).lines[1]
    means = b.mean(axis=0), a.mean(axis=0)
    assert line.difference == paired_difference(*means)
    assert line.p_value == paired_p_value(*means)  # a family of one
    assert line.better == improvement(b, a)
    assert line.one_point == seeds_needed(*means, 0.01)
    assert line.difference is not None
    assert line.observed == seeds_needed(*means, line.difference.value)


def test_p_values_are_corrected_among_routers_and_not_yardsticks(tmp_path: Path) -> None:
    base = luck(2, 8)
    scores = {"adaptive": base, "least_queue": base + 0.1, "round_robin": base - 0.1, "bound": base + 0.3}
    lines = {line.label: line for line in analyse(results_of(tmp_path / "run", scores)).lines}
    # All signs agree: two patterns of 2^8 are as far from 0, and two routers are held against the reference.
    assert lines["least_queue"].p_value == lines["round_robin"].p_value == pytest.approx(2 * 2 / 2**8)
    assert lines["bound"].p_value is None and lines["bound"].difference is not None


@pytest.mark.parametrize(("seeds", "best"), [(6, None), (8, "least_queue")])
def test_the_best_router_beats_every_other_after_correction(
    tmp_path: Path, seeds: int, best: str | None
) -> None:
    base = luck(2, seeds)
    scores = {"adaptive": base, "least_queue": base + 0.1, "round_robin": base - 0.1, "bound": base + 0.3}
    results = results_of(tmp_path / "run", scores)
    found = analyse(results)
    assert found.best == best
    assert found.tied == ([] if best else ["least_queue", "adaptive", "round_robin"])
    said = " ".join(verdict(results, found))
    assert ("least_queue ★" in said) == (best is not None)
    # 2 · 2 / 2^6 is above 0.05, whatever the scores are.
    assert ("no corrected p can be below 0.062" in said) == (best is None)


def test_routers_that_are_not_told_apart_are_named(tmp_path: Path) -> None:
    base, twin = luck(2, 12), luck(2, 12, seed=5)
    scores = {
        "adaptive": base,
        "least_queue": np.sort(base, axis=1)[:, ::-1] + 1e-4,
        "round_robin": twin - 0.4,
    }
    found = analyse(results_of(tmp_path / "run", scores))
    assert found.best is None and found.tied == ["least_queue", "adaptive"]


def test_a_router_alone_is_neither_best_nor_tied(tmp_path: Path) -> None:
    found = analyse(results_of(tmp_path / "run", {"adaptive": luck(2, 8), "bound": luck(2, 8)}))
    assert found.best is None and found.tied == []


def test_normalised_scores_go_from_the_random_router_to_the_best_documented_one(tmp_path: Path) -> None:
    low = luck(3, 6)
    scores = {"random": low, "adaptive": low + 0.2, "least_queue": low + 0.1, "clairvoyant": low + 0.3}
    scores["clairvoyant"][2] = scores["adaptive"][2] + 0.005
    part = {"groups": {"documented": ["adaptive", "least_queue"]}}
    found = analyse(results_of(tmp_path / "run", scores, "adaptive", part))
    assert found.normalised is not None
    assert found.normalised.kept == [0, 1] and list(found.normalised.left_out) == [2]
    for name, mean in (("random", 0.0), ("adaptive", 1.0), ("least_queue", 0.5), ("clairvoyant", 1.5)):
        np.testing.assert_allclose(found.normalised.scores[name].mean(axis=1), mean, atol=1e-12)
    assert analyse(results_of(tmp_path / "plain", scores, "adaptive")).normalised is None


def test_what_stands_beside_the_score_is_worked_by_hand(tmp_path: Path) -> None:
    p99 = {"adaptive": [[10.0, 20.0, 60.0], [40.0, math.inf, math.inf], [30.0, 30.0, NAN]]}
    largest = {"adaptive": [[0.2, 0.4, NAN], [0.6, 0.6, 0.6], [NAN, NAN, NAN]]}
    results = results_of(
        tmp_path / "run", {"adaptive": luck(3, 3)}, p99_all_ms=p99, attainment_largest_5pct=largest
    )
    (line,) = analyse(results).lines
    assert line.beside == (30.0, pytest.approx(0.45))  # medians 20, ∞ and 30; means 0.3 and 0.6
    assert over_conditions(np.array([[1.0, math.inf], [math.inf, math.inf]]), median=True) == math.inf
    assert over_conditions(np.full((2, 2), NAN), median=False) is None


@pytest.mark.parametrize("without", [frozenset(), frozenset({("least_queue", 1, 0)})])
def test_episodes_in_shards_say_what_episodes_in_csv_say(
    tmp_path: Path, without: frozenset[tuple[str, int, int]]
) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra `studies`")
    scores = {"adaptive": luck(2, 5), "least_queue": luck(2, 5, seed=1), "bound": luck(2, 5, seed=2)}
    scores["bound"][0, 0] = NAN
    text = analyse(results_of(tmp_path / "text", scores, without=without))
    assert analyse(results_of(tmp_path / "shards", scores, shards=True, without=without)) == text
    assert text.undefined == ["bound"] and len(text.conditions) == 2 - bool(without)


def test_incomplete_results_are_over_the_conditions_that_all_who_have_begun_have_finished(
    tmp_path: Path,
) -> None:
    scores = {"adaptive": luck(3, 4), "least_queue": luck(3, 4, seed=1), "round_robin": luck(3, 4, seed=2)}
    unplayed = frozenset(("round_robin", k, s) for k in range(3) for s in range(4))
    results = results_of(tmp_path / "run", scores, without=unplayed | {("least_queue", 2, 3)})
    found = analyse(results)
    assert (found.played, found.planned) == (23, 36)
    assert found.conditions == ["place 0", "place 1"] and found.waiting == ["round_robin"]
    assert [line.label for line in found.lines] == ["adaptive", "least_queue"]
    assert found.lines[0].mean == pytest.approx(scores["adaptive"][:2].mean())


def test_where_no_condition_is_finished_by_all_it_is_over_routers_that_are(tmp_path: Path) -> None:
    scores = {"adaptive": luck(2, 4), "least_queue": luck(2, 4, seed=1)}
    missing = frozenset({("least_queue", 0, 1), ("least_queue", 1, 1)})
    found = analyse(results_of(tmp_path / "run", scores, without=missing))
    assert found.conditions == ["place 0", "place 1"] and found.waiting == ["least_queue"]
    assert [line.label for line in found.lines] == ["adaptive"]


def test_a_router_without_a_score_in_some_episode_is_not_compared(tmp_path: Path) -> None:
    scores = {"adaptive": luck(2, 4), "least_queue": luck(2, 4, seed=1)}
    scores["adaptive"][1, 1] = NAN
    found = analyse(results_of(tmp_path / "run", scores))
    assert found.undefined == ["adaptive"] and found.waiting == []
    assert [(line.label, line.difference) for line in found.lines] == [("least_queue", None)]


def test_less_is_better_of_batches_throughout() -> None:
    noise = 0.01 * luck(2, 8)
    results = made(
        {"random": 0.9 + noise, "cema": 0.5 + noise, "greedy": 0.3 + noise},
        family="cloud_edge",
        part={"groups": {"documented": ["cema"]}},
        reference="cema",
    )
    found = analyse(results)
    lines = {line.label: line for line in found.lines}
    assert found.best == "greedy"
    assert lines["greedy"].better is not None and lines["random"].better is not None
    assert (lines["greedy"].better.value, lines["random"].better.value) == (1.0, 0.0)
    assert lines["greedy"].normalised is not None
    assert lines["greedy"].normalised.value == pytest.approx(1.5, abs=0.02)


@pytest.mark.parametrize("absent", ["random", "least_queue", "clairvoyant", "round_robin"])
def test_scores_are_normalised_once_all_that_the_scale_is_of_are_there(absent: str) -> None:
    low = luck(2, 6)
    scores = {"adaptive": low + 0.2, "random": low, "least_queue": low + 0.3, "clairvoyant": low + 0.5}
    scores = {**scores, "round_robin": low + 0.1, absent: np.full((2, 6), NAN)}
    found = analyse(made(scores, part={"groups": {"documented": ["random", "adaptive", "least_queue"]}}))
    assert found.waiting == [absent]
    assert (found.normalised is None) == (absent != "round_robin")


# What is said of it


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (1, "With 1 seed and 2 comparisons no corrected p can be below 1.000"),
        (6, "With 6 seeds and 2 comparisons no corrected p can be below 0.062"),
    ],
)
def test_with_too_few_seeds_to_tell_routers_apart_none_is_said_to_tie(seeds: int, said: str) -> None:
    base = luck(2, seeds)
    results = made({"adaptive": base, "least_queue": base + 0.1, "round_robin": base - 0.1})
    first, *others = verdict(results, analyse(results))
    assert first.startswith(f"least_queue has the best mean. {said}, however large a difference is")
    assert not any("No single best" in line for line in others)


@pytest.mark.parametrize(("optimal", "below"), [(0.4, True), (0.3, False), (0.3 + 1e-13, False)])
def test_routers_that_are_better_than_optimal_are_explained(optimal: float, below: bool) -> None:
    noise = 0.01 * luck(2, 8)
    scores = {"greedy": 0.3 + noise, "cema": 0.5 + noise, "optimal": optimal + noise}
    results = made(scores, family="cloud_edge")
    found = analyse(results)
    said = "Better than optimal in the mean: greedy. Optima are proven on the predictions"
    assert any(line.startswith(said) for line in verdict(results, found)) == below
    assert "may put J below optimal's" in how_to_read(results, found)


def test_a_difference_whose_interval_holds_0_is_a_tie() -> None:
    base = luck(2, 8)
    scores = {"adaptive": base, "least_queue": base + 0.1, "round_robin": base[:, ::-1]}
    cells = [row[3] for row in headline(made(scores)).rows]
    assert cells[:2] == ["reference", "+10.0 [+10.0, +10.0]"] and cells[2].startswith("tie ")


def test_seeds_are_counted_for_one_point_and_for_the_difference_seen() -> None:
    a, b = luck(4, 9, seed=1), luck(4, 9, seed=2)
    results = made({"adaptive": a, "least_queue": b})
    sheet = seeds_table(results, analyse(results))
    means = b.mean(axis=0), a.mean(axis=0)
    seen = float((means[0] - means[1]).mean())
    needed = [*seeds_needed(*means, 0.01), *seeds_needed(*means, seen)]
    assert len(set(needed)) == 4
    assert sheet.headers[1:] == (
        *("Δ observed, points", "1 point: paired", "1 point: unpaired"),
        *("Δ observed: paired", "Δ observed: unpaired"),
    )
    [row] = sheet.rows
    assert row[:2] == ["least_queue", f"{100.0 * seen:+.1f}"]
    assert [int(cell.replace("\u202f", "")) for cell in row[2:]] == needed


def test_a_table_says_over_how_many_conditions_it_is() -> None:
    scores = {"adaptive": luck(3, 2), "least_queue": luck(3, 2)}
    assert headline(made(scores)).title == "All 3 conditions, attainment"
    scores["adaptive"][2, 1] = NAN
    assert headline(made(scores)).title == "2 of 3 conditions, attainment"
    one = made(
        {"random": [[0.1, 0.2]], "adaptive": [[0.5, 0.6]]}, part={"groups": {"documented": ["adaptive"]}}
    )
    assert headline(one).title == "One condition, attainment"
    assert "over 1 of 1 condition. " in how_to_read(one, analyse(one))


# What a report needs


def _drop(*path: str) -> Callable[[Any], None]:
    def change(plan: Any) -> None:
        for key in path[:-1]:
            plan = plan[key] if isinstance(plan, dict) else plan[int(key)]
        del plan[path[-1]]

    return change


def _set(value: Any, *path: str) -> Callable[[Any], None]:
    def change(plan: Any) -> None:
        for key in path[:-1]:
            plan = plan[key]
        plan[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_drop("run", "roles"), r"lacks run\.roles: it was made with routing-gym 0\.0\.9"),
        (_drop("versions"), r"lacks versions: it was made with routing-gym of an unknown version"),
        (_drop("run", "conditions", "1", "labels"), r"lacks run\.conditions\.labels"),
        (_set("edge", "run", "family"), r"family = edge: must be of cluster, cloud_edge"),
        (_set(["router"], "run", "roles"), r"run\.roles = \['router'\]"),
    ],
)
def test_a_plan_without_what_is_needed_is_refused_with_its_version(
    tmp_path: Path, change: Callable[[Any], None], said: str
) -> None:
    results = results_of(tmp_path / "run", {"adaptive": luck(2, 2), "bound": luck(2, 2)})
    results = change_plan(results, _set("0.0.9", "versions", "routing-gym"))
    results = change_plan(results, change)
    with pytest.raises(ResultsError, match=said) as caught:
        analyse(results)
    assert str(tmp_path / "run" / PLAN) in str(caught.value)
    if "lacks" in said:
        assert "needs what 0.1.0 and later write" in str(caught.value)


def test_episodes_without_the_score_are_refused(tmp_path: Path) -> None:
    results = results_of(tmp_path / "run", {"adaptive": np.full((1, 2), NAN)})
    with pytest.raises(ResultsError, match=r"episodes\.csv: no episode has attainment"):
        analyse(results)


def test_episodes_that_the_plan_does_not_list_are_refused(tmp_path: Path) -> None:
    results = results_of(tmp_path / "run", {"adaptive": luck(1, 2)})
    results = change_plan(results, _set([20_000], "run", "seeds"))
    with pytest.raises(ResultsError, match=r"has an episode of 20001, which .*config\.yaml does not list"):
        analyse(results)


def test_a_plan_of_a_newer_version_is_read_and_noticed(tmp_path: Path) -> None:
    results = results_of(tmp_path / "run", {"adaptive": luck(1, 2)})
    assert newer(results) is None
    later = change_plan(results, _set("99.0", "versions", "routing-gym"))
    assert newer(later) == "99.0" and analyse(later).lines


# How numbers are shown


def test_seeds_are_called_what_the_protocol_calls_them() -> None:
    assert seeds_said(range(20_000, 20_024)) == "24 (20000–20023; validation)"
    assert seeds_said([10_000, 30_005]) == "2 (10000, 30005; development, test)"
    assert seeds_said([7]) == "1 (7; of no range of the protocol)"
    assert seeds_said([1_000_000]) == "1 (1000000; training)"


def test_numbers_are_rounded_and_keep_the_sign_of_a_negative_zero_only_where_signs_are_shown() -> None:
    assert number(-0.0004, 100.0, 1) == "0.0" and number(-0.0, 100.0, 1, "+") == "+0.0"
    assert interval(Estimate(0.001, -0.0004, 0.002), 100.0, 1, "+") == "+0.1 [-0.0, +0.2]"
    assert (number(-0.0004, 100.0, 1, "+"), number(0.0004, 100.0, 1, "+")) == ("-0.0", "+0.0")
    assert number(-math.inf, 1.0, 1) == "-∞" and number(None, 1.0, 1) == "—"
    assert (probability(0.0004), probability(0.0314)) == ("<0.001", "0.031")


def test_the_headline_shows_a_published_mean_beside_ours(tmp_path: Path) -> None:
    part = {"published": {"adaptive": 0.7242}}
    scores = {"adaptive": np.full((2, 3), 0.725), "least_queue": np.full((2, 3), 0.5)}
    sheet = headline(results_of(tmp_path / "run", scores, part=part))
    column = sheet.headers.index("published")
    assert [row[column] for row in sheet.rows] == ["72.42", "—"]
    assert [row[1] for row in sheet.rows] == ["72.50", "50.00"]
    assert all(len(row) == len(sheet.headers) for row in sheet.rows)


def test_the_selection_shows_each_candidates_mean_and_the_chosen_one(tmp_path: Path) -> None:
    scores = {"adaptive": np.full((2, 3), 0.7), "least_queue": np.full((2, 3), 0.6)}
    sheet = selection_table(results_of(tmp_path / "run", scores), "adaptive")
    assert sheet.rows == [["adaptive", "70.00", "✓"], ["least_queue", "60.00", ""]]
