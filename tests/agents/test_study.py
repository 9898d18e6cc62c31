"""The study of trained routers: what is asked of which, and what the page needs to know of it."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest

from routing_agents.folder import WEIGHTS, load, save
from routing_agents.learned import shipped
from routing_agents.manifest import LearnedError
from routing_agents.study import Report
from routing_gym.common.config import load_yaml, validate
from routing_gym.evaluation.results import ResultsError, read_plan
from routing_gym.evaluation.runner import VALIDATION_SEEDS
from routing_gym.rewards import cluster_weights
from routing_gym.studies.config import Part, Study
from tests.agents.studies import CANDIDATES, cluster_part, played, study

SHIPPED = Study.create("learned")
REPORTS = {name: validate(Report, part.report) for name, part in SHIPPED.parts.items()}
each_part = pytest.mark.parametrize("name", SHIPPED.parts)


def trained(part: Part) -> list[str]:
    return [router.params["name"] for router in part.groups()["trained"]]


# What ships


def test_the_shipped_study_has_every_part_with_three_training_seeds() -> None:
    kinds = {
        **{name: name for name in ("predicted", "hidden", "admission")},
        "replicas": "predicted",
        "traces": "predicted",
        **{name: name for name in ("testbed", "routerbench")},
    }
    assert list(SHIPPED.parts) == [
        *("predicted", "hidden", "admission", "replicas", "traces", "weights", "testbed", "routerbench")
    ]
    for name, kind in kinds.items():
        assert trained(SHIPPED.parts[name]) == [f"{kind}-{seed}" for seed in range(3)]
    assert set(trained(SHIPPED.parts["weights"])) == {"weighted"}


@each_part
def test_routers_that_a_part_names_ship(name: str) -> None:
    part = SHIPPED.parts[name]
    routers = [router for listed in part.groups().values() for router in listed]
    named = {router.params["name"] for router in routers if router.name.endswith("/learned")}
    assert named and named <= set(shipped(part.family))


@each_part
def test_what_the_page_needs_to_know_fits_the_part(name: str) -> None:
    part, report = SHIPPED.parts[name], REPORTS[name]
    labels = {router.label for listed in part.groups().values() for router in listed}
    assert set(report.also) <= labels
    assert report.beside is None or report.beside in SHIPPED.parts
    assert report.split is None or report.split in part.conditions[0]
    assert (report.decision_batch is not None) == (part.family == "cloud_edge")
    assert report.train.endswith(f"/weights/{part.family}/{trained(part)[0]}")


@pytest.mark.parametrize("name", ["predicted", "hidden", "admission", "weights"])
def test_the_exploration_study_has_24_conditions(name: str) -> None:
    conditions = SHIPPED.parts[name].conditions_played()
    found = {(c.config.rate_per_s, c.config.heterogeneity, c.config.scenario) for c in conditions}
    scenarios = ("steady", "burst", "straggler", "failure")
    assert found == set(itertools.product((100.0, 180.0, 250.0), (0.5, 1.0), scenarios))
    assert len(conditions) == len({c.name for c in conditions}) == 24
    for condition in conditions:
        assert condition.config.admission == (name == "admission")
        assert condition.config.prediction_sigma == (None if name == "hidden" else 0.5)


def test_a_steered_router_plays_what_the_part_beside_it_plays() -> None:
    beside, steered = SHIPPED.parts["predicted"], SHIPPED.parts["weights"]
    assert REPORTS["weights"].beside == "predicted"
    assert steered.conditions_played() == beside.conditions_played()
    assert steered.seeds_played() == beside.seeds_played() == list(VALIDATION_SEEDS)


def test_a_steered_router_is_told_rewards_between_those_of_training() -> None:
    """(1 - w)·on_time + w·(a tenth of latency), for w from 0 to 1."""
    (training,) = load_yaml("agents", "cluster-ppo-weights").values()
    shares = REPORTS["weights"].steered
    assert shares == pytest.approx([k / 10 for k in range(11)])
    first, second = (np.array(cluster_weights(reward, 50.0)) for reward in training["env_kwargs"]["rewards"])
    assert second == pytest.approx(np.array(cluster_weights("latency", 50.0)) / 10.0)
    routers = SHIPPED.parts["weights"].groups()["trained"]
    for router, share in zip(routers, shares, strict=True):
        assert router.params["reward"] == pytest.approx((1.0 - share) * first + share * second)
    # A half, written out: 1/2 for a request on time, -1/2 for one shed, -1/20 for each deadline waited.
    assert routers[5].params["reward"] == pytest.approx([0.5, 0.0, -0.5, -0.001, 0.0])


def test_more_replicas_keep_the_load_of_three() -> None:
    """ρ = λ · 11 / Σ(11/m): worked out by hand for (8, 11, 16) and its repetitions."""
    conditions = SHIPPED.parts["replicas"].conditions_played()
    assert len(conditions) == 48
    for condition in conditions:
        config, labels = condition.config, condition.labels
        service = [11.0 + config.heterogeneity * (m - 11.0) for m in (8.0, 11.0, 16.0)]
        usual = labels["rate_per_s"] / 1000.0 * 11.0 / sum(11.0 / m for m in service)
        assert config.load == pytest.approx(usual, rel=1e-9)
        assert config.replicas == labels["replicas"]
        assert labels["load"] == pytest.approx(usual, abs=1e-4)


def test_traces_are_played_at_load_0_9(tmp_path: Path) -> None:
    part = SHIPPED.parts["traces"]
    for name in part.traces:
        rows = "\n".join(f"{k / 5},100,{20 + k % 7}" for k in range(6000))
        (tmp_path / name).write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    conditions = part.conditions_played(tmp_path)
    assert [c.labels["trace"] for c in conditions] == part.traces
    assert [c.config.load for c in conditions] == [0.9, 0.9]


# Weights


def test_a_study_is_of_the_weights_that_it_was_begun_with(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    out = tmp_path / "out"
    small = cluster_part(tmp_path, conditions={"rate_per_s": [180]}, candidates=CANDIDATES[:2])
    played(study(part=small), out, seeds="1")
    found = read_plan(out / "part")["run"]["fingerprints"]
    assert found == {
        f"learned:path={folder}": [{"weights": hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()}]
        for folder in (tmp_path / "cluster-0", tmp_path / "cluster-1")
    }
    manifest, weights = load(tmp_path / "cluster-1")
    changed = {name: np.float32(-1.0) * array for name, array in weights.items()}
    save(tmp_path / "cluster-1", manifest, changed, overwrite=True)
    with pytest.raises(ResultsError, match=r"holds another run \(fingerprints differ\)"):
        played(study(part=small), out, seeds="1")
    save(tmp_path / "cluster-1", manifest, weights, overwrite=True)
    played(study(part=small), out, seeds="1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routers": {"trained": ["learned:path=never-trained"]}}, "never-trained: there is no such folder"),
        ({"fields": {"admission": True}}, "admission = False"),
    ],
)
def test_a_router_that_is_missing_or_does_not_fit_is_refused_before_anything_is_played(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    parts = {"fine": cluster_part(tmp_path), "part": cluster_part(tmp_path, **change)}
    with pytest.raises(LearnedError, match=message):
        played(study(**parts), tmp_path / "out")
    assert not (tmp_path / "out").exists()
