"""Fitting contents to published facts: solving for success rates, and a table of the fit (DESIGN 4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.contents import Contents, Floats

QUANTILES = (0.1, 0.5, 0.9, 0.99)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(96)
_WEIGHTS = _WEIGHTS / math.sqrt(2.0 * math.pi)


def mean_success(intercept: Any, difficulty_sd: float) -> Floats:
    """Return E[sigmoid(intercept - β z)] over z ~ N(0, 1), elementwise (Gauss–Hermite)."""
    logits = np.asarray(intercept, np.float64)[..., None] - difficulty_sd * _NODES
    return (1.0 / (1.0 + np.exp(-logits))) @ _WEIGHTS


def solve_intercepts(mean: Any, offsets: Floats, weights: Floats, difficulty_sd: float) -> Floats:
    """Return the a at which Σ_t weight_t · E[sigmoid(a + offset_t - β z)] is `mean`.

    Args:
        mean: shape (…,), between 0 and 1.
        offsets: (…, T), logits.
        weights: (T,), summing to 1.
        difficulty_sd: β.

    Returns:
        (…,)
    """
    target = np.asarray(mean, np.float64)
    low, high = np.full(target.shape, -40.0), np.full(target.shape, 40.0)
    for _ in range(60):
        middle = (low + high) / 2.0
        below = mean_success(middle[..., None] + offsets, difficulty_sd) @ weights < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2.0


class FitRow(NamedTuple):
    """One line of the table: a figure of a sample, and the published one where there is one.

    `quantity` and `of` name it: `quality` of a model, `correlation` of `models`, `output_tokens` of `p90`, …
    """

    quantity: str
    of: str
    sample: float
    published: float | None


def fit_table(
    contents: Contents,
    models: Sequence[str],
    published: Mapping[str, Mapping[str, float]],
    prices_usd: Any = None,
) -> list[FitRow]:
    """Compare a sample of requests with published figures.

    Rows: `quality` per model, and of the `best` model of each request; `correlation`, the mean over all pairs
    of `models`; `input_tokens` and `output_tokens` (over all models): `ln_mean`, `ln_sd` and quantiles;
    `mean_output_tokens` per model; `cost_usd` per model; `auc` per model and `pooled`, how well predicted
    quality tells answers that score above a half from the rest.

    Args:
        contents: n requests.
        models: names of the columns, K of them.
        published: by quantity and of what; figures without a row are left out.
        prices_usd: (K, 2), of 1M input and output tokens; without them there is no `cost_usd`.

    Returns:
        The rows; what is undefined, such as the AUC of a model that is always right, is NaN.
    """
    rows = _figures(contents, models, prices_usd)
    return [FitRow(what, of, float(x), published.get(what, {}).get(of)) for what, of, x in rows]


def _figures(contents: Contents, models: Sequence[str], prices_usd: Any) -> Iterator[tuple[str, str, float]]:
    quality, shown = contents.quality.astype(np.float64), contents.predicted_quality
    output = contents.output_tokens.astype(np.float64)
    for model, mean in zip(models, quality.mean(axis=0), strict=True):
        yield "quality", model, mean
    yield "quality", "best", quality.max(axis=1).mean()
    yield "correlation", "models", mean_correlation(quality)
    for name, tokens in (("input_tokens", contents.input_tokens), ("output_tokens", output.ravel())):
        logs = np.log(np.maximum(tokens, 1.0))
        yield name, "ln_mean", logs.mean()
        yield name, "ln_sd", logs.std()
        for share, quantile in zip(QUANTILES, np.quantile(tokens, QUANTILES), strict=True):
            yield name, f"p{100 * share:g}", quantile
    for model, mean in zip(models, output.mean(axis=0), strict=True):
        yield "mean_output_tokens", model, mean
    if prices_usd is not None:
        means = np.stack((np.full(len(models), contents.input_tokens.mean()), output.mean(axis=0)), axis=1)
        for model, cost in zip(models, (means * np.asarray(prices_usd)).sum(axis=1) / 1e6, strict=True):
            yield "cost_usd", model, cost
    for k, model in enumerate(models):
        yield "auc", model, area_under_curve(shown[:, k], quality[:, k] > 0.5)
    yield "auc", "pooled", area_under_curve(shown.ravel(), quality.ravel() > 0.5)


def mean_correlation(columns: Floats) -> float:
    """Return the mean correlation over all pairs of columns (n, K); NaN where fewer than two vary."""
    spread = columns.std(axis=0)
    standard = (columns - columns.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    count = standard.shape[1]
    if count < 2:
        return math.nan
    return float(((standard.sum(axis=1) ** 2).mean() - count) / (count * (count - 1)))


def area_under_curve(scores: NDArray[Any], positive: NDArray[np.bool_]) -> float:
    """Return the chance that a positive scores above a negative, a tie counting half; NaN without both."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    hits = int(positive.sum())
    misses = len(positive) - hits
    if hits == 0 or misses == 0:
        return math.nan
    return float((rank[positive].sum() - hits * (hits + 1) / 2.0) / (hits * misses))
