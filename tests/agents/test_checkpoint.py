"""Checkpoints: a run that was stopped, however, ends as one that was not, bit for bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")
pytest.importorskip("tensorboard")

import torch
from stable_baselines3 import PPO

from routing_agents import callbacks
from routing_agents.checkpoint import CheckpointError, read_notes, restore_checkpoint
from routing_agents.run_folder import RunError, read_table
from routing_agents.training import build_model, train
from tests.agents.training_runs import OWN, assert_same_run, tiny

ALGORITHMS = sorted(OWN)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not draw: a picture takes longer than a run."""
    monkeypatch.setattr(callbacks, "draw_curves", lambda folder, metric: None)


def stop_at(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Interrupt training during the first rollout that passes so many steps, long after a checkpoint."""

    def on_step(self: Any) -> bool:
        if self.model.num_timesteps >= steps:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(callbacks.Follow, "_on_step", on_step)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_interrupted_run_ends_as_one_that_was_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(name, steps=1024, evaluation__every=700)  # the first episodes have ended by then
    whole = train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 900)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "halted")
    assert 700 <= read_notes(tmp_path / "halted" / "last.zip")["evaluated"] < 900
    with pytest.raises(RunError, match="already holds a run; go on with --resume, or --overwrite it"):
        train(config, tmp_path / "halted")
    resumed = train(config, tmp_path / "halted", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "halted")
    assert (whole.steps, whole.best, whole.references) == (resumed.steps, resumed.best, resumed.references)
    assert whole.steps >= 1024
    # Learning has happened, and episodes have ended on the way.
    rewards = [row["rollout/ep_rew_mean"] for row in read_table(tmp_path / "whole" / "progress.csv")]
    assert rewards[-2] and float(rewards[-2]) > 0


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    config = tiny(steps=512)
    train(config, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    again = train(config, tmp_path / "run", resume=True)
    assert again.steps == 512
    after = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert after == before


KILLED = """
import sys
from pathlib import Path
from routing_agents import callbacks
from routing_agents.train_config import TrainConfig
from routing_agents.training import train
callbacks.draw_curves = lambda folder, metric: None
train(TrainConfig.create(Path(sys.argv[1])), sys.argv[2])
"""


def test_a_killed_run_leaves_a_checkpoint_that_loads_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    config = tiny(steps=4096, evaluation__conditions__rate_per_s=[180])
    whole = train(config, tmp_path / "whole")
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "config.yaml", folder])
    try:
        limit = time.monotonic() + 120
        while not any(int(row["steps"]) > 500 for row in read_table(folder / "evaluations.csv")):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < limit
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    done = read_notes(folder / "last.zip")["evaluated"]
    assert 0 <= done < config.steps
    assert PPO.load(folder / "last.zip", device="cpu").num_timesteps == done  # the library reads it, too
    resumed = train(config, folder, resume=True)
    assert_same_run(tmp_path / "whole", folder)
    assert resumed.best == whole.best


def test_a_checkpoint_restores_every_generator(tmp_path: Path) -> None:
    config = tiny("cluster-dqn", steps=512)
    train(config, tmp_path / "run")
    draws = []
    for _ in range(2):
        model = build_model(config)
        restore_checkpoint(tmp_path / "run" / "last.zip", model)
        envs = model.get_env()
        assert envs is not None and model._last_obs is not None
        observed = [envs.step(np.zeros(8, np.int64))[0] for _ in range(150)]
        draws.append(
            (random.random(), np.random.rand(), torch.rand(1).item(), model.action_space.sample(), observed)
        )
        envs.close()
    assert draws[0][:4] == draws[1][:4]
    np.testing.assert_array_equal(draws[0][4], draws[1][4])


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    config = tiny(steps=256)
    train(config, tmp_path / "run")
    path = tmp_path / "run" / "last.zip"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"last\.zip cannot be restored: "):
        train(config, tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match=r"last\.zip is not a checkpoint: "):
        read_notes(path)
    path.write_bytes(whole)
    other = tiny(steps=256, policy__hidden=8)
    with pytest.raises(CheckpointError, match="size mismatch"):
        restore_checkpoint(path, build_model(other))
    fewer = tiny(steps=256, rows=4)
    with pytest.raises(CheckpointError):
        restore_checkpoint(path, build_model(fewer))
