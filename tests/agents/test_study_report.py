"""The study's report: figures by hand, figures of a run counted again, and the page that it goes into."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agents.folder import load, save
from routing_agents.study import Part
from routing_agents.study_report import BEGIN, END, findings, place, report
from routing_agents.study_scores import (
    Results,
    median_over_conditions,
    read_results,
    share_of_way,
)
from routing_gym.cluster.config import ClusterConfig
from routing_gym.evaluation.results import ResultsError
from routing_gym.evaluation.statistics import RESAMPLES, SEED
from tests.agents.studies import cloud_edge_part, cluster_part, made_up, played, study
from tests.agents.trained import save_random
from tests.evaluation.runs import hide_matplotlib, table_cells

INF = math.inf


@pytest.fixture(scope="module", autouse=True)
def no_plots() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        hide_matplotlib(monkeypatch)
        yield


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return the tables of a page, rows by header."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        headers, _, *rows = [table_cells(line) if "---" not in line else [] for line in block.splitlines()]
        found.append([dict(zip(headers, row, strict=True)) for row in rows])
    return found


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", cell)]


PART = {
    "title": "By hand",
    "family": "cluster",
    "config": "default",
    "conditions": {"rate_per_s": [100, 200]},
    "routers": {
        "documented": ["least_queue", "round_robin"],
        "fixed": ["deadline_aware"],
        "trained": ["learned:path=a", "learned:path=b"],
        "yardsticks": ["clairvoyant"],
    },
    "reference": "deadline_aware",
    "train": "…",
}
ATTAINMENT = {
    "least_queue": [[0.50, 0.50], [0.50, 0.50]],
    "round_robin": [[0.40, 0.40], [0.40, 0.40]],
    "deadline_aware": [[0.60, 0.62], [0.70, 0.72]],
    "learned:path=a": [[0.66, 0.70], [0.72, 0.72]],
    "learned:path=b": [[0.62, 0.66], [0.72, 0.72]],
    "clairvoyant": [[0.70, 0.72], [0.80, 0.82]],
}
P99 = {
    "least_queue": [[INF, INF], [INF, 80.0]],
    "round_robin": [[INF, INF], [INF, INF]],
    "deadline_aware": [[100.0, INF], [40.0, 60.0]],
    "learned:path=a": [[50.0, 70.0], [30.0, 30.0]],
    "learned:path=b": [[50.0, 70.0], [30.0, 50.0]],
    "clairvoyant": [[10.0, 20.0], [10.0, 20.0]],
}


@pytest.fixture
def by_hand(tmp_path: Path) -> Results:
    metrics = {router: {"attainment": ATTAINMENT[router], "p99_all_ms": P99[router]} for router in ATTAINMENT}
    return made_up(tmp_path / "part", Part.model_validate(PART), metrics)


def test_means_differences_and_the_way_are_those_of_the_hand(by_hand: Results) -> None:
    routers, conditions = tables(report({"part": by_hand.part}, {"part": by_hand}, []))
    rows = {row["router"]: row for row in routers}
    assert list(rows) == [*[*ATTAINMENT][:5], "**mean of 2 trained**", "*clairvoyant*"]
    delta, way = "Δ to deadline_aware, points", "way %"
    # By seed: deadline_aware .65, .67; a .69, .71; b .67, .69; clairvoyant .75, .77.
    assert rows["deadline_aware"]["attainment %"] == "66.00 [65.00, 67.00]"
    assert rows["deadline_aware"][delta] == "reference"
    assert rows["learned:path=a"][delta] == "+4.00 [+4.00, +4.00]"
    assert rows["learned:path=b"][delta] == "+2.00 [+2.00, +2.00]"
    assert rows["**mean of 2 trained**"][delta] == "+3.00 [+3.00, +3.00]"
    assert rows["**mean of 2 trained**"][way] == "30 [30, 30]"
    assert rows["learned:path=a"][way] == "40 [40, 40]"
    assert [rows[name][way] for name in ("least_queue", "deadline_aware", "*clairvoyant*")] == ["—"] * 3
    # Per condition the mean of both, and its difference: .66, .62, .70, .66 against .60, .62.
    assert conditions[0] == {
        "rate_per_s": "100",
        "best documented": "50.0 least_queue",
        "deadline_aware": "61.0",
        "mean of 2 trained": "66.0",
        "Δ, points": "+5.0 [+4.0, +6.0]",
        "clairvoyant": "71.0",
    }
    assert conditions[1]["Δ, points"] == "tie +1.0 [+0.0, +2.0]"


def test_what_is_played_is_told(by_hand: Results) -> None:
    part = by_hand.part.model_copy(update={"note": "And more.", "load_of_replicas": 3})
    page = report({"part": part}, {"part": by_hand._replace(part=part)}, [Path("learned_part.png")])
    assert "### By hand\n" in page
    assert "`routing-gym study-learned --parts part`: 2 conditions × 2 seeds (1–2), routing-gym " in page
    assert "Rates are those of 3 replicas; here they are higher, for the same load." in page
    assert "So few seeds give no interval of 95 %; take 6 at least. And more.\n" in page
    assert "![By hand](learned_part.png)" in page


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ("latency", "`latency`"),
        ([0.0, 0.0, -1.0, -0.002, 0.0], "0.1 × `latency`"),
        ([0.0, 0.0, -1.0, -0.003, 0.0], "the weights 0, 0, -1, -0.003, 0"),
        ([-1.0, 0.0, 0.0, 0.0, 0.0], "the weights -1, 0, 0, 0, 0"),
    ],
)
def test_the_rewards_that_a_router_is_told_are_named(reward: object, told: str, tmp_path: Path) -> None:
    steered = {"router": "learned:path=c", "rewards": ["on_time", reward], "shares": [0.5]}
    part = Part.model_validate(
        {**PART, "routers": {}, "reference": None, "beside": "part", "steered": steered}
    )
    scores = {"learned:path=c, w = 0.5": {"attainment": [[0.5], [0.5]]}}
    page = report({"part": part}, {"part": made_up(tmp_path / "part", part, scores, seeds=[1])}, [])
    assert f"w is the share of {told}, the rest is `on_time`." in page


@pytest.mark.parametrize(
    ("apart", "shown"), [(0.02, "1.4"), (2e-7, "0.000014"), (0.99, "70"), (0.0, "0")]
)  # in points, of two values: their distance / √2
def test_a_standard_deviation_has_two_significant_digits(apart: float, shown: str, by_hand: Results) -> None:
    rows = {
        key: {**row, "attainment": apart if key[0] == "learned:path=a" else 0.0}
        for key, row in by_hand.rows.items()
    }
    assert f"standard deviation {shown}." in findings(by_hand._replace(rows=rows))[0]


def test_there_is_no_negative_zero(by_hand: Results) -> None:
    rows = {
        key: {**row, "attainment": 0.5 - 1e-6 * (key[0] == "learned:path=a")}
        for key, row in by_hand.rows.items()
    }
    page = report({"part": by_hand.part}, {"part": by_hand._replace(rows=rows)}, [])
    assert "-0.0" not in page
    assert "are worse than deadline_aware: +0.00 [+0.00, +0.00] points." in page


def test_an_infinite_p99_is_shown_as_such(by_hand: Results) -> None:
    rows = {row["router"]: row for row in tables(report({"part": by_hand.part}, {"part": by_hand}, []))[0]}
    # Medians over seeds: infinite and 50; infinite in both; 60 and 30, of b 60 and 40.
    assert rows["deadline_aware"]["p99, ms"] == "∞ (1 of 2 ∞)"
    assert rows["least_queue"]["p99, ms"] == "∞ (2 of 2 ∞)"
    assert rows["learned:path=a"]["p99, ms"] == "45"
    assert rows["**mean of 2 trained**"]["p99, ms"] == "48"


def test_findings_say_better_worse_and_no_different(by_hand: Results) -> None:
    assert findings(by_hand) == [
        "The 2 training seeds reach 68.00, 70.00; standard deviation 1.4.",
        "Trained routers, on average, are better than deadline_aware: +3.00 [+3.00, +3.00] points.",
        "Trained routers, on average, are better than least_queue, the best documented router: "
        "+19.00 [+18.00, +20.00] points.",
        "Of the way from deadline_aware to clairvoyant they go 30 [30, 30] %.",
    ]
    second = by_hand.where("rate_per_s", 200)
    assert "are no different from deadline_aware: +1.00 [+0.00, +2.00] points." in findings(second)[1]
    worse = by_hand._replace(record={**by_hand.record, "reference": "clairvoyant"})
    assert "are worse than clairvoyant: -7.00 [-7.00, -7.00] points." in findings(worse)[1]
    assert len(findings(worse)) == 3, "no way from the goal to itself"


def test_routers_of_another_part_are_shown_where_episodes_are_the_same(
    by_hand: Results, tmp_path: Path
) -> None:
    fields = {**PART, "routers": {"fixed": ["least_work"]}, "reference": None, "beside": "part"}
    scores = {"least_work": {"attainment": [[0.8, 0.8], [0.9, 0.9]]}}
    own = made_up(tmp_path / "own", Part.model_validate(fields), scores, seeds=[2])
    both = own.beside(by_hand)
    assert list(both.roles) == [*ATTAINMENT, "least_work"]
    assert both.scores("deadline_aware", "attainment").tolist() == [[0.62], [0.72]]
    (rows,) = tables(report({"own": own.part}, {"own": own, "part": by_hand}, []))
    (row,) = [row for row in rows if row["router"] == "least_work"]
    assert numbers(row["Δ to deadline_aware, points"])[0] == pytest.approx(100 * (0.85 - 0.67))
    assert rows[-1]["router"] == "*clairvoyant*", "yardsticks go last"

    others: dict[str, tuple[dict[str, object], list[int]]] = {
        "conditions": ({"conditions": {"rate_per_s": [100, 300]}}, [2]),
        "configs": ({"fields": {"deadline_ms": 40.0}}, [2]),
        "seeds": ({}, [2, 3]),
    }
    for name, (change, seeds) in others.items():
        part = Part.model_validate({**fields, **change})
        scores = {"least_work": {"attainment": [[0.8] * len(seeds)] * 2}}
        other = made_up(tmp_path / name, part, scores, seeds)
        assert list(other.beside(by_hand).roles) == ["least_work"]


# Counted again


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    parts = {"cluster": cluster_part(folder, split="rate_per_s"), "cloud": cloud_edge_part(folder)}
    played(study(**parts), folder / "out", seeds="4")
    return folder / "out"


def rows_of(folder: Path, router: str, **labels: str) -> list[dict[str, str]]:
    with open(folder / "episodes.csv", newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if row["router"] == router and all(row[name] == value for name, value in labels.items())
        ]


@pytest.mark.parametrize("rate", ["180", "400"])
def test_the_report_s_figures_of_the_cluster_are_those_of_the_files(run: Path, rate: str) -> None:
    results = read_results(run / "cluster")
    assert results is not None
    page = report({"cluster": results.part}, {"cluster": results}, [])
    table = tables(page.partition(f"**rate_per_s {rate}**")[2])[0]
    record = json.loads((run / "cluster" / "part.json").read_text())
    reference = [
        float(row["attainment"]) for row in rows_of(run / "cluster", record["reference"], rate_per_s=rate)
    ]
    names = {row["router"].strip("*"): row for row in table}
    for router in results.roles:
        mine = rows_of(run / "cluster", router, rate_per_s=rate)
        attainment = [float(row["attainment"]) for row in mine]
        assert len(attainment) == 4
        assert numbers(names[router]["attainment %"])[0] == pytest.approx(100 * mean(attainment), abs=0.006)
        delta = names[router][f"Δ to {record['reference']}, points"]
        if router == record["reference"]:
            assert delta == "reference"
        else:
            differences = [100 * (a - b) for a, b in zip(attainment, reference, strict=True)]
            assert numbers(delta)[0] == pytest.approx(mean(differences), abs=0.006)
            low, high = numbers(delta)[1:]
            assert min(differences) - 0.01 <= low <= mean(differences) + 0.01
            assert mean(differences) - 0.01 <= high <= max(differences) + 0.01
        p99 = [float(row["p99_all_ms"]) for row in mine if row["p99_all_ms"]]
        shown = names[router]["p99, ms"]
        if not p99:
            assert shown == "—"
        elif math.isinf(median(p99)):
            assert shown == "∞ (1 of 1 ∞)"
        else:
            assert numbers(shown)[0] == pytest.approx(median(p99), abs=0.51)


def test_the_report_s_figures_of_the_cloud_and_the_edge_are_those_of_the_files(run: Path) -> None:
    results = read_results(run / "cloud")
    assert results is not None
    table, conditions = tables(report({"cloud": results.part}, {"cloud": results}, []))
    curves = [json.loads(line) for line in (run / "cloud" / "curves.jsonl").read_text().splitlines()]
    base = {
        name: [float(row["objective"]) for row in rows_of(run / "cloud", name)]
        for name in ("local_search", "least_backlog")
    }
    for row in table:
        mine = rows_of(run / "cloud", row["router"])
        objective = [float(one["objective"]) for one in mine]
        assert numbers(row["J"])[0] == pytest.approx(mean(objective), abs=6e-5)
        for name, other in base.items():
            if name != row["router"]:
                difference = mean(a - b for a, b in zip(objective, other, strict=True))
                assert numbers(row[f"Δ to {name}"])[0] == pytest.approx(difference, abs=6e-5)
        backlog = (
            [float(one["mean_backlog_s"]) for one in mine],
            [float(one["max_backlog_s"]) for one in mine],
        )
        assert numbers(row["backlog, s"]) == pytest.approx([mean(backlog[0]), max(backlog[1])], abs=0.06)
        times = sorted(
            time
            for curve in curves
            if curve["router"] == row["router"]
            for time, count in zip(curve["decision_ms"], curve["requests"], strict=True)
            if count == 4
        )
        assert len(times) == 4 * 5, "every window of the condition with four requests"
        assert numbers(row["decision, ms"])[0] == pytest.approx(median(times), abs=6e-4)
        assert numbers(row["p95, ms"])[0] == pytest.approx(times[math.ceil(0.95 * len(times)) - 1], abs=6e-4)
    assert [row["requests"] for row in conditions] == ["4", "6"]
    for row in conditions:
        for router in results.roles:
            mine = rows_of(run / "cloud", router, requests=row["requests"])
            assert float(row[router]) == pytest.approx(
                mean(float(one["objective"]) for one in mine), abs=6e-5
            )


def test_less_is_better_of_the_cloud_and_the_edge(run: Path) -> None:
    results = read_results(run / "cloud")
    assert results is not None
    trained = results.scores(results.part.routers.trained[0], "objective").mean()
    assert trained > results.scores("least_backlog", "objective").mean()
    (line,) = [line for line in findings(results) if "least_backlog" in line]
    assert "are worse than least_backlog: +" in line or "are no different from least_backlog: +" in line
    left, most = numbers(findings(results)[-1])
    mean_backlog, max_backlog = (
        results.scores("local_search", f"{what}_backlog_s") for what in ("mean", "max")
    )
    assert left == pytest.approx(mean_backlog.mean(), abs=0.006)
    assert most == pytest.approx(max_backlog.max(), abs=0.06)


def test_a_part_that_is_not_played_whole_is_not_reported(run: Path, tmp_path: Path) -> None:
    assert read_results(tmp_path) is None
    for name in ("config.yaml", "part.json", "curves.jsonl"):
        (tmp_path / name).write_bytes((run / "cluster" / name).read_bytes())
    whole = (run / "cluster" / "episodes.csv").read_text()
    (tmp_path / "episodes.csv").write_text(whole[:-40])
    assert read_results(tmp_path) is None
    (tmp_path / "episodes.csv").write_text(whole)
    found = read_results(tmp_path)
    assert found is not None
    page = report({"here": found.part, "gone": Part.model_validate(PART)}, {"here": found}, [])
    assert page.count("Not run here.") == 1
    (tmp_path / "part.json").write_text("{}")
    with pytest.raises(ResultsError, match=r"part\.json does not describe a part of a study"):
        read_results(tmp_path)


def test_a_part_played_with_other_weights_says_so(tmp_path: Path) -> None:
    said = "Played with other weights than those of today; play it again."
    told = save_random(tmp_path / "told", ClusterConfig.create(observation="router"), reward_features=True)
    steered = {"router": f"learned:path={told}", "rewards": ["on_time", "latency"], "shares": [0.0, 1.0]}
    usual = cluster_part(tmp_path, conditions={"rate_per_s": [180]})
    few = {"fixed": ["deadline_aware"], "trained": usual["routers"]["trained"]}
    own = {**usual, "routers": few, "candidates": []}
    parts = {
        "cluster": {**own, "reference": "deadline_aware"},
        "steered": {**own, "routers": {}, "steered": steered, "beside": "cluster"},
        "cloud": cloud_edge_part(tmp_path),
    }
    whole = played(study(**parts), tmp_path / "out", seeds="1")

    def outdated() -> list[str]:
        found = {name: read_results(tmp_path / "out" / name) for name in parts}
        results = {name: one for name, one in found.items() if one is not None}
        sections = report(whole.parts, results, []).split("### ")[1:]
        assert len(results) == len(sections) == len(parts)
        return [name for name, section in zip(parts, sections, strict=True) if said in section]

    assert outdated() == []
    for name, folder in (("cluster", "cluster-1"), ("steered", "told")):
        manifest, weights = load(tmp_path / folder)
        changed = {key: np.float32(-1.0) * array for key, array in weights.items()}
        save(tmp_path / folder, manifest, changed, overwrite=True)
        assert outdated() == [name]
        save(tmp_path / folder, manifest, weights, overwrite=True)
        assert outdated() == []
    shutil.rmtree(tmp_path / "cloud-edge")
    assert outdated() == ["cloud"], "one that is gone is another"


# Estimates


seeds = st.integers(2, 8)
values = st.floats(-1.0, 1.0)


@given(st.data(), seeds)
def test_the_way_is_a_ratio_of_means_over_the_same_resamples(data: st.DataObject, count: int) -> None:
    scores = np.array(data.draw(st.lists(values, min_size=count, max_size=count)))
    reference = np.array(data.draw(st.lists(values, min_size=count, max_size=count)))
    goal = reference + np.array(data.draw(st.lists(st.floats(0.1, 1.0), min_size=count, max_size=count)))
    found = share_of_way(scores, reference, goal)
    assert found is not None
    rng = np.random.default_rng(SEED)
    slow = []
    for pick in rng.integers(count, size=(RESAMPLES, count))[:200]:
        gain = sum(scores[k] - reference[k] for k in pick)
        slow.append(gain / sum(goal[k] - reference[k] for k in pick))
    assert found.value == pytest.approx((scores - reference).sum() / (goal - reference).sum(), abs=1e-9)
    assert found.low <= found.high
    assert np.mean([found.low - 1e-9 <= one <= found.high + 1e-9 for one in slow]) > 0.85
    whole, none = share_of_way(goal, reference, goal), share_of_way(reference, reference, goal)
    assert whole is not None and none is not None
    assert (whole.low, whole.high, none.low, none.high) == pytest.approx((1.0, 1.0, 0.0, 0.0))


def test_there_is_no_way_to_a_goal_that_is_not_above() -> None:
    below = np.array([0.5, 0.6])
    assert share_of_way(below, below, below) is None
    assert share_of_way(below, below, np.array([0.4, 0.9])) is None


def test_medians_of_conditions_know_infinity() -> None:
    scores = np.array([[1.0, 3.0, INF], [INF, INF, 1.0], [np.nan, 5.0, np.nan], [np.nan] * 3])
    assert median_over_conditions(scores) == (5.0, 1)
    assert median_over_conditions(scores[:2]) == (INF, 1)
    assert median_over_conditions(scores[3:]) == (None, 0)


# The page


@given(st.text(), st.text(), st.text(), st.text())
def test_only_what_is_between_the_markers_is_replaced(before: str, old: str, after: str, new: str) -> None:
    page = f"{before}{BEGIN}{old}{END}{after}"
    placed, trimmed = place(page, new, "page.md"), new.strip("\n")
    assert placed == f"{before}{BEGIN}\n\n{trimmed}\n\n{END}{after}"
    assert place(placed, new, "page.md") == placed


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_page_without_one_pair_of_markers_is_refused(page: str) -> None:
    with pytest.raises(ResultsError, match=r"page\.md must hold one line <!-- study-learned: begin -->"):
        place(page, "new", "page.md")
