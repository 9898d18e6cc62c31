"""Train PPO or MaskablePPO of Stable-Baselines3, and hold it against a fixed router on the same episodes.

    pip install "routing-gym[agents]"
    python examples/sb3_train.py --steps 1000000
    python examples/sb3_train.py --algorithm MaskablePPO --out masked.zip

It trains on random conditions (`config="training"`), all rows in one compiled call, and shows to the network
only what a proxy in front of real servers knows (`observation="router"`). `evaluate_policy` then plays both
routers on development seeds: the trained one sees features, the fixed one the observations as they are.
`routing-gym train` does more: it keeps the best router, goes on after a kill, and exports.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3 import PPO

import routing_gym
from routing_gym.wrappers import as_sb3, make_sb3_env

ENV = "routing_gym/InferenceCluster-v0"
CONDITIONS = {
    "steady, 180/s": {"scenario": "steady", "rate_per_s": 180},
    "straggler, 180/s": {"scenario": "straggler", "rate_per_s": 180},
    "steady, 250/s": {"scenario": "steady", "rate_per_s": 250},
}
# Development seeds, 10000 to 10007. Those for training begin at 1,000,000, and each run has 10,000 of them.
FIRST_SEED, EPISODES = 10_000, 8
TRAINING_SEEDS_FROM, SEEDS_PER_RUN = 1_000_000, 10_000


def attainment(router: Any, features: bool, **condition: Any) -> float:
    """Play a router on the development seeds, and return the mean share of requests on time."""
    envs = make_sb3_env(ENV, EPISODES, FIRST_SEED, features, observation="router", **condition)
    shares: list[float] = []

    def note(local: dict[str, Any], _: dict[str, Any]) -> None:
        if local["done"]:
            shares.append(local["info"]["episode_metrics"]["attainment"])

    masks = isinstance(router, MaskablePPO)
    evaluate_policy(router, envs, EPISODES, callback=note, use_masking=masks, warn=False)
    envs.close()
    return statistics.fmean(shares)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--algorithm", choices=["PPO", "MaskablePPO"], default="PPO")
parser.add_argument(
    "--steps", type=int, default=1_000_000, help="decisions to train for (default: %(default)s)"
)
parser.add_argument("--rows", type=int, default=128, help="episodes side by side (default: %(default)s)")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, default=Path("sb3_router.zip"))
args = parser.parse_args()

first_seed = TRAINING_SEEDS_FROM + SEEDS_PER_RUN * args.seed
envs = make_sb3_env(
    ENV,
    args.rows,
    first_seed,
    config="training",
    observation="router",
    credit="decision",  # an outcome is paid at its own decision, not when it completes
)
algorithm = {"PPO": PPO, "MaskablePPO": MaskablePPO}[args.algorithm]
model: Any = algorithm(
    "MlpPolicy",
    envs,
    n_steps=64,
    batch_size=32 * args.rows,
    n_epochs=4,
    learning_rate=1e-3,
    gamma=0.98,
    seed=args.seed,
    device="cpu",
)
model.learn(args.steps)
model.save(args.out)
envs.close()
print(f"{args.algorithm}: {model.num_timesteps} steps, saved as {args.out}")

print(f"{'% on time':<20}{args.algorithm:>16}{'deadline_aware':>16}")
for name, condition in CONDITIONS.items():
    fixed = as_sb3(routing_gym.make_policy("cluster/deadline_aware"))
    trained, reference = attainment(model, True, **condition), attainment(fixed, False, **condition)
    print(f"{name:<20}{100 * trained:>16.2f}{100 * reference:>16.2f}")
