"""Proximal policy optimisation in one file, read from top to bottom, in CleanRL's manner: plain PyTorch.

    pip install "routing-gym[agents]"
    python examples/cleanrl_ppo.py --steps 1000000 --gamma 0.98

`gym.make_vec` plays all rows in one compiled call, `VectorFeatureObservation` makes a flat box of each
observation, and `info["action_mask"]` says which replicas may be chosen. With same-step autoreset the row of
an ended episode already shows the next one, so the last observation is in `info["final_obs"]`: an episode is
cut off by the clock, and never ends by itself, so its return goes on with the value of that observation.
At the end the router plays development seeds beside a fixed one.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn
from torch.distributions import Categorical

import routing_gym
from routing_gym.wrappers import VectorFeatureObservation

ENV = "routing_gym/InferenceCluster-v0"
CONDITIONS: dict[str, dict[str, Any]] = {
    "steady, 180/s": {"scenario": "steady", "rate_per_s": 180},
    "straggler, 180/s": {"scenario": "straggler", "rate_per_s": 180},
    "steady, 250/s": {"scenario": "steady", "rate_per_s": 250},
}
DEVELOPMENT_SEEDS = list(range(10_000, 10_008))
TRAINING_SEEDS_FROM, SEEDS_PER_RUN = 1_000_000, 10_000


@dataclass
class Args:
    """Each is an option of the command line."""

    seed: int = 0
    steps: int = 1_000_000  # decisions, over all rows
    rows: int = 128  # episodes side by side
    rollout: int = 64  # decisions of each row from one update to the next
    minibatches: int = 4
    epochs: int = 4
    learning_rate: float = 1e-3  # falls linearly to 0
    gamma: float = 0.98
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.001
    value: float = 0.5
    max_norm: float = 0.5
    hidden: int = 64


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for field in fields(Args):
    name = f"--{field.name.replace('_', '-')}"
    parser.add_argument(name, type=type(field.default), default=field.default, help="default: %(default)s")
args = Args(**vars(parser.parse_args()))
torch.manual_seed(args.seed)
torch.set_num_threads(1)  # the networks are small


def linear(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """Return a layer with orthogonal weights."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """An actor and a critic, which share nothing."""

    def __init__(self, inputs: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(
                linear(inputs, hidden),
                nn.Tanh(),
                linear(hidden, hidden),
                nn.Tanh(),
                linear(hidden, outputs, gain),
            )
            for outputs, gain in ((actions, 0.01), (1, 1.0))
        )

    def choices(self, observation: Tensor, mask: Tensor) -> Categorical:
        """Return the distribution over the allowed actions."""
        logits = self.actor(observation).masked_fill(~mask, -1e9)
        return Categorical(logits=logits, validate_args=False)

    def values(self, observation: Tensor) -> Tensor:
        """Return the values, (rows,)."""
        return self.critic(observation).squeeze(-1)


envs = VectorFeatureObservation(
    gym.make_vec(
        ENV,
        num_envs=args.rows,
        autoreset_mode=AutoresetMode.SAME_STEP,
        config="training",  # a random condition at each reset
        observation="router",  # what a proxy in front of real servers can know
        credit="decision",  # an outcome is paid at its own decision, not when it completes
    )
)
first, info = envs.reset(seed=TRAINING_SEEDS_FROM + SEEDS_PER_RUN * args.seed)
observation, mask = torch.as_tensor(first), torch.as_tensor(info["action_mask"]).bool()
width, actions = observation.shape[1], mask.shape[1]
agent = Agent(width, actions, args.hidden)
optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

shape = (args.rollout, args.rows)
observations, masks = torch.zeros(*shape, width), torch.zeros(*shape, actions, dtype=torch.bool)
chosen, logprobs = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
rewards, dones, values = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)

updates = -(-args.steps // (args.rollout * args.rows))
shares: list[float] = []
started = time.perf_counter()

for update in range(updates):
    optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - update / updates)

    # Play.
    for step in range(args.rollout):
        with torch.no_grad():
            choices = agent.choices(observation, mask)
            action = choices.sample()
            values[step] = agent.values(observation)
        observations[step], masks[step] = observation, mask
        chosen[step], logprobs[step] = action, choices.log_prob(action)
        after, reward, terminated, truncated, info = envs.step(action.numpy())
        rewards[step] = torch.as_tensor(reward)
        dones[step] = torch.as_tensor(terminated | truncated)
        if truncated.any():
            rows = np.flatnonzero(truncated)
            with torch.no_grad():
                left = agent.values(torch.as_tensor(np.stack(list(info["final_obs"][rows]))))
            rewards[step, rows] += args.gamma * left
            shares += info["final_info"]["episode_metrics"]["attainment"][rows].tolist()
        observation, mask = torch.as_tensor(after), torch.as_tensor(info["action_mask"]).bool()

    # Generalised advantage estimation; what follows an end is in its reward already.
    advantages, last = torch.zeros(shape), torch.zeros(args.rows)
    with torch.no_grad():
        following = agent.values(observation)
    for step in reversed(range(args.rollout)):
        goes_on = 1.0 - dones[step]
        error = rewards[step] + args.gamma * following * goes_on - values[step]
        advantages[step] = last = error + args.gamma * args.gae_lambda * goes_on * last
        following = values[step]

    # Learn.
    flat = [part.flatten(0, 1) for part in (observations, masks, chosen, logprobs, advantages)]
    returns = (advantages + values).flatten()
    for _ in range(args.epochs):
        for index in torch.randperm(args.rollout * args.rows).chunk(args.minibatches):
            seen, allowed, taken, before, gained = (part[index] for part in flat)
            choices = agent.choices(seen, allowed)
            ratio = (choices.log_prob(taken) - before).exp()
            gained = (gained - gained.mean()) / (gained.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy_loss = -torch.min(ratio * gained, clipped * gained).mean()
            value_loss = 0.5 * (agent.values(seen) - returns[index]).square().mean()
            loss = policy_loss + args.value * value_loss - args.entropy * choices.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_norm)
            optimizer.step()

    if (update + 1) % 20 == 0 or update + 1 == updates:
        steps = (update + 1) * args.rollout * args.rows
        recent = (
            f"{100 * np.mean(shares[-args.rows :]):.1f} % on time in training"
            if shares
            else "no episode ended"
        )
        print(f"{steps:>10,} steps, {steps / (time.perf_counter() - started):,.0f}/s, {recent}")
envs.close()


def attainment(router: Any, **condition: Any) -> float:
    """Play the agent, or a fixed router, on the development seeds; return the mean share on time."""
    seeds, learned = DEVELOPMENT_SEEDS, isinstance(router, Agent)
    envs: Any = gym.make_vec(
        ENV,
        num_envs=len(seeds),
        autoreset_mode=AutoresetMode.DISABLED,
        hold_finished=True,  # rows that are through wait for the others
        observation="router",
        **condition,
    )
    inner = envs.unwrapped
    envs = VectorFeatureObservation(envs) if learned else envs
    observation, info = envs.reset(seed=seeds)
    over, state, start = np.zeros(len(seeds), bool), None, np.ones(len(seeds), bool)
    while not over.all():
        if learned:
            allowed = torch.as_tensor(info["action_mask"]).bool()
            with torch.no_grad():
                actions = router.choices(torch.as_tensor(observation), allowed).probs.argmax(-1).numpy()
        else:
            actions, state = router.predict(observation, state, start, action_masks=info["action_mask"])
        observation, _, _, over, info = envs.step(actions)
        start = np.zeros(len(seeds), bool)
    return float(np.mean([inner.episode_metrics(row)["attainment"] for row in range(len(seeds))]))


print(f"{'% on time':<20}{'this router':>16}{'deadline_aware':>16}")
for name, condition in CONDITIONS.items():
    found = [attainment(r, **condition) for r in (agent, routing_gym.make_policy("cluster/deadline_aware"))]
    print(f"{name:<20}{100 * found[0]:>16.2f}{100 * found[1]:>16.2f}")
