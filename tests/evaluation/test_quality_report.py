"""What is said and written of predicted quality: the deferral curve by hand, verdicts, files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from routing_gym.evaluation.quality_report import (
    FILES,
    LAMBDAS,
    MOST_GROUPS,
    about_deferral,
    deferral,
    deferral_table,
    group_table,
    model_tables,
    sentences,
    trials_table,
    write_report,
)
from routing_gym.quality.assessment import Assessment, assess
from routing_gym.quality.selection import ClusterTrial, Trial
from routing_gym.quality.tables import OutcomeTable

NOT_KNOWN = np.array([np.nan, np.nan])


def outcomes(scores: Any, costs: Any = None) -> OutcomeTable:
    """Return a table of two models."""
    table = np.asarray(scores, float)
    paid = np.full(table.shape, np.nan) if costs is None else np.asarray(costs, float)
    blank = np.full(len(table), np.nan)
    ids = tuple(map(str, range(len(table))))
    return OutcomeTable(
        "t.csv", ids, (None,) * len(table), ("",) * len(table), ("big", "small"), blank, table, paid, paid
    )


def printed(shown: Any) -> str:
    console = Console(width=140, file=io.StringIO())
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined]


# The deferral curve

# The second cluster's prompts are easy: the small model answers them as well.
ERRORS = np.array([[0.1, 0.5], [0.1, 0.5], [0.2, 0.25], [0.2, 0.25]])
SCORES = [[1.0, 0.0], [1.0, 1.0], [1.0, 1.0], [0.0, 1.0]]
COSTS = [[9.0, 1.0], [11.0, 1.0], [10.0, 1.0], [10.0, 1.0]]
EVERY = np.arange(4)
NONE = np.empty(0, np.int64)


def test_a_dearer_model_is_given_up_where_it_gains_least() -> None:
    found = deferral(ERRORS, outcomes(SCORES, COSTS), EVERY, NONE, NOT_KNOWN)
    assert found is not None
    np.testing.assert_array_equal(found.prices, [10.0, 1.0])
    assert (found.rows, found.cost) == (4, "USD a prompt")
    assert found.singles == {"big": (0.75, 10.0), "small": (0.75, 1.0)}
    # The easy cluster turns to the small model at λ = .05 / 9, the other one at .4 / 9.
    np.testing.assert_allclose(
        found.curve, [(0.0, 0.75, 10.0), (0.225 / 9, 1.0, 5.5), (0.8 / 9, 0.75, 1.0)], rtol=1e-12
    )
    assert about_deferral(found) == (
        "The curve reaches the mean score of small, the best single model (mean score 0.750 at 1 USD a "
        "prompt) at 1, 100 % of that."
    )


def test_only_prompts_with_all_scores_and_costs_count() -> None:
    scores, costs = np.array(SCORES), np.array(COSTS)
    scores[0, 1], costs[1, 0] = np.nan, np.nan
    found = deferral(ERRORS, outcomes(scores, costs), EVERY, NONE, NOT_KNOWN)
    assert found is not None and found.rows == 2
    assert found.singles["big"] == (0.5, 10.0)
    np.testing.assert_array_equal(found.prices, [29 / 3, 1.0])


def test_prices_are_of_the_prompts_fitted_to() -> None:
    table = outcomes([[0.0, 0.0]] * 3 + SCORES, [[60.0, 6.0], [80.0, np.nan], [500.0, 50.0], *COSTS])
    found = deferral(ERRORS, table, EVERY + 3, np.array([0, 1]), NOT_KNOWN)  # the third is in neither
    assert found is not None and not found.peeked
    np.testing.assert_array_equal(found.prices, [60.0, 6.0])
    assert found.singles["big"] == (0.75, 10.0)
    assert "held-out prompts" not in printed(deferral_table(found))


def test_prices_of_held_out_prompts_are_called_so() -> None:
    table = outcomes([[0.0, 0.0], *SCORES], [[60.0, np.nan], *COSTS])
    found = deferral(ERRORS, table, EVERY + 1, np.array([0]), NOT_KNOWN)
    assert found is not None and found.peeked
    np.testing.assert_array_equal(found.prices, [10.0, 1.0])
    shown = " ".join(printed(deferral_table(found)).split())
    assert "prices are mean costs of held-out prompts, as no others have recorded costs" in shown


def test_without_costs_token_prices_are_taken_and_without_these_there_is_no_curve() -> None:
    found = deferral(ERRORS, outcomes(SCORES), EVERY, NONE, np.array([20.0, 2.0]))
    assert found is not None and found.cost == "USD per 1M tokens" and not found.peeked
    assert found.singles == {"big": (0.75, 20.0), "small": (0.75, 2.0)}
    assert deferral(ERRORS, outcomes(SCORES), EVERY, NONE, NOT_KNOWN) is None
    assert deferral(ERRORS, outcomes(SCORES), EVERY, NONE, np.array([20.0, np.nan])) is None
    assert deferral(ERRORS, outcomes(np.full((4, 2), np.nan), COSTS), EVERY, NONE, NOT_KNOWN) is None


def test_of_many_clusters_a_choice_of_weights_still_reaches_from_end_to_end() -> None:
    rng = np.random.default_rng(3)
    errors = np.column_stack([np.zeros(500), rng.uniform(0.0, 1.0, 500)])
    table = outcomes(np.ones((500, 2)), np.tile([10.0, 1.0], (500, 1)))
    found = deferral(errors, table, np.arange(500), NONE, NOT_KNOWN)
    assert found is not None and len(found.curve) == LAMBDAS
    weights, _, costs = found.curve.T
    assert (weights[0], costs[0], costs[-1]) == (0.0, 10.0, 1.0)
    assert np.all(np.diff(weights) > 0) and np.all(np.diff(costs) < 0)


def test_where_the_dearer_model_never_gains_the_cheaper_one_is_all_there_is() -> None:
    found = deferral(ERRORS[:, ::-1], outcomes(SCORES, COSTS), EVERY, NONE, NOT_KNOWN)
    assert found is not None and found.curve.tolist() == [[0.0, 0.75, 1.0]]


def test_a_curve_below_the_best_model_is_called_so() -> None:
    found = deferral(ERRORS, outcomes([[1, 0], [1, 0], [1, 1], [1, 0]], COSTS), EVERY, NONE, NOT_KNOWN)
    assert found is not None
    found = found._replace(curve=found.curve[found.curve[:, 1] < 1.0])
    assert about_deferral(found).startswith("The curve does not reach the mean score of big, the best single")
    assert about_deferral(found).endswith("its best is 0.750.")


# Verdicts


def assessed(groups: bool = True, rows: int = 400) -> Assessment:
    """Assess a model that is predicted well, one ranked but too boldly, noise, and two hardly known."""
    rng = np.random.default_rng(0)
    truth = (rng.random((rows, 5)) < 0.5).astype(float)
    good = np.where(truth[:, 0] == 1, 0.7, 0.3) + rng.uniform(-0.1, 0.1, rows)
    bold = np.where(rng.random(rows) < 0.62, truth[:, 1], 1.0 - truth[:, 1])
    predicted = np.column_stack([good, bold, rng.random(rows), good, good])
    truth[:, 3] = np.where(np.arange(rows) < 5, truth[:, 3], np.nan)
    truth[:, 4] = np.nan
    tasks = [("law", "maths")[k % 2] if groups else "" for k in range(rows)]
    return assess(truth, predicted, np.full(5, 0.5), ["good", "bold", "noise", "rare", "unknown"], tasks)


def test_every_model_is_said_to_be_what_it_is() -> None:
    signal, ranked, none, few, unknown, *_ = sentences(assessed())
    assert signal.startswith("The prediction carries a signal for good: ")
    assert ranked.startswith(
        "It ranks prompts better than by chance, but is not shown to come closer than always"
    )
    assert "for bold (squared error 0." in ranked and "noise" not in ranked
    assert none.startswith("It carries no signal for noise (AUC 0.") and "bold" not in none
    assert few.endswith("too few to tell for rare.")
    assert unknown == "No held-out prompt has a recorded score of unknown."


def test_tasks_are_told_apart() -> None:
    said = sentences(assessed())[5:]
    assert said[0].startswith("Among prompts of the same task it ranks better than by chance for good (")
    assert "bold (" in said[0] and "all models (" in said[0]
    assert said[1].startswith("Among prompts of the same task it ranks no better than by chance for noise (")
    assert said[2].startswith(
        "Task by task, 4 of 6 pairs of a task and a model with prompts enough are ranked "
    )
    assert [line[: line.index(" (")] for line in said[3:]] == [
        "Within law it carries no signal for noise",
        "Within maths it carries no signal for noise",
    ]


def test_without_tasks_nothing_is_said_of_them() -> None:
    found = assessed(groups=False)
    assert not [line for line in sentences(found) if "task" in line]
    assert group_table(found) is None
    assert "within tasks" not in printed(model_tables(found)[0])


def test_a_task_without_any_signal_and_small_ones_are_named() -> None:
    rng = np.random.default_rng(1)
    truth = (rng.random((300, 1)) < 0.5).astype(float)
    groups = ["noise"] * 280 + [f"tiny {k % 5}" for k in range(20)]
    said = sentences(assess(truth, rng.random((300, 1)), [0.5], ["x"], groups))
    assert "It carries no signal, for any model with prompts enough, within noise." in said
    assert "5 of 6 tasks have too few held-out prompts to tell, for every model." in said


def test_of_many_tasks_with_some_signal_the_largest_are_spelt_out() -> None:
    rng = np.random.default_rng(5)
    tasks = [f"task {k:02}" for k in range(MOST_GROUPS + 3) for _ in range(60)]
    truth = np.tile([[0.0, 1.0], [1.0, 0.0]], (len(tasks) // 2, 1))
    predicted = np.column_stack([truth[:, 0], rng.random(len(tasks))])
    found = assess(truth, predicted, [0.5, 0.5], ["good", "noise"], tasks)
    said = sentences(found)
    spelt_out = [line for line in said if line.startswith("Within task")]
    assert len(spelt_out) == MOST_GROUPS and all("for noise (" in line for line in spelt_out)
    more = len(found.no_signal) - MOST_GROUPS
    assert more > 0 and f"Likewise for some models within {more} more tasks: see groups.csv." in said


# Tables and files


def test_tables_show_the_figures_and_leave_undefined_ones_out() -> None:
    found = assessed()
    areas, errors = (printed(table) for table in model_tables(found))
    good = found.models[0]
    assert f"{good.auc.value:.3f} [{good.auc.low:.3f}, {good.auc.high:.3f}]" in areas
    assert f"{good.mse:.4f}" in errors and f"{good.mae_of_mean:.4f}" in errors
    [line] = [line for line in areas.splitlines() if "unknown" in line]
    assert line.count("—") == 2 and "nan" not in areas + errors
    shown = printed(group_table(found))
    assert "law" in shown and "2 of 3" in shown and "Within tasks" in shown


def test_of_many_tasks_the_largest_are_shown() -> None:
    rng = np.random.default_rng(2)
    groups = [f"task {k:02}" for k in range(20) for _ in range(k + 1)]
    truth = (rng.random((len(groups), 1)) < 0.5).astype(float)
    shown = printed(group_table(assess(truth, rng.random(truth.shape), [0.5], ["x"], groups)))
    assert f"Within the {MOST_GROUPS} largest of 20 tasks" in shown
    assert [f"task {k:02}" in shown for k in range(20)] == [k >= 20 - MOST_GROUPS for k in range(20)]


def test_the_choice_is_marked_in_what_was_tried() -> None:
    trials = [Trial(5, 0.3, 0.2, 0.4, 0.6, 4.5), Trial(10, 0.3, 0.1, 0.3, 0.7, 9.0)]
    shown = printed(trials_table("tried", trials, trials[1])).splitlines()
    assert [("→" in line) for line in shown if "0.3" in line] == [False, True]


def test_a_few_points_of_the_curve_stand_above_every_model_alone() -> None:
    found = deferral(ERRORS, outcomes(SCORES, COSTS), EVERY, NONE, NOT_KNOWN)
    assert found is not None
    shown = printed(deferral_table(found))
    assert "λ = 0 " in shown and "always big" in shown and "over 4 prompts" in shown
    assert shown.count("λ =") == 3
    many = found._replace(curve=np.tile(found.curve, (20, 1)))
    assert printed(deferral_table(many)).count("λ =") == 11


def cells(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_files_hold_what_was_measured(tmp_path: Path) -> None:
    found = assessed()
    curve = deferral(ERRORS, outcomes(SCORES, COSTS), EVERY, NONE, NOT_KNOWN)
    trials = {"neighbours": [Trial(5, 0.3, 0.2, 0.4, 0.6, 4.5)], "clusters": [ClusterTrial(5, 0.2, 0.4, 0.6)]}
    written = write_report(tmp_path / "a" / "b", found, curve, trials, {"table": "t.csv"})
    assert {path.name for path in written} == set(FILES) - {path for path in FILES if path.endswith("png")}
    summary = json.loads((tmp_path / "a" / "b" / "summary.json").read_text(encoding="utf-8"))
    assert summary["table"] == "t.csv" and curve is not None
    assert summary["deferral"]["curve"] == curve.curve.tolist()
    assert summary["cross_validation"]["clusters"] == [{"clusters": 5, "mse": 0.2, "mae": 0.4, "auc": 0.6}]
    for rows in (summary["models"], cells(tmp_path / "a" / "b" / "models.csv")):
        assert [row["model"] for row in rows] == [*(one.model for one in found.models), "all models"]
        assert float(rows[0]["auc_low"]) == found.models[0].auc.low
        assert float(rows[0]["gain_high"]) == found.models[0].gain.high
        assert rows[4]["mse"] in (None, "")
    assert summary["models"][0]["bins"][0] == found.models[0].bins[0]._asdict()
    assert len(summary["groups"]) == len(cells(tmp_path / "a" / "b" / "groups.csv")) == len(found.groups)
    [*points] = cells(tmp_path / "a" / "b" / "deferral.csv")
    assert [float(point["lambda"]) for point in points] == curve.curve[:, 0].tolist()


def test_an_earlier_evaluation_goes_but_not_what_was_chosen_by(tmp_path: Path) -> None:
    for name in (*FILES, "notes.txt"):
        (tmp_path / name).write_text("old")
    write_report(tmp_path, assessed(groups=False), None, {}, {})
    left = {path.name for path in tmp_path.iterdir() if path.read_text(encoding="utf-8") == "old"}
    assert left == {"notes.txt", *(name for name in FILES if name.startswith("cross_validation"))}
    assert {path.name for path in tmp_path.iterdir()} == left | {"summary.json", "models.csv"}
