"""What `routing-gym quality` shows of predicted quality: sentences, tables, the deferral curve, and files."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from routing_gym.evaluation.results import strict_json
from routing_gym.quality.assessment import POOLED, Assessment, Auc, Estimate, Figures, GroupFigures
from routing_gym.quality.clusters import deferral_curve
from routing_gym.quality.folder import EVALUATION_FILES
from routing_gym.quality.tables import OutcomeTable

FILES = EVALUATION_FILES  # all that is ever written into a folder
LAMBDAS = 401
MOST_GROUPS = 12
CHANCE = 0.025  # of intervals of 95 % that lie above ½ where there is no signal
DECIDES = (
    "The squared error decides: among constants the mean has the least, while 0 or 1 throughout may have a "
    "lower absolute error than any honest probability."
)
NO_CURVE = (
    "There is no deferral curve: it needs recorded costs or the prices of all models, and held-out prompts "
    "with a score of each."
)

Floats = NDArray[np.float64]
# What cross-validation tried, by what is chosen: `Trial`s for "neighbours", `ClusterTrial`s for "clusters".
Trials = dict[str, list[Any]]


class Deferral(NamedTuple):
    """The deferral curve of errors by cluster, and every model alone, over the same prompts.

    Attributes:
        rows: prompts, those for which every model's score and cost are known.
        cost: what the costs are, with their unit.
        prices: (K,) what λ is multiplied with, in the same unit.
        curve: (w, 3) λ, mean score, mean cost.
        singles: (mean score, mean cost) of always taking a model.
        peeked: whether the prices are means over held-out prompts, as no others have recorded costs.
    """

    rows: int
    cost: str
    prices: Floats
    curve: Floats
    singles: dict[str, tuple[float, float]]
    peeked: bool = False


def deferral(
    errors: Floats,
    table: OutcomeTable,
    rows: NDArray[np.int64],
    fitted: NDArray[np.int64],
    token_prices: Floats,
) -> Deferral | None:
    """Sweep λ of argmin error + λ·price (DESIGN 5, uniroute) from 0 to where the cheapest is always chosen.

    A model's price is its mean cost over the prompts for which every model's cost is recorded: those fitted
    to, or all where the table has none of these. Without costs, price and cost are the token price.

    Args:
        errors: (q, K) by cluster, of the prompts `rows`; K models in the order of the table's.
        table: the recorded scores and costs.
        rows: (q,) held-out rows of the table.
        fitted: rows of the table that are not held out.
        token_prices: (K,) mean of the prices in and out, USD per 1M tokens; NaN where not known.

    Returns:
        None if there are neither costs nor prices of all models, or no prompt has a score of all of them.
    """
    paid = np.flatnonzero(np.isfinite(table.costs).all(axis=1))
    known = np.intersect1d(paid, fitted)
    peeked = bool(len(paid)) and not len(known)
    if len(paid):
        cost, costs = "USD a prompt", table.costs[rows]
        prices = table.costs[paid if peeked else known].mean(axis=0)
    else:
        cost, prices = "USD per 1M tokens", token_prices
        costs = np.broadcast_to(prices, errors.shape)
    scores = table.scores[rows]
    whole = np.isfinite(scores).all(axis=1) & np.isfinite(costs).all(axis=1)
    if not whole.any() or not np.isfinite(prices).all():
        return None
    errors, scores, costs = errors[whole], scores[whole], costs[whole]
    curve = deferral_curve(errors, prices, scores, costs, _weights(np.unique(errors, axis=0), prices))
    singles = {
        model: (float(scores[:, k].mean()), float(costs[:, k].mean())) for k, model in enumerate(table.models)
    }
    points = np.column_stack([curve.weights, curve.scores, curve.costs])
    return Deferral(len(errors), cost, prices, points, singles, peeked)


def _weights(errors: Floats, prices: Floats) -> list[float]:
    """Return λ, rising from 0, between those at which a cheaper model comes to be preferred somewhere."""
    saved = prices[:, None] - prices[None, :]
    lost = errors[:, None, :] - errors[:, :, None]
    changes = lost / np.where(saved > 0.0, saved, np.nan)
    changes = np.unique(changes[changes > 0.0])
    if not len(changes):
        return [0.0]
    shown = changes[np.linspace(0, len(changes) - 1, min(len(changes), LAMBDAS - 1)).astype(np.int64)]
    return [0.0, *((shown[1:] + shown[:-1]) / 2.0).tolist(), 2.0 * float(shown[-1])]


def sentences(assessment: Assessment) -> list[str]:
    """Say for which models, and within which tasks, the prediction carries a signal and where it does not."""
    said = []
    models = [one for one in assessment.models if one.rows]
    enough = [one for one in models if one.auc.enough]
    good = [one.model for one in enough if one.auc.ranks and one.improves]
    if good:
        said.append(
            f"The prediction carries a signal for {', '.join(good)}: better prompts are told from worse, "
            "and the squared error is below that of always the mean."
        )
    ranked = [f"{one.model} ({_gain(one)})" for one in enough if one.auc.ranks and not one.improves]
    if ranked:
        said.append(
            "It ranks prompts better than by chance, but is not shown to come closer than always the mean, "
            f"for {'; '.join(ranked)}."
        )
    none = [f"{one.model} (AUC {area(one.auc)}; {_gain(one)})" for one in enough if not one.auc.ranks]
    if none:
        said.append(f"It carries no signal for {'; '.join(none)}.")
    few = [one.model for one in models if not one.auc.enough]
    if few:
        said.append(
            f"Held-out prompts, or different scores among them, are too few to tell for {', '.join(few)}."
        )
    unknown = [one.model for one in assessment.models if not one.rows]
    if unknown:
        said.append(f"No held-out prompt has a recorded score of {', '.join(unknown)}.")
    return said + _about_tasks(assessment)


def _gain(one: Figures) -> str:
    low, high = one.gain[1:]
    return f"squared error {one.mse:.4f} against {one.mse_of_mean:.4f}, less by {low:+.4f} to {high:+.4f}"


def _about_tasks(assessment: Assessment) -> list[str]:
    tasks = _by_size(assessment)
    if len(tasks) < 2:
        return []
    said = []
    overall = [one for one in (*assessment.models, assessment.pooled) if one.auc_within_tasks.enough]
    for above, what in ((True, "better than by chance"), (False, "no better than by chance")):
        named = [
            f"{one.model} ({area(one.auc_within_tasks)})"
            for one in overall
            if one.auc_within_tasks.ranks == above
        ]
        if named:
            said.append(f"Among prompts of the same task it ranks {what} for {', '.join(named)}.")
    pairs = [one for one in assessment.groups if one.model != POOLED]
    told = [one for one in pairs if one.auc.enough]
    good = [one for one in told if one.auc.ranks]
    said.append(
        f"Task by task, {len(good)} of {len(told)} pairs of a task and a model with prompts enough are "
        f"ranked better than by chance; by chance alone about {CHANCE * len(told):.0f} would be."
    )
    partly, without = [], []
    for task in tasks:
        here = [one for one in told if one.group == task]
        lacking = [one for one in here if not one.auc.ranks]
        if here and len(lacking) == len(here):
            without.append(task)
        elif lacking:
            named = [f"{one.model} ({area(one.auc)})" for one in lacking]
            partly.append(f"Within {task} it carries no signal for {', '.join(named)}.")
    said += partly[:MOST_GROUPS]
    if len(partly) > MOST_GROUPS:
        said.append(
            f"Likewise for some models within {len(partly) - MOST_GROUPS} more tasks: see groups.csv."
        )
    if without:
        said.append(f"It carries no signal, for any model with prompts enough, within {', '.join(without)}.")
    few = len(set(tasks) - {one.group for one in told})
    if few:
        said.append(f"{few} of {len(tasks)} tasks have too few held-out prompts to tell, for every model.")
    return said


def _by_size(assessment: Assessment) -> list[str]:
    """Return the tasks, those of most prompts first."""
    most: dict[str, int] = {}
    for one in assessment.groups:
        if one.model != POOLED:
            most[one.group] = max(one.rows, most.get(one.group, 0))
    return sorted(most, key=lambda task: -most[task])


def about_deferral(found: Deferral) -> str:
    """Say what the curve saves on the best single model, at the same mean score."""
    best, (score, cost) = max(found.singles.items(), key=lambda item: (item[1][0], -item[1][1]))
    alone = f"{best}, the best single model (mean score {score:.3f} at {cost:.4g} {found.cost})"
    reached = found.curve[found.curve[:, 1] >= score - 1e-12]
    if not len(reached):
        return (
            f"The curve does not reach the mean score of {alone}; its best is {found.curve[:, 1].max():.3f}."
        )
    least = float(reached[:, 2].min())
    share = f", {100.0 * least / cost:.0f} % of that" if cost else ""
    return f"The curve reaches the mean score of {alone} at {least:.4g}{share}."


def area(auc: Auc) -> str:
    """Format an AUC with its interval."""
    return "—" if math.isnan(auc.value) else f"{auc.value:.3f} [{auc.low:.3f}, {auc.high:.3f}]"


def model_tables(assessment: Assessment) -> list[Table]:
    """Return how well each model's prompts are ranked, and how far off the predictions are."""
    shown = (*assessment.models, assessment.pooled)
    within = ["within tasks [95 %]"] if len(_by_size(assessment)) > 1 else []
    areas = [
        [one.model, f"{one.rows:,}", area(one.auc), *(area(one.auc_within_tasks) for _ in within)]
        for one in shown
    ]
    errors = [
        [one.model, _number(one.mean_score, 3), _number(one.calibration_error, 3)]
        + [_number(value, 4) for value in (one.mae, one.mae_of_mean, one.mse, one.mse_of_mean)]
        for one in shown
    ]
    headers = "model", "mean score", "calibration error", "MAE", "of the mean", "MSE", "of the mean"
    return [
        table("Ranking", ("model", "prompts", "AUC [95 %]", *within), areas),
        table("Errors, beside always the mean", headers, errors),
    ]


