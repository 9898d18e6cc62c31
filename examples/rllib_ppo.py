"""Train PPO of Ray RLlib (its new API stack) with action masks, and hold it against a fixed router.

    pip install -c constraints.txt "torch==2.13.0" ".[scale]"
    python examples/rllib_ppo.py --steps 200000
    python examples/rllib_ppo.py --steps 200000 --runners 2

RLlib steps single environments, in this process or in others with `--runners`. `FeatureObservation` makes a
flat box of each observation; it tells which replicas are eligible, and the module below chooses no other one.
`ray[rllib]` pins an old Gymnasium and does not install beside this package; the extra `scale` names what
RLlib needs.
"""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported

import gymnasium as gym
import numpy as np
import ray
import torch
from gymnasium.vector import AutoresetMode
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.registry import register_env

import routing_gym
from routing_gym.cluster.features import REPLICA_FEATURES
from routing_gym.wrappers import FeatureObservation, VectorFeatureObservation

ENV = "routing_gym/InferenceCluster-v0"
CONDITIONS: dict[str, dict[str, Any]] = {
    "steady, 180/s": {"scenario": "steady", "rate_per_s": 180},
    "straggler, 180/s": {"scenario": "straggler", "rate_per_s": 180},
    "steady, 250/s": {"scenario": "steady", "rate_per_s": 250},
}
DEVELOPMENT_SEEDS = list(range(10_000, 10_008))
TRAINING_SEEDS_FROM, SEEDS_PER_RUN = 1_000_000, 10_000


class MaskedModule(DefaultPPOTorchRLModule):
    """RLlib's actor and critic, but that replicas which are not eligible are never chosen."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._masked(batch, super()._forward(batch, **kwargs))

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._masked(batch, super()._forward_train(batch, **kwargs))

    def _masked(self, batch: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
        # The features of the replicas come last, replica by replica.
        sizes = int(self.action_space.n), len(REPLICA_FEATURES)
        replicas = batch["obs"][..., -sizes[0] * sizes[1] :].unflatten(-1, sizes)
        barred = replicas[..., REPLICA_FEATURES.index("eligible")] == 0
        outputs["action_dist_inputs"] = outputs["action_dist_inputs"].masked_fill(barred, -1e9)
        return outputs


def make_env(config: dict[str, Any]) -> gym.Env[Any, Any]:
    """Return one environment, as RLlib's runners ask for it."""
    # An outcome is paid at its own decision, not when it completes.
    return FeatureObservation(gym.make(ENV, config="training", observation="router", credit="decision"))


def attainment(router: Any, learned: bool, **condition: Any) -> float:
    """Play the module, or a fixed router, on the development seeds; return the mean share on time."""
    rows = len(DEVELOPMENT_SEEDS)
    mode: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED, "hold_finished": True}
    envs: Any = gym.make_vec(ENV, num_envs=rows, observation="router", **mode, **condition)
    inner = envs.unwrapped
    envs = VectorFeatureObservation(envs) if learned else envs
    observation, info = envs.reset(seed=DEVELOPMENT_SEEDS)
    over, state, start = np.zeros(rows, bool), None, np.ones(rows, bool)
    while not over.all():
        if learned:
            with torch.no_grad():
                outputs = router.forward_inference({"obs": torch.as_tensor(observation)})
            actions = outputs["action_dist_inputs"].argmax(-1).numpy()
        else:
            actions, state = router.predict(observation, state, start, action_masks=info["action_mask"])
        observation, _, _, over, info = envs.step(actions)
        start = np.zeros(rows, bool)
    return float(np.mean([inner.episode_metrics(row)["attainment"] for row in range(rows)]))


def main() -> None:
    """Train, then print the table."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--steps", type=int, default=200_000, help="default: %(default)s")
    parser.add_argument("--runners", type=int, default=0, help="processes that play (default: in this one)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    logging.getLogger("ray.rllib").setLevel(logging.ERROR)  # RLlib tells that its API is new
    ray.init(
        "local",
        num_cpus=args.runners + 1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    register_env("cluster", make_env)
    layers = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment("cluster")
        .env_runners(num_env_runners=args.runners, num_envs_per_env_runner=16)
        .rl_module(rl_module_spec=RLModuleSpec(MaskedModule, model_config=layers))
        .training(train_batch_size_per_learner=4096, minibatch_size=1024, num_epochs=4, lr=1e-3)
        .training(gamma=0.98, lambda_=0.95, clip_param=0.2, entropy_coeff=0.001, use_kl_loss=False)
        .training(vf_loss_coeff=0.5, vf_clip_param=float("inf"), grad_clip=0.5)
        .debugging(seed=TRAINING_SEEDS_FROM + SEEDS_PER_RUN * args.seed)
    )
    algorithm = config.build_algo()
    steps = 0
    while steps < args.steps:
        steps = int(algorithm.train()["num_env_steps_sampled_lifetime"])
        print(f"{steps:>10,} steps")

    module = algorithm.get_module()
    print(f"{'% on time':<20}{'RLlib PPO':>16}{'deadline_aware':>16}")
    for name, condition in CONDITIONS.items():
        fixed = routing_gym.make_policy("cluster/deadline_aware")
        trained, reference = attainment(module, True, **condition), attainment(fixed, False, **condition)
        print(f"{name:<20}{100 * trained:>16.2f}{100 * reference:>16.2f}")
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":  # its processes import this file
    main()
