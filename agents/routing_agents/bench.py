"""What `routing-gym bench` measures of learned routers: their decisions, and training (DESIGN 7)."""

from __future__ import annotations

import importlib.util
import time
from functools import cache, partial
from typing import Any

import gymnasium as gym

from routing_gym.bench import BATCH, CLUSTER, Benchmark, decision_time
from routing_gym.evaluation.sequential import Sequential
from routing_gym.policy import make_policy

REQUESTS = 30
BATCHES = 10
TRAINING = "cluster-ppo"


def benchmarks() -> list[Benchmark]:
    """Return this package's benchmarks; training's only where Stable-Baselines3 is installed."""
    batch = f"R = {REQUESTS}, testbed-6node"
    rows = [
        Benchmark("learned decision, one request of the cluster", "s", _request),
        Benchmark(f"learned decision, {batch}", "s", partial(_batch, "learned"), floor=0.001),
        Benchmark(f"local_search decision, {batch}", "s", partial(_batch, "local_search")),
    ]
    if importlib.util.find_spec("stable_baselines3"):
        rows.append(Benchmark(f"training, {TRAINING}, one core", "steps/s", _training, 0.125, relative=True))
    return rows


def _request(seconds: float) -> float:
    env, router = gym.make(CLUSTER, observation="router"), make_policy("cluster/learned")
    router.configure([env.unwrapped.config])  # type: ignore[attr-defined]
    return decision_time(router, [env.reset(seed=seed)[0] for seed in range(BATCHES)], seconds)


def _batch(name: str, seconds: float) -> float:
    router = make_policy(f"cloud_edge/{name}")
    env = gym.make(BATCH, config="testbed-6node", requests=REQUESTS)
    router = Sequential(router) if router.acts_on == "request" else router
    router.configure([env.unwrapped.config])  # type: ignore[attr-defined]
    return decision_time(router, [env.reset(seed=seed)[0] for seed in range(BATCHES)], seconds)


@cache
def _model() -> Any:
    from routing_agents.train_config import TrainConfig
    from routing_agents.training import build_model

    model = build_model(TrainConfig.create(TRAINING))
    model.learn(1, log_interval=None)  # a rollout and its updates: compiles
    return model


def _training(seconds: float) -> float:
    """Return decisions/s of training as it is configured, simulation and updates together."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = _model()
        before, start = model.num_timesteps, time.perf_counter()
        while time.perf_counter() - start < seconds or model.num_timesteps == before:
            model.learn(1, log_interval=None, reset_num_timesteps=False)
        return float((model.num_timesteps - before) / (time.perf_counter() - start))
    finally:
        torch.set_num_threads(threads)