def group_table(assessment: Assessment) -> Table | None:
    """Return the AUC within the largest tasks; None where there are not two."""
    tasks = _by_size(assessment)
    if len(tasks) < 2:
        return None
    rows = []
    for task in tasks[:MOST_GROUPS]:
        *here, pooled = (one for one in assessment.groups if one.group == task)
        told = [one.auc.ranks for one in here if one.auc.enough]
        rows.append(
            [task, f"{max(one.rows for one in here):,}", area(pooled.auc), f"{sum(told)} of {len(told)}"]
        )
    title = (
        f"Within the {len(rows)} largest of {len(tasks)} tasks" if len(rows) < len(tasks) else "Within tasks"
    )
    return table(title, ("task", "prompts", f"AUC [95 %], {POOLED}", "models ranked above ½"), rows)


def deferral_table(found: Deferral) -> Table:
    """Return some points of the curve and every model alone."""
    shown = np.unique(np.linspace(0, len(found.curve) - 1, 11).astype(np.int64))
    rows = [
        [f"λ = {weight:.4g}", f"{score:.3f}", f"{cost:.4g}"] for weight, score, cost in found.curve[shown]
    ]
    rows += [
        [f"always {model}", f"{score:.3f}", f"{cost:.4g}"] for model, (score, cost) in found.singles.items()
    ]
    title = f"Deferral curve, over {found.rows:,} prompts"
    if found.peeked:
        title += "; prices are mean costs of held-out prompts, as no others have recorded costs"
    return table(title, ("choice", "mean score", f"mean cost, {found.cost}"), rows)


