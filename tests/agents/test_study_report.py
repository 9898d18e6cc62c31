"""The study's report: figures by hand, figures of a run counted again, and the page that it goes into."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agents.folder import load, save
from routing_agents.study_report import findings, report
from routing_agents.study_scores import Results, median_over_conditions, share_of_way
from routing_gym.cluster.config import ClusterConfig
from routing_gym.evaluation.results import ResultsError
from routing_gym.evaluation.statistics import RESAMPLES, SEED
from routing_gym.studies.results import read_part
from routing_gym.studies.storage import read_table, shard_files
from tests.agents.studies import CANDIDATES, cloud_edge_part, cluster_part, made_up, played, read, study
from tests.agents.trained import save_random
from tests.evaluation.runs import table_cells

INF = math.inf


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return the tables of a page, rows by header."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        headers, _, *rows = [table_cells(line) if "---" not in line else [] for line in block.splitlines()]
        found.append([dict(zip(headers, row, strict=True)) for row in rows])
    return found


def numbers(cell: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", cell)]


PART: dict[str, Any] = {
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
    "report": {"train": "routing-gym train …"},
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


def by_hand_of(folder: Path, attainment: dict[str, Any] = ATTAINMENT, **fields: Any) -> Results:
    metrics = {
        router: {"attainment": values, "p99_all_ms": P99.get(router, [[50.0, 50.0]] * 2)}
        for router, values in attainment.items()
    }
    return made_up(folder / "part", {**PART, **fields}, metrics)


@pytest.fixture
def by_hand(tmp_path: Path) -> Results:
    return by_hand_of(tmp_path)


def test_means_differences_and_the_way_are_those_of_the_hand(by_hand: Results) -> None:
    routers, conditions = tables(report({"part": by_hand}, []))
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


def test_what_is_played_is_told(tmp_path: Path) -> None:
    results = by_hand_of(tmp_path, note="And more.", load_of_replicas=3)
    page = report({"part": results}, [Path("learned_part.png")], about="Of the whole.")
    assert page.index("\nOf the whole.\n") < page.index("### By hand\n")
    assert "`routing-gym study learned --parts part`: 2 conditions × 2 seeds (1–2), routing-gym " in page
    assert "Rates are those of 3 replicas; here they are higher, for the same load." in page
    assert "So few seeds give no interval of 95 %; take 6 at least. And more.\n" in page
    assert "![By hand](learned_part.png)" in page


def test_a_router_that_is_told_rewards_is_called_by_their_shares(tmp_path: Path) -> None:
    """Each is a row of its own, and none of a mean."""
    rewards = [[1.0, 0.0, 0.0, 0.0, 0.0], [0.25, 0.0, -0.75, 0.0, 0.0]]
    routers = {"fixed": ["deadline_aware"], "trained": [{"learned": {"path": ["c"], "reward": rewards}}]}
    attainment = {
        "deadline_aware": [[0.6, 0.6]] * 2,
        **{
            f"learned:path=c:reward={reward}": [[value, value]] * 2
            for reward, value in zip(rewards, (0.7, 0.65), strict=True)
        },
    }
    results = by_hand_of(
        tmp_path, attainment, routers=routers, report={**PART["report"], "steered": [0.0, 0.75]}
    )
    (rows,) = tables(report({"part": results}, []))
    assert {row["router"]: numbers(row["attainment %"])[0] for row in rows} == {
        "deadline_aware": 60.0,
        "learned:path=c, w = 0": 70.0,
        "learned:path=c, w = 0.75": 65.0,
    }
    assert results.steered == {"learned:path=c, w = 0": 0.0, "learned:path=c, w = 0.75": 0.75}
    assert findings(results) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"split": "replicas"}, "report.split = 'replicas': must be one of rate_per_s"),
        ({"also": ["least_work"]}, "report.also: 'least_work' must be one of least_queue, round_robin, dead"),
        ({"steered": [0.0, 0.5, 1.0]}, "report.steered: must be 2 shares, one of each trained router"),
        ({"steered": [0.0, 1.5]}, "steered"),
        ({"spilt": "rate_per_s"}, "spilt"),
    ],
)
def test_a_part_that_cannot_be_shown_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=re.escape(message)):
        by_hand_of(tmp_path, report={**PART["report"], **fields})


def test_batches_need_a_size_at_which_decisions_are_timed(tmp_path: Path) -> None:
    fields = {**cloud_edge_part(tmp_path), "report": PART["report"]}
    routers = [*fields["routers"]["fixed"], *fields["routers"]["trained"]]
    with pytest.raises(
        ResultsError, match=r"report\.decision_batch is missing: must be a number of requests"
    ):
        made_up(tmp_path / "part", fields, {router: {} for router in routers})


@pytest.mark.parametrize(
    ("apart", "shown"), [(0.02, "1.4"), (2e-7, "0.000014"), (0.99, "70"), (0.0, "0")]
)  # in points, of two values: their distance / √2
def test_a_standard_deviation_has_two_significant_digits(apart: float, shown: str, tmp_path: Path) -> None:
    attainment = {router: [[apart * (router == "learned:path=a")] * 2] * 2 for router in ATTAINMENT}
    assert f"standard deviation {shown}." in findings(by_hand_of(tmp_path, attainment))[0]


def test_there_is_no_negative_zero(tmp_path: Path) -> None:
    attainment = {router: [[0.5 - 1e-6 * (router == "learned:path=a")] * 2] * 2 for router in ATTAINMENT}
    page = report({"part": by_hand_of(tmp_path, attainment)}, [])
    assert "-0.0" not in page
    assert "are worse than deadline_aware: +0.00 [+0.00, +0.00] points." in page


def test_an_infinite_p99_is_shown_as_such(by_hand: Results) -> None:
    rows = {row["router"]: row for row in tables(report({"part": by_hand}, []))[0]}
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
    worse = by_hand._replace(reference="clairvoyant")
    assert "are worse than clairvoyant: -7.00 [-7.00, -7.00] points." in findings(worse)[1]
    assert len(findings(worse)) == 3, "no way from the goal to itself"


def test_routers_of_another_part_are_shown_where_episodes_are_the_same(
    by_hand: Results, tmp_path: Path
) -> None:
    fields = {
        **PART,
        "routers": {"fixed": ["least_work"]},
        "reference": "least_work",
        "report": {**PART["report"], "beside": "part"},
    }
    scores = {"least_work": {"attainment": [[0.8, 0.8], [0.9, 0.9]]}}
    own = made_up(tmp_path / "own", fields, scores, seeds=[2])
    both = own.beside(by_hand)
    assert list(both.roles) == [*ATTAINMENT, "least_work"]
    assert both.scores("deadline_aware", "attainment").tolist() == [[0.62], [0.72]]
    page = report({"own": own, "part": by_hand}, [])
    (row,) = [row for row in tables(page)[0] if row["router"] == "least_work"]
    assert numbers(row["Δ to deadline_aware, points"])[0] == pytest.approx(100 * (0.85 - 0.67))
    assert tables(page)[0][-1]["router"] == "*clairvoyant*", "yardsticks go last"
    assert [row["router"] for row in tables(report({"own": own}, []))[0]] == ["least_work"], "not there"

    others: dict[str, tuple[dict[str, object], list[int]]] = {
        "conditions": ({"conditions": {"rate_per_s": [100, 300]}}, [2]),
        "configs": ({"fields": {"deadline_ms": 40.0}}, [2]),
        "seeds": ({}, [2, 3]),
    }
    for name, (change, seeds) in others.items():
        scores = {"least_work": {"attainment": [[0.8] * len(seeds)] * 2}}
        other = made_up(tmp_path / name, {**fields, **change}, scores, seeds)
        assert list(other.beside(by_hand).roles) == ["least_work"]


# Counted again


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("study")
    split = {"split": "rate_per_s", "train": "routing-gym train cluster-ppo"}
    parts = {"cluster": cluster_part(folder, report=split), "cloud": cloud_edge_part(folder)}
    played(study(**parts), folder / "out", seeds="4")
    return folder / "out"


def rows_of(folder: Path, router: str, **labels: str) -> list[dict[str, Any]]:
    return [
        row
        for row in read_table(shard_files(folder)).to_pylist()
        if row["router"] == router
        and all(f"{name} {value}" in row["condition"].split(", ") for name, value in labels.items())
    ]


@pytest.mark.parametrize("rate", ["180", "400"])
def test_the_report_s_figures_of_the_cluster_are_those_of_the_files(run: Path, rate: str) -> None:
    results = read(run / "cluster")
    page = report({"cluster": results}, [])
    table = tables(page.partition(f"**rate_per_s {rate}**")[2])[0]
    usual = read_part(run / "cluster").reference
    reference = [row["attainment"] for row in rows_of(run / "cluster", usual, rate_per_s=rate)]
    names = {row["router"].strip("*"): row for row in table}
    for router in results.roles:
        mine = rows_of(run / "cluster", router, rate_per_s=rate)
        attainment = [row["attainment"] for row in mine]
        assert len(attainment) == 4
        assert numbers(names[router]["attainment %"])[0] == pytest.approx(100 * mean(attainment), abs=0.006)
        delta = names[router][f"Δ to {usual}, points"]
        if router == usual:
            assert delta == "reference"
        else:
            differences = [100 * (a - b) for a, b in zip(attainment, reference, strict=True)]
            assert numbers(delta)[0] == pytest.approx(mean(differences), abs=0.006)
            low, high = numbers(delta)[1:]
            assert min(differences) - 0.01 <= low <= mean(differences) + 0.01
            assert mean(differences) - 0.01 <= high <= max(differences) + 0.01
        p99 = [row["p99_all_ms"] for row in mine if row["p99_all_ms"] is not None]
        shown = names[router]["p99, ms"]
        if not p99:
            assert shown == "—"
        elif math.isinf(median(p99)):
            assert shown == "∞ (1 of 1 ∞)"
        else:
            assert numbers(shown)[0] == pytest.approx(median(p99), abs=0.51)


def test_the_choice_of_the_reference_is_told_with_its_scores(run: Path) -> None:
    page = report({"cluster": read(run / "cluster")}, [])
    found = re.search(
        r"Reference: (\S+), the best on development seeds 10000–10003 \(attainment, mean %: (.*?)\)", page
    )
    assert found is not None
    told = dict(candidate.rsplit(" ", 1) for candidate in found[2].split(", "))
    means = {
        router: mean(row["attainment"] for row in rows_of(run / "cluster" / "selection", router))
        for router in CANDIDATES
    }
    assert {router: float(score) for router, score in told.items()} == pytest.approx(
        {router: 100 * value for router, value in means.items()}, abs=0.006
    )
    assert found[1] == max(CANDIDATES, key=lambda router: means[router])


def test_the_report_s_figures_of_the_cloud_and_the_edge_are_those_of_the_files(run: Path) -> None:
    results = read(run / "cloud")
    table, conditions = tables(report({"cloud": results}, []))
    base = {
        name: [row["objective"] for row in rows_of(run / "cloud", name)]
        for name in ("local_search", "least_backlog")
    }
    for row in table:
        mine = rows_of(run / "cloud", row["router"])
        objective = [one["objective"] for one in mine]
        assert numbers(row["J"])[0] == pytest.approx(mean(objective), abs=6e-5)
        for name, other in base.items():
            if name != row["router"]:
                difference = mean(a - b for a, b in zip(objective, other, strict=True))
                assert numbers(row[f"Δ to {name}"])[0] == pytest.approx(difference, abs=6e-5)
        backlog = [one["mean_backlog_s"] for one in mine], [one["max_backlog_s"] for one in mine]
        assert numbers(row["backlog, s"]) == pytest.approx([mean(backlog[0]), max(backlog[1])], abs=0.06)
        times = sorted(
            time
            for one in mine
            for time, count in zip(one["curve.decision_ms"], one["curve.requests"], strict=True)
            if count == 4
        )
        assert len(times) == 4 * 5, "every window of the condition with four requests"
        assert numbers(row["decision, ms"])[0] == pytest.approx(median(times), abs=6e-4)
        assert numbers(row["p95, ms"])[0] == pytest.approx(times[math.ceil(0.95 * len(times)) - 1], abs=6e-4)
    assert [row["requests"] for row in conditions] == ["4", "6"]
    for row in conditions:
        for router in results.roles:
            mine = rows_of(run / "cloud", router, requests=row["requests"])
            assert float(row[router]) == pytest.approx(mean(one["objective"] for one in mine), abs=6e-5)


def test_less_is_better_of_the_cloud_and_the_edge(run: Path) -> None:
    results = read(run / "cloud")
    trained = results.scores(results.trained[0], "objective").mean()
    assert trained > results.scores("least_backlog", "objective").mean()
    (line,) = [line for line in findings(results) if "least_backlog" in line]
    assert "are worse than least_backlog: +" in line or "are no different from least_backlog: +" in line
    left, most = numbers(findings(results)[-1])
    mean_backlog, max_backlog = (
        results.scores("local_search", f"{what}_backlog_s") for what in ("mean", "max")
    )
    assert left == pytest.approx(mean_backlog.mean(), abs=0.006)
    assert most == pytest.approx(max_backlog.max(), abs=0.06)


def test_a_part_played_with_other_weights_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    said = (
        "Played with other weights than those of today; play it again. Such a router is trained by `routing-"
    )
    told = save_random(tmp_path / "told", ClusterConfig.create(observation="router"), reward_features=True)
    steered = {"learned": {"path": [str(told)], "reward": ["on_time", "latency"]}}
    usual = cluster_part(tmp_path, conditions={"rate_per_s": [180]}, candidates=[])
    few = {**usual, "routers": {"trained": usual["routers"]["trained"]}, "reference": "deadline_aware"}
    shares = {"train": "routing-gym train cluster-ppo-weights", "steered": [0.0, 1.0], "beside": "cluster"}
    parts = {
        "cluster": few,
        "steered": {**few, "routers": {"trained": [steered]}, "report": shares},
        "cloud": cloud_edge_part(tmp_path),
    }
    played(study(**parts), tmp_path / "out", seeds="1")

    def outdated() -> list[str]:
        sections = report({name: read(tmp_path / "out" / name) for name in parts}, []).split("### ")[1:]
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
