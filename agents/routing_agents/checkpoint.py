"""Checkpoints from which training goes on as if it had never stopped.

A checkpoint is a zip of Stable-Baselines3, so its own `load` reads it, with members of ours beside: the
environments' state, generators, running statistics and counters, as plain JSON and NumPy arrays. Restoring
unpickles nothing.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor, VecNormalize

from routing_gym.common.vector import RoutingVectorEnv

STATE, ARRAYS = "routing_gym/state.json", "routing_gym/arrays/"
_COUNTERS = (
    "num_timesteps",
    "_episode_num",
    "_n_updates",
    "_n_calls",
    "exploration_rate",
)
_OBSERVED = ("_last_obs", "_last_original_obs", "_last_episode_starts")
_REPLAYED = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
_MONITORED = ("episode_returns", "episode_lengths")

Arrays = dict[str, NDArray[Any]]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what is wrong."""


def save_model(path: Path, model: BaseAlgorithm, notes: Mapping[str, Any]) -> None:
    """Write a model's weights, but not what its further training depends on; see `save_checkpoint`."""
    _write(path, model, {"notes": dict(notes)}, {})


def save_checkpoint(path: Path, model: BaseAlgorithm, notes: Mapping[str, Any]) -> None:
    """Write a model and all that its further training depends on; `path` is never seen half written.

    Only between updates: a rollout that has begun is not saved.

    Args:
        path: of the zip.
        model: with its environment.
        notes: what the caller wants to find again, JSON-able.
    """
    state: dict[str, Any] = {
        "notes": dict(notes),
        "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "episodes": [
            {key: float(value) for key, value in episode.items()} for episode in model.ep_info_buffer or ()
        ],
    }
    arrays: Arrays = {name: value for name in _OBSERVED if (value := getattr(model, name)) is not None}
    _collect_random(model, state, arrays)
    _collect_environments(model, state, arrays)
    buffer = getattr(model, "replay_buffer", None)
    if isinstance(buffer, ReplayBuffer):
        state["replay"] = {"pos": buffer.pos, "full": buffer.full}
        arrays |= {f"replay/{name}": getattr(buffer, name) for name in _REPLAYED}
    _write(path, model, state, arrays)


