"""Policies of Stable-Baselines3 and sb3-contrib: one pass each call, masks, zips, and the router exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason='needs the extra: pip install "routing-gym[agents]"')
pytest.importorskip("stable_baselines3", reason='needs the extra: pip install "routing-gym[agents]"')
pytest.importorskip("sb3_contrib", reason='needs the extra: pip install "routing-gym[agents]"')

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DQN, PPO

from routing_agents.inference import Forward, likeliest
from routing_agents.networks import router_weights
from routing_agents.sb3_policies import MaskableRouterPolicy, RouterDQNPolicy, RouterPolicy, network_of
from routing_gym.common.features import unflatten

G, F, N, H = 2, 3, 4, 8
SPACE = gym.spaces.Box(-1.0, 1.0, (G + N * F,), np.float32)


class Pick(gym.Env[NDArray[np.float32], Any]):
    """Ten steps of choosing the element whose first feature is the largest; one element is masked."""

    def __init__(self, admission: bool = False) -> None:
        self.observation_space = SPACE
        self.action_space = gym.spaces.Discrete(N + admission)

    def _look(self) -> NDArray[np.float32]:
        self.shown = self.np_random.uniform(-1, 1, SPACE.shape).astype(np.float32)
        return self.shown

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.masked = 0, int(self.np_random.integers(N))
        return self._look(), {}

    def action_masks(self) -> NDArray[np.bool_]:
        return np.arange(int(self.action_space.n)) != self.masked  # type: ignore[attr-defined]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        scores = self.shown[G::F]
        self.steps += 1
        reward = float(scores[action]) if action < N else 0.0
        return self._look(), reward, False, self.steps == 10, {}


def sizes(network: str = "set", admission: bool = False) -> dict[str, Any]:
    return {"network": network, "hidden": H, "context": G, "element": F, "admission": admission}


SMALL: dict[str, dict[str, Any]] = {
    "PPO": {"n_steps": 16, "batch_size": 8, "n_epochs": 2},
    "A2C": {"n_steps": 8},
    "MaskablePPO": {"n_steps": 16, "batch_size": 8, "n_epochs": 2},
    "DQN": {"buffer_size": 64, "learning_starts": 8, "batch_size": 8, "target_update_interval": 10},
}
ALGORITHMS = {
    "PPO": (PPO, RouterPolicy),
    "A2C": (A2C, RouterPolicy),
    "MaskablePPO": (MaskablePPO, MaskableRouterPolicy),
    "DQN": (DQN, RouterDQNPolicy),
}


def trained(name: str, network: str, admission: bool) -> Any:
    algorithm, policy = ALGORITHMS[name]
    kwargs = sizes(network, admission)
    model = algorithm(
        policy, Pick(admission), policy_kwargs=kwargs, seed=3, device="cpu", learning_rate=1e-2, **SMALL[name]
    )
    return model.learn(64)


def weights_of(model: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


@pytest.mark.parametrize("admission", [False, True])
@pytest.mark.parametrize("network", ["set", "mlp"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_saving_and_exporting(tmp_path: Path, name: str, network: str, admission: bool) -> None:
    """A zip gives back the policy, and the exported weights choose in NumPy as the policy does in torch."""
    algorithm, _ = ALGORITHMS[name]
    model = trained(name, network, admission)
    model.save(tmp_path / "model.zip")
    again = algorithm.load(tmp_path / "model.zip", device="cpu")
    for key, value in weights_of(again).items():
        assert torch.equal(value, weights_of(model)[key])
    shown = np.random.default_rng(0).uniform(-1, 1, (300, *SPACE.shape)).astype(np.float32)
    actions, _ = again.predict(shown, deterministic=True)
    assert actions.tolist() == model.predict(shown, deterministic=True)[0].tolist()
    of = network_of(again.policy)
    logits = Forward(of.sizes, router_weights(of))(unflatten(shown, N, F, G))
    best = np.sort(logits, axis=-1)
    clear = best[:, -1] - best[:, -2] > 1e-5
    assert clear.mean() > 0.9
    assert (likeliest(logits, np.ones_like(logits, bool)) == actions)[clear].all()
    single, _ = again.predict(shown[0], deterministic=True)
    assert int(single) == actions[0]


@pytest.mark.parametrize("network", ["set", "mlp"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_moves_every_weight_that_it_uses(name: str, network: str) -> None:
    algorithm, policy = ALGORITHMS[name]
    fresh = algorithm(policy, Pick(), policy_kwargs=sizes(network), seed=3, device="cpu")
    before, after = weights_of(fresh), weights_of(trained(name, network, False))
    still = {key for key, value in before.items() if torch.equal(value, after[key])}
    # Action values need no critic.
    assert all(name == "DQN" and ("critic" in key or "value" in key) for key in still)


def test_training_is_decided_by_its_seed() -> None:
    first, second = (weights_of(trained("MaskablePPO", "set", True)) for _ in range(2))
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def test_the_set_learns_to_pick() -> None:
    """By chance it would name the best element in a quarter of the cases."""
    torch.manual_seed(0)
    model = PPO(
        RouterPolicy,
        Pick(),
        policy_kwargs=sizes(),
        seed=0,
        device="cpu",
        n_steps=256,
        batch_size=64,
        learning_rate=5e-3,
        gamma=0.0,
    )
    shown = np.random.default_rng(1).uniform(-1, 1, (500, *SPACE.shape)).astype(np.float32)

    def share() -> float:
        return float((model.predict(shown, deterministic=True)[0] == shown[:, G::F].argmax(axis=1)).mean())

    model.learn(2048)
    assert share() > 0.8


POLICIES = {"plain": RouterPolicy, "maskable": MaskableRouterPolicy}


def make(kind: str, network: str = "set", admission: bool = False) -> Any:
    torch.manual_seed(0)
    policy = POLICIES[kind](
        SPACE, gym.spaces.Discrete(N + admission), lambda _: 1e-3, **sizes(network, admission)
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(0.0, 0.5)
    return policy


CALLS: dict[str, Callable[..., Any]] = {
    "forward": lambda policy, shown, actions: policy(shown),
    "evaluate_actions": lambda policy, shown, actions: policy.evaluate_actions(shown, actions),
    "predict_values": lambda policy, shown, actions: policy.predict_values(shown),
    "get_distribution": lambda policy, shown, actions: policy.get_distribution(shown),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", POLICIES)
def test_a_call_runs_the_network_once(kind: str, call: str) -> None:
    policy = make(kind)
    passes: list[int] = []
    policy.network.encoder_out.register_forward_hook(lambda *_: passes.append(1))
    CALLS[call](policy, torch.randn(5, *SPACE.shape), torch.zeros(5, dtype=torch.long))
    assert len(passes) == 1


@pytest.mark.parametrize("admission", [False, True])
@pytest.mark.parametrize("network", ["set", "mlp"])
@pytest.mark.parametrize("kind", POLICIES)
def test_what_is_told_of_actions(kind: str, network: str, admission: bool) -> None:
    policy = make(kind, network, admission)
    shown = torch.randn(50, *SPACE.shape)
    count = N + admission
    masks = torch.rand(50, count) < 0.6
    masks[:, 1] = True
    given: dict[str, Any] = {"action_masks": masks.numpy()} if kind == "maskable" else {}
    with torch.no_grad():
        logits, due_values = policy.network(shown)
        if given:
            logits = torch.where(masks, logits, -torch.inf)
        due = logits.log_softmax(dim=1)
        actions, values, log_probs = policy(shown, **given)
        assert actions.shape == (50,)
        assert torch.equal(values, due_values)
        assert torch.allclose(log_probs, due.gather(1, actions[:, None])[:, 0], atol=1e-6)
        best, *_ = policy(shown, deterministic=True, **given)
        assert torch.equal(best, logits.argmax(dim=1))
        same_values, same_log_probs, entropy = policy.evaluate_actions(shown, actions, **given)
        assert torch.equal(same_values, due_values)
        assert torch.equal(same_log_probs, log_probs)
        plain = due.exp() * due.clamp(min=-1e6)
        assert torch.allclose(entropy, -plain.sum(dim=1), atol=1e-5)
        assert torch.equal(policy.predict_values(shown), due_values)
    if given:
        for _ in range(20):
            sampled, _ = policy.predict(shown.numpy(), deterministic=False, action_masks=masks.numpy())
            assert masks.numpy()[np.arange(50), sampled].all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_policy_can_be_saved_alone(tmp_path: Path, name: str) -> None:
    model = trained(name, "set", True)
    model.policy.save(tmp_path / "policy.pt")
    shown = np.random.default_rng(2).uniform(-1, 1, (20, *SPACE.shape)).astype(np.float32)
    again = type(model.policy).load(tmp_path / "policy.pt", device="cpu")
    due, _ = model.policy.predict(shown, deterministic=True)
    assert again.predict(shown, deterministic=True)[0].tolist() == due.tolist()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sizes_that_do_not_fit_the_environment(name: str) -> None:
    algorithm, policy = ALGORITHMS[name]
    with pytest.raises(ValueError, match="actions = 4: must be 5 for 4 elements with admission"):
        algorithm(policy, Pick(), policy_kwargs=sizes(admission=True), device="cpu", **SMALL[name])
