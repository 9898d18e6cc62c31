"""Three ways to a reward of your own on the inference cluster, and what each pays the same routers for.

    pip install routing-gym
    python examples/custom_reward.py --steps 20000

Every step reports five terms, `info["reward_terms"]`: requests on time, late and shed, the sum of latencies,
and the integral of the number outstanding (both ms). A reward is

1. five weights of them, `reward=[...]`, or a name, such as `reward="slo"`;
2. anything else that you compute of them, in a wrapper: here a price that rises with the square of latency;
3. the terms themselves: the `mo-` twin returns them as a vector, for multi-objective learning.

The environment is the same under all of them, and so is the episode of a seed: only what is paid differs, and
with it which router is best. To train on one, give `reward=[...]` to `make_sb3_env`; a wrapper goes below
`FeatureObservation`, one environment at a time, for Stable-Baselines3 as

    make = lambda: FeatureObservation(SquaredLatency(gym.make(ENV, config="training", observation="router")))
    PPO("MlpPolicy", DummyVecEnv([make] * 4))
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

import routing_gym
from routing_gym.rewards import CLUSTER_TERMS

ENV = "routing_gym/InferenceCluster-v0"
CONDITION: dict[str, Any] = {"scenario": "straggler", "rate_per_s": 180}
ROUTERS = ("round_robin", "least_queue", "adaptive", "deadline_aware")
FIRST_SEED = 10_000

# Of on time, late, shed, latency (ms), outstanding (ms): a late answer is worth half of one on time, a lost
# one costs five, and each second of latency a fifth.
WEIGHTS = [1.0, 0.5, -5.0, -0.0002, 0.0]


class SquaredLatency(gym.Wrapper[Any, Any, Any, Any]):
    """Pays for requests on time, less the squared mean latency, in deadlines, of those finished."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step, and pay by the terms."""
        observation, _, terminated, truncated, info = self.env.step(action)
        on_time, late, _, latency_ms, _ = info["reward_terms"]
        finished = on_time + late
        mean = latency_ms / finished / observation["deadline"].item() if finished else 0.0
        return observation, float(on_time - finished * mean**2), terminated, truncated, info


def play(env: gym.Env[Any, Any], router: Any, steps: int) -> tuple[Any, float]:
    """Play episodes for at least so many steps; return their mean return and mean attainment."""
    returns: list[Any] = []
    shares: list[float] = []
    played = 0
    while played < steps:
        seed = FIRST_SEED + len(returns)
        observation, info = env.reset(seed=seed)
        state, start, over = router.initial_state([seed]), True, False
        paid: list[Any] = []
        while not over:
            action, state = router.predict(observation, state, start, action_masks=info["action_mask"])
            observation, reward, terminated, truncated, info = env.step(int(action))
            start, over = False, terminated or truncated
            paid.append(reward)
        returns.append(np.sum(paid, axis=0))
        shares.append(info["episode_metrics"]["attainment"])
        played += len(paid)
    return np.mean(returns, axis=0), float(np.mean(shares))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=20_000, help="decisions per cell (default: %(default)s)")
args = parser.parse_args()

environments: dict[str, gym.Env[Any, Any]] = {
    "on_time": gym.make(ENV, reward="on_time", **CONDITION),
    "latency": gym.make(ENV, reward="latency", **CONDITION),
    "weights": gym.make(ENV, reward=WEIGHTS, **CONDITION),
    "squared": SquaredLatency(gym.make(ENV, **CONDITION)),
}
print(f"{'mean return':<16}" + "".join(f"{name:>16}" for name in environments) + f"{'% on time':>12}")
best: dict[str, tuple[float, str]] = {}
for name in ROUTERS:
    router = routing_gym.make_policy(f"cluster/{name}")
    row = f"{name:<16}"
    for reward, env in environments.items():
        mean, attainment = play(env, router, args.steps)
        row += f"{mean:>16.1f}"
        best[reward] = max(best.get(reward, (-np.inf, "")), (float(mean), name))
    print(row + f"{100 * attainment:>12.2f}")
print(f"{'best':<16}" + "".join(f"{name:>16}" for _, name in best.values()))

vector = gym.make("routing_gym/mo-InferenceCluster-v0", **CONDITION)
terms, _ = play(vector, routing_gym.make_policy("cluster/adaptive"), args.steps)
listed = ", ".join(f"{name} {term:.1f}" for name, term in zip(CLUSTER_TERMS, terms, strict=True))
print(f"\nThe mo- twin, adaptive: {listed}")
print(f"weighted by hand: {np.dot(WEIGHTS, terms):.1f}")
