"""What the findings say, on results made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from routing_baselines.cloud_edge.reproduction import findings
from routing_baselines.cloud_edge.reproduction.published import COMPARED, PUBLISHED, Played
from routing_gym.cloud_edge.metrics import WINDOW_TERMS
from tests.baselines.cloud_edge.made_up_runs import played, with_values


@pytest.fixture
def by_hand() -> Played:
    """Return two batches, the optimum's J .1 and .3."""
    made = played(2)
    made.values["bound"][:] = [0.1, 0.3]
    made.values["gap"][:] = 0.0
    return with_values(
        made,
        cema={"gap": [0.1, 0.1], "decision_ms_median": [2.0, 4.0], "objective": [0.25, 0.45]},
        greedy={"gap": [0.0009, 0.0031]},
        local_search={"objective": [0.2, 0.4]},
        optimal={"objective": [0.2, 0.3]},
    )


def test_reach(by_hand: Played) -> None:
    found = findings.reach(by_hand, "cema")
    assert found.ratio == pytest.approx(0.6 / 0.4)
    assert found.median == pytest.approx((2.0 + 4.0 / 3.0) / 2.0)
    assert (found.near, found.milliseconds) == (0.0, 3.0)
    found = findings.reach(by_hand, "greedy")
    assert found.near == 0.5  # .9 % and 1.03 % above
    assert found.ratio == pytest.approx(1.01)
    assert findings.reach(by_hand, "local_search")[:3] == (1.0, 1.0, 1.0)


def test_reach_of_an_optimum_of_0(by_hand: Played) -> None:
    by_hand.values["bound"][:] = 0.0
    assert findings.reach(by_hand, "local_search")[:3] == (None, 1.0, 1.0)
    assert findings.reach(by_hand, "cema")[:3] == (None, math.inf, 0.0)
    assert "—" in findings.search_finding(by_hand, "somewhere").text


def test_a_gap_below_0_is_rounding(by_hand: Played) -> None:
    made = with_values(by_hand, cema={"gap": [-1e-9, 0.0]})
    assert made.ratio("cema").tolist() == [1.0, 1.0]


def test_search_finding(by_hand: Played) -> None:
    found = findings.search_finding(by_hand, "here")
    assert found.text.startswith(
        "here: the memetic search at its published budget reaches 1.500 times (median batch 1.667; 0% of the "
        "batches within 1%; 3.00 ms), with fixed bounds 1.000 times"
    )
    assert "greedy 1.010 times (median batch 1.010; 50% of the batches within 1%;" in found.text
    assert found.figures["cema"]["ratio"] == pytest.approx(1.5)


def test_information_finding(by_hand: Played) -> None:
    worse = {"cema": {"objective": [0.5, 0.9]}, "optimal": {"objective": [0.4, 0.6]}}
    store = with_values(played(2, prediction="store"), **worse)
    found = findings.information_finding(by_hand, store, "R = 30: ")
    known = found.figures["information"]["optimal"]
    assert (known["before"], known["after"]) == (0.5, 0.25)
    assert known["difference"]["value"] == pytest.approx(-0.25)
    assert (
        "from prediction store to perfect: cema 0.7000 → 0.3500 (-50.0%, Δ [-0.4500, -0.2500])" in found.text
    )
    assert "prediction store 0.7000 → 0.5000 (-28.6%" in found.text
    assert "prediction perfect 0.3500 → 0.2500 (-28.6%" in found.text


def test_joint_finding(by_hand: Played) -> None:
    alone = {"gap": [0.0, 0.06], "objective": [0.2, 0.4]}
    made = with_values(by_hand, **{findings.ALONE: alone, findings.UNQUEUED: {"gap": [0.0009, 0.2]}})
    found = findings.joint_finding({"R = 30": made})
    assert found.text.endswith(
        "R = 30: 50% of the batches within 1% of the optimum, on average 15.0% above it; as paid, from the "
        "optimum to it 0.2500 → 0.3000 (+20.0%, Δ [+0.0000, +0.1000]); queues change greedy's J in 50% of "
        "the batches."
    )
    assert found.figures["R = 30"]["alone"]["near"] == found.figures["R = 30"]["queues"] == 0.5


def test_agreement_finding() -> None:
    table = PUBLISHED["table_v"]["routers"]
    around = np.linspace(0.9, 1.1, 9)
    same = {name: {term: table[name][term] * around for term in WINDOW_TERMS} for name in COMPARED}
    made = with_values(played(9), **same)
    found = findings.agreement_finding(made, "here")
    assert "of the 20 raw terms of Table V, 20 lie where" in found.text
    assert found.figures["outside"] == []
    off = with_values(made, cema={"energy_j": 780.4})
    found = findings.agreement_finding(off, "here")
    assert "19 lie where" in found.text and "cema E 390.2 (ours 780, 780 to 780)" in found.text
    assert found.figures["ours_over_published"]["cema"]["energy_j"] == pytest.approx(2.0)
    off = with_values(made, cema={"energy_j": 195.1})
    assert "cema E 390.2 (ours 195, 195 to 195)" in findings.agreement_finding(off, "here").text


def test_means_of_few_are_wider_the_fewer() -> None:
    values = np.random.default_rng(0).normal(size=400)
    low, high = findings.means_of_few(values, 5)
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(5), rel=0.1)
    assert findings.means_of_few(values, 100)[1] < high


def test_pair_finding() -> None:
    found = findings.pair_finding()
    assert found.figures["most"] == 0.75
    assert "GSM8K R = 50 0.833, MMLU R = 50 0.869" in found.text
    assert found.figures["sums"]["GSM8K R = 10"] == pytest.approx(0.5244)


def test_scaling_finding() -> None:
    few, many = played(4, seed=1), played(4, seed=2, destinations=88)
    found = findings.scaling_finding(few, many, "here")
    ours = [made.source_objective()[0].mean() for made in (few, many)]
    assert found.figures["source"]["cema"] == {"published": [0.164, 0.106], "ours": pytest.approx(ours)}
    assert f"cema {ours[0]:.3f} → {ours[1]:.3f} (published 0.164 → 0.106)" in found.text
