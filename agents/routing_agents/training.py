"""Trains a router, and keeps what is needed to go on, to judge it and to ship it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecNormalize

from routing_agents import folder as router_folder
from routing_agents.callbacks import Display, EventWriter, Follow, ProgressWriter
from routing_agents.checkpoint import restore_checkpoint
from routing_agents.manifest import Manifest
from routing_agents.networks import router_weights
from routing_agents.run_folder import (
    BEST,
    EVALUATIONS,
    LAST,
    PACKAGES,
    PROGRESS,
    TENSORBOARD,
    RunError,
    RunFolder,
    Table,
)
from routing_agents.sb3_policies import MaskableRouterPolicy, RouterDQNPolicy, RouterPolicy, network_of
from routing_agents.train_config import TrainConfig
from routing_gym.wrappers.sb3 import make_sb3_env

POLICIES = {
    "PPO": RouterPolicy,
    "A2C": RouterPolicy,
    "MaskablePPO": MaskableRouterPolicy,
    "DQN": RouterDQNPolicy,
}


class EndedRows:
    """Lets an algorithm look for finished episodes in the rows that ended: in all of them it costs 7 %."""

    def _update_info_buffer(self, infos: Sequence[dict[str, Any]], dones: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(dones)
        super()._update_info_buffer([infos[row] for row in rows.tolist()], dones[rows])  # type: ignore[misc]


class Outcome(NamedTuple):
    """What a run came to: its folder, the steps done, and metrics on development seeds.

    `best` holds the step and the metrics of the router that is kept; `references` those of other routers.
    """

    folder: Path
    steps: int
    best: dict[str, Any]
    references: dict[str, dict[str, float | None]]


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    export: str | Path | None = None,
    console: Console | None = None,
) -> Outcome:
    """Train a router.

    A run that was killed goes on from its last checkpoint and ends with the same weights, bit for bit, as
    one that was not. Seeds Python's, NumPy's and PyTorch's global generators.

    Args:
        config: the run.
        out: its folder.
        resume: go on with the run that `out` holds, or begin it.
        overwrite: throw away the run that `out` holds, and the router that `export` holds.
        export: where to write the best router, as a folder that `FAMILY/learned` loads.
        console: where to show progress; by default nothing is shown.

    Raises:
        RunError: `out` or `export` cannot be used as asked.
        CheckpointError: its last checkpoint is damaged.
        LearnedError: `export` holds what is no router.
    """
    if export is not None and Path(export).exists() and not overwrite:  # now, rather than after all the work
        way_out = "remove it" if resume else "--overwrite it and the run in --out"
        raise RunError(f"{export} is there already; choose another --export, or {way_out}")
    folder = RunFolder(out, config, resume, overwrite)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.torch_threads)
    model = build_model(config)
    try:
        outcome = _learn(config, folder, model, console or Console(quiet=True))
        if export is not None:
            model.set_parameters(str(folder / BEST), device=model.device)
            best = dict(outcome.best)
            step = best.pop("steps")
            scores = {"this router": best, **outcome.references}
            manifest = _manifest(config, folder, model, scores, kept_at_step=step)
            router_folder.save(export, manifest, _weights(model), overwrite=overwrite)
        return outcome
    finally:
        envs = model.get_env()
        assert envs is not None
        envs.close()
        torch.set_num_threads(threads)


def _learn(config: TrainConfig, folder: RunFolder, model: BaseAlgorithm, console: Console) -> Outcome:
    """Train a model from its last checkpoint, or from the beginning, to the end."""
    notes = restore_checkpoint(folder / LAST, model) if (folder / LAST).exists() else None
    upto = model.num_timesteps if notes else -1

    def save_router(path: Path) -> None:
        router_folder.save(path, _manifest(config, folder, model, {}), _weights(model))

    display = Display(console, config, model.num_timesteps)
    follow = Follow(config, folder, Table(folder / EVALUATIONS, upto), display, save_router, notes)
    progress, events = ProgressWriter(Table(folder / PROGRESS, upto)), EventWriter(folder / TENSORBOARD, upto)
    logger = Logger(None, [progress, events])
    model.set_logger(logger)
    try:
        with display.bar:
            model.learn(
                config.steps - model.num_timesteps,
                follow,
                log_interval=None,  # type: ignore[arg-type]
                reset_num_timesteps=notes is None,
            )
    finally:
        logger.close()
    return Outcome(folder.path, model.num_timesteps, follow.notes["best"], follow.notes["references"])


def build_model(config: TrainConfig) -> BaseAlgorithm:
    """Return a run's algorithm with its environments, before its first step."""
    set_random_seed(config.seed)
    conditions = config.row_conditions()
    envs: Any = make_sb3_env(
        config.env,
        config.rows,
        config.first_seed,
        reward_weights=config.reward_features,
        configs=conditions,
    )
    features = envs.unwrapped.vector_env
    arguments = config.algorithm_arguments()
    if config.normalise_reward:
        discount = {"gamma": arguments["gamma"]} if "gamma" in arguments else {}
        envs = VecNormalize(envs, norm_obs=False, **discount)
    condition = getattr(conditions[0], "base", conditions[0])
    algorithm = type(config.algorithm, (EndedRows, config.algorithm_class()), {})
    model: BaseAlgorithm = algorithm(
        POLICIES[config.algorithm],
        envs,
        policy_kwargs={
            **config.policy.model_dump(),
            "context": len(features.context_features),
            "element": len(features.element_features),
            "admission": getattr(condition, "admission", False),
        },
        device="cpu",
        **arguments,
    )
    model.action_space.seed(config.seed)
    return model


def _weights(model: BaseAlgorithm) -> dict[str, NDArray[np.float32]]:
    policy: Any = model.policy
    return router_weights(network_of(policy))


def _manifest(
    config: TrainConfig,
    run: RunFolder,
    model: BaseAlgorithm,
    scores: dict[str, dict[str, float | None]],
    **training: Any,
) -> Manifest:
    """Describe the model's router: its metrics on development seeds by router, and more of its training."""
    policy: Any = model.policy
    return Manifest.create(
        config.trained_on,
        network=config.policy.network,
        hidden=config.policy.hidden,
        elements=network_of(policy).sizes.elements,
        reward_features=config.reward_features,
        command=run.about()["command"],
        training={
            **config.model_dump(mode="json", exclude={"env", "env_kwargs", "policy", "evaluation"}),
            **training,
        },
        scores={
            f"development seeds, {router}": {
                name: value if value is not None and math.isfinite(value) else None
                for name, value in row.items()
            }
            for router, row in scores.items()
        },
        packages=PACKAGES[2:],
    )