def trials_table(title: str, trials: Sequence[Any], best: Any) -> Table:
    """Return what cross-validation tried, the choice marked."""
    fields = best._fields
    rows = [
        [f"{'→ ' if trial == best else ''}{trial[0]}"]
        + [
            f"{value:g}" if field == "threshold" else f"{value:.4f}"
            for field, value in zip(fields[1:], trial[1:], strict=True)
        ]
        for trial in trials
    ]
    return table(title, fields, rows)


def table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a rich table whose first column is text and the others are figures."""
    made = Table(title=title, title_justify="left")
    for k, header in enumerate(headers):
        made.add_column(header, justify="right" if k else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def _number(value: float, digits: int) -> str:
    return "—" if math.isnan(value) else f"{value:.{digits}f}"


def write_report(
    folder: Path, assessment: Assessment, found: Deferral | None, trials: Trials, facts: Mapping[str, Any]
) -> list[Path]:
    """Write what there is as JSON and CSV (`FILES`) into a folder; return the paths.

    Args:
        folder: made where it is missing. What an earlier evaluation left there goes; what cross-validation
            did stays, unless there is another.
        assessment: what was measured.
        found: the deferral curve, if there is one.
        trials: what cross-validation tried.
        facts: what else the summary holds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if trials or not name.startswith("cross_validation"):
            (folder / name).unlink(missing_ok=True)
    models = [_flat(one) for one in (*assessment.models, assessment.pooled)]
    groups = [_flat(one) for one in assessment.groups]
    summary: dict[str, Any] = {
        **facts,
        "models": [
            {**row, "bins": [held._asdict() for held in one.bins]}
            for row, one in zip(models, (*assessment.models, assessment.pooled), strict=True)
        ],
        "groups": groups,
        "cross_validation": {kind: [trial._asdict() for trial in tried] for kind, tried in trials.items()},
        "deferral": found
        and {**found._asdict(), "prices": found.prices.tolist(), "curve": found.curve.tolist()},
    }
    path = folder / "summary.json"
    text = json.dumps(strict_json(summary), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text, encoding="utf-8")
    sheets = {"models": models, "groups": groups}
    if found is not None:
        names = ("lambda", "mean_score", "mean_cost")
        sheets["deferral"] = [dict(zip(names, point, strict=True)) for point in found.curve.tolist()]
    for kind, tried in trials.items():
        sheets[f"cross_validation_{kind}"] = [trial._asdict() for trial in tried]
    return [path, *(_write_csv(folder / f"{name}.csv", rows) for name, rows in sheets.items() if rows)]


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows of the same keys, at least one; NaN is an empty cell. Return the path."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(rows[0])
        writer.writerows(["" if value != value else value for value in row.values()] for row in rows)
    return path


def _flat(figures: Figures | GroupFigures) -> dict[str, Any]:
    """Return figures as one row: an interval is three cells."""
    row: dict[str, Any] = {}
    fields = figures._asdict() if isinstance(figures, GroupFigures) else vars(figures)
    for name, value in fields.items():
        if isinstance(value, (Auc, Estimate)):
            row[name] = value.value
            row |= {f"{name}_{part}": cell for part, cell in value._asdict().items() if part != "value"}
        elif name != "bins":
            row[name] = value
    return row