def _write(path: Path, model: BaseAlgorithm, state: Mapping[str, Any], arrays: Arrays) -> None:
    temporary = path.with_name(path.name + ".part")
    model.save(temporary)
    with zipfile.ZipFile(temporary, "a") as archive:
        archive.writestr(STATE, json.dumps(state))
        for name, array in arrays.items():
            with archive.open(f"{ARRAYS}{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
    with open(temporary, "rb") as file:  # a crash must not leave a name without its bytes
        os.fsync(file.fileno())
    temporary.replace(path)


def read_notes(path: Path) -> dict[str, Any]:
    """Return a checkpoint's notes.

    Raises:
        CheckpointError: the file is no checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            notes: dict[str, Any] = json.loads(archive.read(STATE))["notes"]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is not a checkpoint: {error}") from error
    return notes


def restore_checkpoint(path: Path, model: BaseAlgorithm) -> dict[str, Any]:
    """Take over a checkpoint into a model built as the one that was saved, and return its notes.

    Raises:
        CheckpointError: the file is no checkpoint, or of a model or environment of another kind.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            state = json.loads(archive.read(STATE))
            arrays = dict(_read_arrays(archive))
        model.set_parameters(str(path), device=model.device)
        for name, value in state["counters"].items():
            setattr(model, name, value)
        for name in _OBSERVED:
            setattr(model, name, arrays.get(name))
        # A return is as exact as VecMonitor's, or means of old and new ones would be rounded otherwise.
        episodes = [{**episode, "r": np.float32(episode["r"])} for episode in state["episodes"]]
        model.ep_info_buffer = deque(episodes, maxlen=model._stats_window_size)
        model.ep_success_buffer = deque(maxlen=model._stats_window_size)
        _restore_environments(model, state, arrays)
        if "replay" in state:
            _restore_replayed(model, state, arrays)
        _restore_random(model, state, arrays)  # last: what is done before may have drawn
    except (
        OSError,
        zipfile.BadZipFile,
        KeyError,
        ValueError,
        RuntimeError,
        pickle.UnpicklingError,
    ) as error:
        raise CheckpointError(f"{path} cannot be restored: {error}") from error
    notes: dict[str, Any] = state["notes"]
    return notes


def _restore_replayed(model: Any, state: Mapping[str, Any], arrays: Arrays) -> None:
    vars(model.replay_buffer).update(state["replay"])
    for name in _REPLAYED:
        getattr(model.replay_buffer, name)[...] = arrays[f"replay/{name}"]


def _read_arrays(archive: zipfile.ZipFile) -> Iterator[tuple[str, NDArray[Any]]]:
    for name in archive.namelist():
        if name.startswith(ARRAYS):
            with archive.open(name) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            yield name[len(ARRAYS) : -len(".npy")], array


def _collect_random(model: BaseAlgorithm, state: dict[str, Any], arrays: Arrays) -> None:
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    arrays["random/torch"] = torch.get_rng_state().numpy()
    arrays["random/python"] = np.array(words, np.int64)
    arrays["random/numpy"] = legacy["state"].pop("key")
    state["random"] = {
        "python": [version, gauss],
        "numpy": legacy,
        "actions": model.action_space.np_random.bit_generator.state,
    }


def _restore_random(model: BaseAlgorithm, state: Mapping[str, Any], arrays: Arrays) -> None:
    generators = state["random"]
    version, gauss = generators["python"]
    random.setstate((version, tuple(arrays["random/python"].tolist()), gauss))
    legacy = generators["numpy"]
    legacy["state"]["key"] = arrays["random/numpy"]
    np.random.set_state(legacy)
    torch.set_rng_state(torch.from_numpy(arrays["random/torch"]))
    model.action_space.np_random.bit_generator.state = generators["actions"]


def _layers(model: BaseAlgorithm) -> Iterator[VecEnv]:
    """Yield the wrappers around the environments, outermost first, and what they wrap."""
    envs = model.get_env()
    while isinstance(envs, VecEnvWrapper):
        yield envs
        envs = envs.venv
    assert envs is not None
    yield envs


def _collect_environments(model: BaseAlgorithm, state: dict[str, Any], arrays: Arrays) -> None:
    for layer in _layers(model):
        if isinstance(layer, VecNormalize):
            returns = layer.ret_rms
            state["returns"] = {
                "mean": float(returns.mean),
                "var": float(returns.var),
                "count": float(returns.count),
            }
            arrays["normalise/returns"] = layer.returns
        elif isinstance(layer, VecMonitor):
            arrays |= {f"monitor/{name}": getattr(layer, name) for name in _MONITORED}
    saved = _environments(model).get_state()
    arrays["environments/finished"] = saved["finished"]
    arrays |= {f"environments/arrays/{name}": array for name, array in saved["arrays"].items()}
    state["environments"] = {"actions": saved["actions"], "generators": saved["generators"]}


def _restore_environments(model: BaseAlgorithm, state: Mapping[str, Any], arrays: Arrays) -> None:
    for layer in _layers(model):
        if isinstance(layer, VecNormalize):
            vars(layer.ret_rms).update(state["returns"])
            layer.returns = arrays["normalise/returns"]
        elif isinstance(layer, VecMonitor):
            vars(layer).update({name: arrays[f"monitor/{name}"] for name in _MONITORED})
    saved = state["environments"]
    prefix = "environments/arrays/"
    envs = _environments(model)
    episodes = _redrawn(envs, saved["generators"])
    # What the kernels compiled for is an aligned structure, which a file does not tell.
    types = {name: array.dtype for name, array in envs.get_state()["arrays"].items()}
    envs.set_state(
        {
            **saved,
            "episodes": episodes,
            "finished": arrays["environments/finished"],
            "arrays": {name: arrays[prefix + name].view(dtype) for name, dtype in types.items()},
        }
    )


def _redrawn(envs: RoutingVectorEnv, generators: list[Any]) -> list[Any]:
    """Return the episodes that the rows' generators have drawn last.

    They are more than arrays, so they are drawn again: an episode takes one draw of its row's generator.
    """
    if len(generators) != envs.num_envs:
        raise CheckpointError(f"it has {len(generators)} rows; the run has {envs.num_envs}")
    envs.reset(seed=0)  # generators are taken over by rows that have one
    envs.set_state({**envs.get_state(), "generators": [_one_draw_ago(state) for state in generators]})
    envs.reset()
    redrawn = envs.get_state()
    if redrawn["generators"] != generators:
        raise CheckpointError("its episodes cannot be drawn again; it was made by another version")
    return list(redrawn["episodes"])


def _one_draw_ago(state: Any) -> Any:
    bits = np.random.PCG64()
    bits.state = state
    bits.advance(2**128 - 1)  # its period is 2^128
    return bits.state


def _environments(model: BaseAlgorithm) -> RoutingVectorEnv:
    (*_, innermost) = _layers(model)
    envs: Any = innermost
    inner: RoutingVectorEnv = envs.vector_env.unwrapped
    return inner
