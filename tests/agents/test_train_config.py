"""Configs of training: what is wrong is told by field, and a run's file is the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from routing_agents.train_config import TrainConfig
from routing_gym.cluster.features import reward_features
from routing_gym.common.config import ConfigError, config_names, load_yaml
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS
from routing_gym.rewards import cluster_weights

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")


@pytest.mark.parametrize("name", config_names("agents"))
def test_shipped_configs_are_valid_and_evaluate_on_all_development_seeds(name: str) -> None:
    config = TrainConfig.create(name)
    assert config.evaluation.seeds == tuple(DEVELOPMENT_SEEDS)
    assert {condition.config.space_key for condition in config.conditions()} == {
        getattr(row, "base", row).space_key for row in config.row_conditions()
    }


@pytest.mark.parametrize("name", [name for name in config_names("agents") if name.startswith("cluster")])
def test_cluster_configs_are_judged_on_the_24_conditions_of_the_exploration_study(name: str) -> None:
    conditions = TrainConfig.create(name).conditions()
    assert len({condition.name for condition in conditions}) == 24
    assert {c.config.rate_per_s for c in conditions} == {100, 180, 250}
    assert {c.config.heterogeneity for c in conditions} == {0.5, 1.0}
    assert {c.config.scenario for c in conditions} == {"steady", "burst", "straggler", "failure"}
    assert {c.config.observation for c in conditions} == {"router"}


def test_a_config_survives_its_own_file(tmp_path: Path) -> None:
    config = TrainConfig.create(
        "cluster-ppo", {"seed": 3, "policy.hidden": 32, "vary.rate_per_s": [[90, 99]]}
    )
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert TrainConfig.create(tmp_path / "config.yaml") == config


def test_overrides_reach_every_depth_and_leave_the_rest() -> None:
    plain = TrainConfig.create("cluster-ppo")
    changed = TrainConfig.create(
        "cluster-ppo",
        {"rows": 128, "hyperparameters.gamma": 0.9, "env_kwargs.admission": True, "policy.network": "mlp"},
    )
    assert changed.rows == 128 and changed.policy.network == "mlp"
    assert changed.hyperparameters == {**plain.hyperparameters, "gamma": 0.9}
    # What is trained on is what is evaluated on.
    assert changed.trained_on.base.admission
    assert all(condition.config.admission for condition in changed.conditions())


def test_rows_share_varied_conditions_out_in_turn() -> None:
    config = TrainConfig.create("cloud-edge-ppo", {"vary.rate_per_s": [10, 30], "vary.windows": [5, 6]})
    assert [(row.rate_per_s, row.windows) for row in config.row_conditions()[:5]] == [
        (10, 5),
        (10, 6),
        (30, 5),
        (30, 6),
        (10, 5),
    ]
    assert len(config.row_conditions()) == config.rows


def test_hyperparameters_become_arguments() -> None:
    config = TrainConfig.create(
        "cluster-ppo",
        {"hyperparameters.learning_rate": "lin_8e-4", "hyperparameters.clip_range": "1e-1"},
    )
    arguments = config.algorithm_arguments()
    assert [arguments["learning_rate"](left) for left in (1.0, 0.5, 0.0)] == pytest.approx([8e-4, 4e-4, 0.0])
    assert arguments["clip_range"] == 0.1  # YAML takes 1e-1 for text
    assert config.hyperparameters["learning_rate"] == "lin_8e-4"


@pytest.mark.parametrize("seed, rows", [(0, 1_000_000), (7, 1_070_000)])
def test_training_seeds_are_nobody_elses(seed: int, rows: int) -> None:
    assert TrainConfig.create("cluster-ppo", {"seed": seed}).first_seed == rows


def test_rewards_vary_in_training_and_attainment_is_judged_where_it_is_paid_for() -> None:
    config = TrainConfig.create("cluster-ppo-weights")
    assert config.reward_features and not TrainConfig.create("cluster-ppo").reward_features
    on_time, other = config.trained_on.rewards
    assert on_time == "on_time"
    latency = reward_features(cluster_weights("latency", 50), 50)
    np.testing.assert_allclose(reward_features(other, 50), latency, rtol=1e-6)  # told alike
    assert {condition.config.reward for condition in config.conditions()} == {"on_time"}
    with pytest.raises(ConfigError, match=r"reward_features = True: .*CloudEdgeRequest-v0 has no weights of"):
        TrainConfig.create("cloud-edge-ppo", {"reward_features": True})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rows": 0}, "rows = 0: .*greater than or equal to 1"),
    ({"rows": 10_001}, "rows = 10001: .*less than or equal to 10000"),
    ({"steps": "many"}, "steps = 'many': "),
    ({"polici.hidden": 3}, r"polici is not a field \(did you mean policy\?\)"),
    ({"policy.network": "cnn"}, "policy.network = 'cnn': .*'set' or 'mlp'"),
    ({"algorithm": "SAC"}, "algorithm = 'SAC': .*'PPO', 'MaskablePPO', 'A2C' or 'DQN'"),
    ({"hyperparameters.lr": 1e-3}, "hyperparameters.lr is not a hyperparameter; allowed: learning_rate, "),
    ({"hyperparameters.policy_kwargs": {}}, "hyperparameters.policy_kwargs is not a hyperparameter"),
    ({"hyperparameters.n_steps": 1.5}, "hyperparameters.n_steps = 1.5: .*valid integer"),
    ({"hyperparameters.learning_rate": "lin_x"}, "hyperparameters.learning_rate = 'x': .*valid number"),
    ({"hyperparameters.gamma": "lin_1"}, "hyperparameters.gamma = 'lin_1': .*valid number"),
    (
        {"rows": 255, "hyperparameters.n_steps": 32, "hyperparameters.batch_size": 2048},
        "hyperparameters.batch_size = 2048: must divide a rollout, rows × n_steps = 8160",
    ),
    ({"hyperparameters.batch_size": 1}, "hyperparameters.batch_size = 1: "),
    ({"env_kwargs.rate": 3}, "env_kwargs: ClusterConfig: rate is not a field"),
    ({"env_kwargs.config": "nope"}, "env_kwargs: no cluster config is named 'nope'"),
    ({"vary.replica": [3]}, "env_kwargs or vary: ClusterConfig: replica is not a field"),
    ({"vary.replicas": []}, "vary.replicas = .*at least 1 item"),
    ({"evaluation.every": 0}, "evaluation.every = 0: "),
    ({"evaluation.conditions.scenario": ["x"]}, "evaluation.conditions: ClusterConfig: scenario = 'x'"),
    ({"evaluation.conditions.scenario": []}, "evaluation.conditions.scenario = .*at least 1 item"),
    ({"evaluation.references": ["cluster/no"]}, "evaluation.references = .*no router is named 'cluster/no'"),
    ({"evaluation.references": ["cloud_edge/greedy"]}, "cloud_edge/greedy does not route in"),
]


@pytest.mark.parametrize("overrides, message", WRONG, ids=[str(next(iter(each))) for each, _ in WRONG])
def test_errors_name_the_field_the_value_and_what_is_allowed(overrides: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.create("cluster-ppo", overrides)


@pytest.mark.parametrize(
    "seeds", ["20000-20023", [30000], "9999-10003", [10000, 10000], [1_000_000], "8", "b-a", 10000]
)
def test_only_development_seeds_may_choose(seeds: Any) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.seeds"):
        TrainConfig.create("cluster-ppo", {"evaluation.seeds": seeds})


def test_a_file_is_keyed_by_one_environment() -> None:
    fields = load_yaml("agents", "cluster-ppo")["routing_gym/InferenceCluster-v0"]
    with pytest.raises(ConfigError, match="must hold one environment's id"):
        TrainConfig.create(fields)
    with pytest.raises(ConfigError, match=r"env = 'CartPole-v1': must be one of routing_gym/Inference"):
        TrainConfig.create({"CartPole-v1": fields})
    with pytest.raises(ConfigError, match=r"no agents config is named 'cluster-pp'.*mean cluster-ppo"):
        TrainConfig.create("cluster-pp")


def test_shipped_files_read_as_in_rl_zoo() -> None:
    for name in config_names("agents"):
        ((env, fields),) = load_yaml("agents", name).items()
        assert env.startswith("routing_gym/")
        whole = yaml.safe_load(TrainConfig.create(name).to_yaml())[env]
        assert whole.keys() == {"vary", "reward_features", *fields}
