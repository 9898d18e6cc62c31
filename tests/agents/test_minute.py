"""A minute of training is enough to route better than the documented routers do."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from routing_gym.cluster.config import ClusterConfig
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS, Condition, Router, make_jobs, run_jobs

DOCUMENTED = ("round_robin", "least_queue", "latency_aware", "adaptive")
CONDITIONS = [
    Condition("steady, 250/s", ClusterConfig.create(scenario="steady", rate_per_s=250, heterogeneity=1)),
    Condition(
        "straggler, 180/s", ClusterConfig.create(scenario="straggler", rate_per_s=180, heterogeneity=1)
    ),
]
# The shipped config, but for its length: so many decisions take one core about a minute.
FIELDS: dict[str, Any] = {
    "steps": 1_500_000,
    "evaluation.every": 1_500_000,
    "evaluation.conditions.scenario": ["steady", "straggler"],
    "evaluation.conditions.rate_per_s": [180, 250],
    "evaluation.conditions.heterogeneity": [1.0],
    "evaluation.references": [],
}


@pytest.mark.slow
def test_a_minute_of_training_beats_the_documented_routers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("stable_baselines3", "sb3_contrib", "tensorboard"):
        pytest.importorskip(needed, reason=f"needs {needed}, of the extra `agents`")
    from routing_agents import callbacks
    from routing_agents.train_config import TrainConfig
    from routing_agents.training import train

    monkeypatch.setattr(callbacks, "draw_curves", lambda folder, metric: None)
    train(TrainConfig.create("cluster-ppo", FIELDS), tmp_path / "run", export=tmp_path / "router")

    routers = [Router("learned", "cluster/learned", {"path": str(tmp_path / "router")})]
    routers += [Router(name, f"cluster/{name}") for name in DOCUMENTED]
    shares: dict[tuple[str, str], list[float]] = {}
    for result in run_jobs(make_jobs(routers, CONDITIONS, DEVELOPMENT_SEEDS)):
        key = result.job.condition.name, result.job.router.label
        shares.setdefault(key, []).append(result.metrics["attainment"])
    means = {key: statistics.fmean(values) for key, values in shares.items()}
    for condition in CONDITIONS:
        best = max(means[condition.name, name] for name in DOCUMENTED)
        assert means[condition.name, "learned"] > best, means
