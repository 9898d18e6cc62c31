"""Policies of Stable-Baselines3 and sb3-contrib that are built of this package's networks.

All take `policy_kwargs = {"network": "set" or "mlp", "hidden": H, "context": G, "element": F, "admission":
bool}` on flat features, as `routing_gym.wrappers.VectorFeatureObservation` makes them. What an element is
and how many there are follows from the observation space.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.dqn.policies import DQNPolicy
from torch import Tensor

from routing_agents.networks import Network, make_network


def _network(observation_space: spaces.Box, action_space: spaces.Discrete, sizes: dict[str, Any]) -> Network:
    return make_network(width=observation_space.shape[0], actions=int(action_space.n), **sizes)


class _Sized:
    """Takes the sizes out of a policy's arguments, and puts them back where it is saved."""

    _sizes: dict[str, Any]

    def __init__(
        self,
        *args: Any,
        network: str,
        hidden: int,
        context: int,
        element: int,
        admission: bool,
        **kwargs: Any,
    ) -> None:
        self._sizes = {
            "network": network,
            "hidden": hidden,
            "context": context,
            "element": element,
            "admission": admission,
        }
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | self._sizes  # type: ignore[misc]


class _ActorCritic(_Sized):
    """What masked and unmasked policies share: each call runs the network once."""

    # What the library's base classes hold.
    observation_space: Any
    action_space: Any
    action_dist: Any
    optimizer_class: Any
    optimizer_kwargs: dict[str, Any]
    parameters: Any

    def _build(self, lr_schedule: Any) -> None:
        self.network = _network(self.observation_space, self.action_space, self._sizes)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _evaluate(self, obs: Tensor, action_masks: NDArray[np.bool_] | Tensor | None) -> tuple[Any, Tensor]:
        logits, values = self.network(obs)
        distribution = self.action_dist.proba_distribution(action_logits=logits)
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution, values

    def forward(
        self, obs: Tensor, deterministic: bool = False, action_masks: NDArray[np.bool_] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions (B,), values (B, 1) and the actions' log-probabilities (B,)."""
        distribution, values = self._evaluate(obs, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, values, distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: Tensor, actions: Tensor, action_masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return values (B, 1), the log-probabilities of these actions (B,) and the entropies (B,)."""
        distribution, values = self._evaluate(obs, action_masks)
        return values, distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: Tensor, action_masks: NDArray[np.bool_] | None = None) -> Any:
        """Return the distribution of actions."""
        return self._evaluate(obs, action_masks)[0]

    def predict_values(self, obs: Tensor) -> Tensor:
        """Return values (B, 1)."""
        return self.network(obs)[1]


class RouterPolicy(_ActorCritic, ActorCriticPolicy):
    """An actor-critic for `PPO` and `A2C`."""


class MaskableRouterPolicy(_ActorCritic, MaskableActorCriticPolicy):
    """An actor-critic for `MaskablePPO`."""


class RouterQNetwork(_Sized, BasePolicy):
    """Action values: the logits of a network."""

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Discrete, **kwargs: Any) -> None:
        """Build the network."""
        super().__init__(observation_space, action_space, **kwargs)
        self.network = _network(observation_space, action_space, self._sizes)

    def forward(self, obs: Tensor) -> Tensor:
        """Return a value per action (B, A)."""
        return self.network.logits(obs)

    def _predict(self, observation: Tensor, deterministic: bool = True) -> Tensor:
        return torch.argmax(self(observation), dim=1)


class RouterDQNPolicy(_Sized, DQNPolicy):
    """Action values and their slow copy, for `DQN`."""

    def make_q_net(self) -> RouterQNetwork:
        """Return a new network of action values."""
        return RouterQNetwork(self.observation_space, self.action_space, **self._sizes).to(self.device)


def network_of(policy: RouterPolicy | MaskableRouterPolicy | RouterDQNPolicy) -> Network:
    """Return the network whose logits a trained policy acts by."""
    return policy.q_net.network if isinstance(policy, RouterDQNPolicy) else policy.network
