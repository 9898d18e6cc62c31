"""A third party's router: installed as a package of its own, it is found by name and plays."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import routing_gym
from tests.baselines.states import observation

EXAMPLE = Path(__file__).parents[1] / "examples" / "custom_router"

SESSION = """
import gymnasium as gym, routing_gym

assert "cluster/least_tokens" in routing_gym.list_policies("cluster")
router = routing_gym.make_policy("cluster/least_tokens", output_weight=5)
assert type(router) is type(routing_gym.make_policy("least_tokens"))
try:
    routing_gym.make_policy("least_token")
except ValueError as error:
    assert "cluster/least_tokens" in str(error), error

env = gym.make("routing_gym/InferenceCluster-v0", warmup_s=0.5, measured_s=1)
observation, info = env.reset(seed=1)
state, start, truncated = router.initial_state([1]), True, False
while not truncated:
    action, state = router.predict(observation, state, start, action_masks=info["action_mask"])
    observation, reward, terminated, truncated, info = env.step(action)
    start = False
print("attainment", info["episode_metrics"]["attainment"])
"""


def test_the_example_installs_and_plays(tmp_path: Path) -> None:
    """By pip, without a network: built by the hatchling that is here, into a folder of its own."""
    pytest.importorskip("hatchling", reason="needs hatchling, of the dev extra, to build the example")
    source, target = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "dist"))
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    run(*install, "--target", str(target), str(source), env=environment)
    assert {path.name for path in target.glob("*.py")} == {"least_tokens.py"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH")]))
    played = run(sys.executable, "-W", "error", "-c", SESSION, env=environment, cwd=tmp_path)
    assert 0 < float(played.split()[-1]) <= 1


def run(*command: str, **kwargs: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **kwargs)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_example_routes_by_tokens() -> None:
    """Worked by hand: 100 + 7 · 10 = 170, 0 + 7 · 30 = 210, 240 + 0; and with weights of 4 and 0."""
    spec = importlib.util.spec_from_file_location("least_tokens_example", EXAMPLE / "least_tokens.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    state = observation(outstanding_prompt_tokens=[100, 0, 240], outstanding_predicted_tokens=[10, 30, 0])
    assert module.LeastTokens().predict(state)[0] == 0
    assert module.LeastTokens(output_weight=4).predict(state)[0] == 1
    assert module.LeastTokens(output_weight=100).predict(state)[0] == 2
    batch = {name: np.stack([value] * 2) for name, value in state.items()}
    batch["eligible"][1] = [0, 1, 1]
    assert module.LeastTokens().predict(batch)[0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="output_weight = -1: must not be negative"):
        module.LeastTokens(output_weight=-1)


def test_it_is_not_found_where_it_is_not_installed() -> None:
    if "cluster/least_tokens" in routing_gym.list_policies():
        pytest.skip("examples/custom_router is installed here")
    with pytest.raises(ValueError, match="no router is named 'cluster/least_tokens'"):
        routing_gym.make_policy("cluster/least_tokens")
