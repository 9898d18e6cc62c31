"""What a run of the source's experiments shows, worked out and in sentences (DESIGN 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from routing_baselines.cloud_edge.reproduction.published import COMPARED, DECISION, PAIR, PUBLISHED, Played
from routing_gym.cloud_edge.evaluator import Floats
from routing_gym.cloud_edge.metrics import WINDOW_TERMS
from routing_gym.common.config import packaged
from routing_gym.evaluation.statistics import RESAMPLES, SEED, Estimate, paired_difference

CEMA, FIXED, GREEDY, SEARCH, OPTIMAL = "cema", "cema:normalisation=fixed", "greedy", "local_search", "optimal"
ALONE, UNQUEUED = "greedy:alone=true", "greedy:queues=false"
NEAR = 0.01
"""A batch is near the proven optimum if its J is above by no more than this share of it."""


class Finding(NamedTuple):
    """What is found, and the figures in it by name."""

    text: str
    figures: Mapping[str, Any]


class Reach(NamedTuple):
    """How near a router comes to the proven optimum of the tables that it is shown."""

    ratio: float | None  # of mean J to the optimum's; None where that is 0
    median: float  # over batches, of J to the optimum's
    near: float  # share of batches within `NEAR`
    milliseconds: float  # median decision

    def above(self) -> str:
        """Say how far above the optimum it is."""
        return "above an optimum of 0" if self.ratio is None else f"{self.ratio - 1.0:.1%} above it"


def reach(played: Played, router: str) -> Reach:
    """Hold a router against the proven optimum."""
    ratios, share = played.ratio(router), played.gap_share(router)
    return Reach(
        None if share is None else 1.0 + share,
        float(np.median(ratios)),
        float((ratios <= 1.0 + NEAR).mean()),
        float(np.median(played.of(router, DECISION.metric))),
    )


class Change(NamedTuple):
    """Mean J as paid, before and after, on the same batches."""

    before: float
    after: float
    difference: Estimate  # paired, after less before

    def __str__(self) -> str:
        """Say it."""
        _, low, high = self.difference
        share = f"{self.after / self.before - 1.0:+.1%}, " if self.before > 0.0 else ""
        return f"{self.before:.4f} → {self.after:.4f} ({share}Δ [{low:+.4f}, {high:+.4f}])"


def change(before: Floats, after: Floats) -> Change:
    """Compare J of the same batches (batches,)."""
    difference = paired_difference(after, before)
    assert difference is not None
    return Change(float(before.mean()), float(after.mean()), difference)


def means_of_few(values: Floats, count: int) -> tuple[float, float]:
    """Return between what 95 % of the means of so few of the values (n,) lie."""
    rng = np.random.default_rng(SEED)
    means = values[rng.integers(len(values), size=(RESAMPLES, count))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def search_finding(played: Played, where: str) -> Finding:
    """Tell how far the memetic search is from the proven optimum, and what simpler routers reach."""
    found = {name: reach(played, name) for name in (CEMA, FIXED, GREEDY, SEARCH)}
    proof = float(np.median(played.of(OPTIMAL, DECISION.metric)))
    named = {CEMA: "the memetic search at its published budget reaches", FIXED: "with fixed bounds"}
    parts = []
    for name, one in found.items():
        ratio = "—" if one.ratio is None else f"{one.ratio:.3f}"
        parts.append(
            f"{named.get(name, name)} {ratio} times (median batch {one.median:.3f}; {one.near:.0%} of the "
            f"batches within {NEAR:.0%}; {one.milliseconds:.2f} ms)"
        )
    text = (
        f"{where}: {', '.join(parts)} the proven optimum's mean J, on what routers are shown. The proof "
        f"takes {proof:.2f} ms."
    )
    return Finding(text, {**{name: one._asdict() for name, one in found.items()}, "proof_ms": proof})


def joint_finding(conditions: Mapping[str, Played]) -> Finding:
    """Tell where placing the requests of a batch together matters, and whether queues within it do."""
    figures: dict[str, Any] = {}
    parts = []
    for where, played in conditions.items():
        alone = reach(played, ALONE)
        paid = change(played.of(OPTIMAL, "objective"), played.of(ALONE, "objective"))
        queues = float((~np.isclose(played.of(UNQUEUED, "gap"), played.of(GREEDY, "gap"), atol=1e-9)).mean())
        figures[where] = {"alone": alone._asdict(), "paid": _data(paid), "queues": queues}
        parts.append(
            f"{where}: {alone.near:.0%} of the batches within {NEAR:.0%} of the optimum, on average "
            f"{alone.above()}; as paid, from the optimum to it {paid}; queues change greedy's J in "
            f"{queues:.0%} of the batches"
        )
    text = (
        "Joint placement does not matter where greedy that assigns each request as if it were alone does as "
        f"well; and queues within a batch do not where greedy that leaves them out does. {'. '.join(parts)}."
    )
    return Finding(text, figures)


def information_finding(exact: Played, predicted: Played, where: str) -> Finding:
    """Tell what knowing qualities and lengths exactly is worth, and beside it a better search."""
    knows = predicted.labels["prediction"]
    routers = (CEMA, GREEDY, SEARCH, OPTIMAL)
    known = {name: change(predicted.of(name, "objective"), exact.of(name, "objective")) for name in routers}
    better = {
        played.labels["prediction"]: change(played.of(CEMA, "objective"), played.of(OPTIMAL, "objective"))
        for played in (predicted, exact)
    }
    text = f"{where}J as paid, from prediction {knows} to {exact.labels['prediction']}: "
    text += "; ".join(f"{name} {one}" for name, one in known.items())
    text += ". From the memetic search to the optimum: "
    text += "; ".join(f"prediction {prediction} {one}" for prediction, one in better.items())
    figures = {"information": known, "search": better}
    return Finding(
        f"{text}.",
        {kind: {name: _data(one) for name, one in found.items()} for kind, found in figures.items()},
    )


def agreement_finding(played: Played, where: str) -> Finding:
    """Tell which raw terms of Table V are as means of so few batches of ours are; equal rows count once."""
    table = PUBLISHED["table_v"]
    ratios: dict[str, dict[str, float]] = {}
    outside = []
    published = table["routers"]
    different = [
        name for k, name in enumerate(COMPARED) if published[name] not in [published[n] for n in COMPARED[:k]]
    ]
    for name in different:
        for term, short in zip(WINDOW_TERMS, "QCET", strict=True):
            stated, values = table["routers"][name][term], played.of(name, term)
            low, high = means_of_few(values, table["batches"])
            ratios.setdefault(name, {})[term] = float(values.mean() / stated)
            if not low <= stated <= high:
                outside.append(
                    f"{name} {short} {stated:g} (ours {values.mean():.3g}, {low:.3g} to {high:.3g})"
                )
    count = len(different) * len(WINDOW_TERMS)
    text = (
        f"{where}: of the {count} raw terms of Table V, {count - len(outside)} lie where 95 % of the means "
        f"of {table['batches']} batches of ours do"
    )
    text += f"; the others: {'; '.join(outside)}." if outside else "."
    return Finding(text, {"ours_over_published": ratios, "outside": outside})


def settings_finding() -> Finding:
    """Tell that the source gives different J and decision times for one setting."""
    table, scaling = PUBLISHED["table_v"], PUBLISHED["figure_7"]["routers"][CEMA]
    values = [table["tuned_objective"], table["routers"][CEMA]["objective"], scaling["objective"][0]]
    seconds = [table["decision_s"][CEMA], scaling["decision_s"][0]]
    text = (
        f"The source has three J of its router at R = {table['requests']} and M = {table['destinations']}, "
        "{:g} in its tuning, {:g} in Table V and {:g} in Figure 7".format(*values)
        + ", and two decision times, {:g} and {:g} s: no run can match all of them.".format(*seconds)
    )
    return Finding(text, {"objective": values, "decision_s": seconds})


def pair_finding() -> Finding:
    """Tell among which routers J of Tables VI and VII can have been normalised."""
    table, weights = PUBLISHED["table_vii"], packaged("cloud_edge", "default")["weights"]
    most = sum(weights) - weights[WINDOW_TERMS.index("cost_usd")]
    sums = {
        f"{data.upper()} R = {count}": sum(table[data][name]["objective"][k] for name in PAIR)
        for data in ("gsm8k", "mmlu")
        for k, count in enumerate(table["requests"])
    }
    above = [f"{where} {total:.3f}" for where, total in sums.items() if total > most]
    text = (
        "Tables VI and VII do not say among which routers J is normalised. Between two routers a term is 0 "
        f"for one and 1 for the other, and nothing costs, so that their two J add up to {most:g} at most; "
        f"published: {', '.join(above)}. So there were others, or bounds of another kind. Here 'source's J' "
        "is among the six that section V-B lists, 'J of the two' between these two."
    )
    return Finding(text, {"sums": sums, "most": most})


def scaling_finding(few: Played, many: Played, where: str) -> Finding:
    """Tell how J moves from the fewest destinations to the most, as published and here."""
    ends: dict[str, Any] = {}
    parts = []
    for name in PAIR:
        stated = PUBLISHED["figure_7"]["routers"][name]["objective"]
        ours = [float(played.source_objective()[played.routers.index(name)].mean()) for played in (few, many)]
        ends[name] = {"published": stated, "ours": ours}
        parts.append("{} {:.3f} → {:.3f} (published {:g} → {:g})".format(name, *ours, *stated))
    routers = (*PAIR, GREEDY, SEARCH, OPTIMAL)
    fixed = {name: change(few.of(name, "objective"), many.of(name, "objective")) for name in routers}
    text = (
        f"{where}: from M = {few.labels['destinations']} to {many.labels['destinations']}, the source's J: "
    )
    text += (
        f"{'; '.join(parts)}. J in fixed bounds: {'; '.join(f'{name} {one}' for name, one in fixed.items())}."
    )
    return Finding(text, {"source": ends, "fixed": {name: _data(one) for name, one in fixed.items()}})


def _data(one: Change) -> dict[str, Any]:
    return {"before": one.before, "after": one.after, "difference": one.difference._asdict()}
