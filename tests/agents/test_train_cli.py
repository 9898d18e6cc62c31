"""`routing-gym train`: what can be typed, and what it answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from routing_gym import cli, make_policy

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")
pytest.importorskip("tensorboard")

from routing_agents import callbacks, training
from routing_agents.run_folder import read_table
from routing_agents.train_config import TrainConfig
from tests.agents.training_runs import ROLLOUTS, SMALL

SETS = [f"--set={field}={value}" for field, value in (SMALL | ROLLOUTS).items()]
OUTCOME = training.Outcome(
    Path("somewhere"), 512, {"steps": 256, "attainment": 0.5}, {"deadline_aware": {"attainment": None}}
)


class Answer(NamedTuple):
    """What a command ended with and printed."""

    status: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Type `routing-gym train …` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROUTING_GYM_TRACEBACK", raising=False)
    monkeypatch.setattr(callbacks, "draw_curves", lambda folder, metric: None)

    def typed(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["routing-gym", "train", *map(str, arguments)])
        status = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        return Answer(status, *capsys.readouterr())

    return typed


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Do not train, and tell what was to be trained and how."""
    seen: dict[str, Any] = {}

    def spy(config: TrainConfig, out: Path, **how: Any) -> training.Outcome:
        seen.update(config=config, out=out, **how)
        return OUTCOME

    monkeypatch.setattr(training, "train", spy)
    return seen


def test_training_from_the_command_line_writes_a_run_and_a_router(run: Run, tmp_path: Path) -> None:
    answer = run("cluster-ppo", *SETS, "--steps=512", "--seed=3", "--out=run", "--export=router")
    assert answer.status == 0
    assert "least_work" in answer.out and "attainment" in answer.out
    assert "router in router" in answer.out
    ((_, fields),) = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()).items()
    assert (fields["steps"], fields["seed"], fields["rows"]) == (512, 3, 8)
    about = yaml.safe_load((tmp_path / "run" / "about.yaml").read_text())
    assert about["command"].startswith("routing-gym train cluster-ppo")
    assert make_policy("cluster/learned", path="router").manifest.command == about["command"]
    assert int(read_table(tmp_path / "run" / "progress.csv")[-1]["steps"]) == 512

    again = run("cluster-ppo", *SETS, "--steps=512", "--seed=3", "--out=run")
    assert again.status == 2 and "already holds a run" in again.err
    other = run("cluster-ppo", *SETS, "--steps=512", "--seed=4", "--out=run", "--resume")
    assert other.status == 2 and "seed is 3 there and 4 here" in " ".join(other.err.split())
    # A run's own config is enough to go on.
    resumed = run("run/config.yaml", "--out=run", "--resume", "--quiet")
    assert resumed == Answer(0, "", "")


def test_every_field_can_be_set(run: Run, asked: dict[str, Any]) -> None:
    answer = run(
        *("cluster-ppo", "--rows=128", "--steps=7", "--seed=2", "--set", "hyperparameters.gamma=.5"),
        *("--set", "policy.network=mlp", "--set", "env_kwargs.admission=true", "--set", "evaluation.every=9"),
        *("--overwrite", "--quiet"),
    )
    assert answer == Answer(0, "", "")
    config = asked["config"]
    assert (config.rows, config.steps, config.seed, config.evaluation.every) == (128, 7, 2, 9)
    assert config.hyperparameters["gamma"] == 0.5
    assert config.policy.network == "mlp"
    assert config.trained_on.base.admission
    assert asked["out"] == Path("runs/cluster-ppo")
    assert (asked["resume"], asked["overwrite"], asked["export"]) == (False, True, None)


def test_what_is_not_defined_is_shown_as_such(run: Run, asked: dict[str, Any]) -> None:
    answer = run("cluster-ppo")
    assert answer.status == 0
    assert "learned, step 256" in answer.out and "0.5" in answer.out and "—" in answer.out
    assert "Run in somewhere" in answer.out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["cluster-pp"], "no agents config is named 'cluster-pp'"),
        (["cluster-ppo", "--set", "evaluation.seeds=20000-20003"], "evaluation.seeds = '20000-20003'"),
        (["cluster-ppo", "--set", "gamma=.9"], "gamma is not a field"),
        (["cluster-ppo", "--set", "gamma"], "must be NAME=VALUE"),
        (["cluster-ppo", "--rows", "-1"], "rows = -1"),
        (["missing.yaml"], "cannot read the config missing.yaml"),
        (["cluster-ppo", "--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, arguments: list[str], message: str, tmp_path: Path) -> None:
    answer = run(*arguments)
    assert answer.status == 2
    assert message in answer.err and answer.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupted)
    answer = run("cluster-ppo", "--out", "here")
    assert answer.status == 130
    assert "--resume goes on from the last checkpoint in here" in answer.err


def test_without_the_extra_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "routing_agents.training")
    monkeypatch.setitem(sys.modules, "torch", None)
    answer = run("cluster-ppo")
    assert answer.status == 2
    assert 'pip install "routing-gym[agents]"' in answer.err
