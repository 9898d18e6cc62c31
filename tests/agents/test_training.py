"""Training: it runs, is judged on development seeds by the runner, and keeps what it says it keeps."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing_gym import make_policy
from routing_gym.cluster.features import REWARD_FEATURES
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS, Condition, Router, make_jobs, run_jobs

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")
pytest.importorskip("tensorboard")

from routing_agents import callbacks, training
from routing_agents.curves import draw_curves
from routing_agents.run_folder import RunError, RunFolder, read_table
from routing_agents.train_config import TrainConfig
from routing_agents.training import build_model, train
from tests.agents.training_runs import assert_same_run, members, tiny


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not draw: a picture takes longer than a run."""
    monkeypatch.setattr(callbacks, "draw_curves", lambda folder, metric: None)


def test_other_seeds_train_other_weights(tmp_path: Path) -> None:
    weights = []
    for seed in (0, 1):
        train(tiny(steps=256, seed=seed), tmp_path / str(seed))
        weights.append(members(tmp_path / str(seed) / "last.zip")["policy.pth"])
    assert weights[0] != weights[1]


def test_best_is_the_best_evaluation_and_its_export_plays_as_scored(tmp_path: Path) -> None:
    config = tiny(steps=1024)
    outcome = train(config, tmp_path / "run", export=tmp_path / "router")
    rows = read_table(tmp_path / "run" / "evaluations.csv")
    scores = {
        int(row["steps"]): float(row["attainment"])
        for row in rows
        if (row["router"], row["condition"]) == ("learned", "all")
    }
    assert outcome.best["attainment"] == max(scores.values()) == scores[outcome.best["steps"]]
    assert min(scores) == 0 and max(scores) == outcome.steps

    router = make_policy("cluster/learned", path=str(tmp_path / "router"))
    assert router.manifest.training["seed"] == config.seed
    assert router.manifest.scores["development seeds, this router"]["attainment"] == max(scores.values())
    assert router.manifest.config["base"]["measured_s"] == 0.375
    played = callbacks.evaluate(
        config, Router("again", "cluster/learned", {"path": str(tmp_path / "router")})
    )
    assert played["all"]["attainment"] == max(scores.values())

    taken = "router is there already; choose another --export, or "
    with pytest.raises(RunError, match=f"{taken}--overwrite it and the run in --out$"):
        train(config, tmp_path / "other", export=tmp_path / "router")
    with pytest.raises(RunError, match=f"{taken}remove it$"):  # overwriting would throw the run away
        train(config, tmp_path / "other", resume=True, export=tmp_path / "router")
    assert not (tmp_path / "other").exists()
    train(config, tmp_path / "run", resume=True, export=tmp_path / "second")
    for name in ("weights.safetensors", "manifest.json"):
        assert (tmp_path / "router" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    train(tiny(steps=256), tmp_path / "run", overwrite=True, export=tmp_path / "second")
    assert make_policy("cluster/learned", path=str(tmp_path / "second")).manifest.training["steps"] == 256


def test_evaluations_are_the_runners_on_development_seeds(tmp_path: Path) -> None:
    config = tiny(steps=256)
    outcome = train(config, tmp_path / "run")
    condition: Condition = config.conditions()[1]
    seeds = config.evaluation.seeds
    assert set(seeds) <= set(DEVELOPMENT_SEEDS)
    results = list(run_jobs(make_jobs([Router("w", "cluster/least_work")], config.conditions(), seeds)))
    own = [r.metrics["attainment"] for r in results if r.job.condition.name == condition.name]
    (row,) = [
        row
        for row in read_table(tmp_path / "run" / "evaluations.csv")
        if (row["router"], row["condition"]) == ("least_work", condition.name)
    ]
    assert float(row["attainment"]) == np.mean(own)
    overall = np.mean([r.metrics["attainment"] for r in results])
    assert outcome.references["least_work"]["attainment"] == pytest.approx(overall)


def test_training_seeds_are_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    made = training.make_sb3_env

    def spy(env: str, rows: int, seed: int, **kwargs: Any) -> Any:
        seen.update(rows=rows, seed=seed)
        return made(env, rows, seed, **kwargs)

    monkeypatch.setattr(training, "make_sb3_env", spy)
    build_model(tiny(seed=2))
    assert seen == {"rows": 8, "seed": 1_020_000}


def test_a_router_is_trained_and_kept_with_the_weights_of_its_reward(tmp_path: Path) -> None:
    config = tiny("cluster-ppo-weights", steps=256)
    outcome = train(config, tmp_path / "run", export=tmp_path / "router")
    router = make_policy("cluster/learned", path=str(tmp_path / "router"), reward="latency")
    assert router.manifest.context_features[-5:] == REWARD_FEATURES
    assert router.manifest.config["rewards"][0] == "on_time"
    assert router.manifest.training["reward_features"] is True
    # It was judged by attainment where that is what it was told to want.
    wanted = {"path": str(tmp_path / "router"), "reward": "on_time"}
    played = callbacks.evaluate(config, Router("again", "cluster/learned", wanted))
    assert played["all"]["attainment"] == outcome.best["attainment"]


def test_a_run_folder_tells_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "draw_curves", draw_curves)
    config = tiny(steps=512)
    train(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run", config, resume=True)
    assert folder.config() == config
    about = folder.about()
    assert about["versions"].keys() >= {"torch", "stable-baselines3", "routing-gym", "numpy"}
    assert about["command"]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    with open(folder / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["steps"]) for row in rows if row["train/loss"]] == [256, 512]


@pytest.fixture
def cloud_edge(tmp_path: Path) -> Iterator[Any]:
    yield TrainConfig.create(
        "cloud-edge-ppo",
        {
            "rows": 4,
            "steps": 256,
            "env_kwargs.windows": 3,
            "vary.rate_per_s": [5, 8],
            "policy.hidden": 8,
            "hyperparameters.n_steps": 32,
            "hyperparameters.batch_size": 64,
            "evaluation.every": 128,
            "evaluation.seeds": [10000],
            "evaluation.conditions.rate_per_s": [5],
            "evaluation.references": ["cloud_edge/greedy"],
        },
    )


def test_the_cloud_and_edge_are_trained_the_same_way(tmp_path: Path, cloud_edge: Any) -> None:
    outcome = train(cloud_edge, tmp_path / "run", export=tmp_path / "router")
    again = train(cloud_edge, tmp_path / "again")
    assert_same_run(tmp_path / "run", tmp_path / "again")
    rows = read_table(tmp_path / "run" / "evaluations.csv")
    scores = [
        float(row["objective"]) for row in rows if (row["router"], row["condition"]) == ("learned", "all")
    ]
    assert outcome.best["objective"] == min(scores) == again.best["objective"]  # J: less is better
    router = make_policy("cloud_edge/learned", path=str(tmp_path / "router"))
    assert router.manifest.network == "set"
