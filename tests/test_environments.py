"""What every environment of the package keeps to, whatever its family; new ids join by themselves."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence

import routing_gym
from tests.environments import (
    IDS,
    SCALAR_IDS,
    VECTOR_REWARD_IDS,
    assert_same,
    episode,
    family,
    log,
    make_short,
    make_short_vector,
    valid_action,
    valid_actions,
)

each_id = pytest.mark.parametrize("env_id", IDS)
each_scalar_id = pytest.mark.parametrize("env_id", SCALAR_IDS)
each_vector_reward_id = pytest.mark.parametrize("env_id", VECTOR_REWARD_IDS)


def test_every_id_has_a_twin_with_vector_rewards() -> None:
    """And registering twice changes nothing."""
    assert "routing_gym/InferenceCluster-v0" in IDS
    assert VECTOR_REWARD_IDS == [name.replace("/", "/mo-") for name in SCALAR_IDS]
    before = {name: gym.registry[name] for name in IDS}
    routing_gym.register_environments()
    assert {name: gym.registry[name] for name in IDS} == before


@each_scalar_id
def test_gymnasiums_checker(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds nothing, and warns of nothing (warnings are errors here)."""
    pytest.importorskip("pygame", reason="the checker renders, which needs the extra `render`")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    check_env(gym.make(env_id, **family(env_id).short).unwrapped)


@each_scalar_id
def test_stable_baselines3s_checker(env_id: str) -> None:
    """It finds nothing, and warns of nothing."""
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="needs the extra `agents`")
    checker.check_env(make_short(env_id), warn=True, skip_render_check=True)


@each_id
def test_gym_make_checks_nothing_amiss(env_id: str) -> None:
    """An episode under all of Gymnasium's wrappers (passive checker, order enforcing) warns of nothing."""
    env = gym.make(env_id, **family(env_id).short)
    assert len(list(episode(env, seed=1))) > 50
    env.close()


@each_id
def test_episodes_repeat_by_seed(env_id: str) -> None:
    """The same seed gives the same episode; the next episode and another seed give others."""
    env = make_short(env_id)
    first, following, again = list(episode(env, seed=5)), list(episode(env)), list(episode(env, seed=5))
    assert_same(first, again)
    assert_same(following, list(episode(env)))
    assert not data_equivalence(first[0][0], following[0][0], exact=True)
    assert not data_equivalence(first[0][0], next(episode(env, seed=6))[0], exact=True)


@each_id
def test_returned_values(env_id: str) -> None:
    """Observations lie in the space, flags are bools, and nothing that was returned changes later."""
    env = make_short(env_id)
    (observation, info), *steps = episode(env, seed=2)
    assert env.observation_space.contains(observation)
    kept = [(observation, info), *steps]
    copies = copy.deepcopy(kept)
    for observation, reward, terminated, truncated, info in steps:
        assert env.observation_space.contains(observation)
        assert type(terminated) is bool and type(truncated) is bool
        assert terminated is False
        assert type(reward) is float or "/mo-" in env_id
        assert info["reward_terms"].dtype == np.float64
        assert info["action_mask"].dtype == np.int8
    assert [truncated for _, _, _, truncated, _ in steps] == [False] * (len(steps) - 1) + [True]
    assert ["episode_metrics" in info for *_, info in steps] == [False] * (len(steps) - 1) + [True]
    metrics = steps[-1][-1]["episode_metrics"]
    assert not any(value is None or np.isnan(value).any() for value in metrics.values())
    list(episode(env, seed=3))
    assert_same(kept, copies)


@each_id
def test_masks(env_id: str) -> None:
    """`action_masks()` is the info's mask as bools, and the info's is what `sample` takes."""
    env = make_short(env_id)
    for outcome in episode(env, seed=2):
        mask = outcome[-1]["action_mask"]
        flat = env.action_masks()
        assert flat.dtype == bool and mask.any(axis=-1).all()
        np.testing.assert_array_equal(flat, mask.reshape(-1) == 1)
        sample = env.action_space.sample(mask if mask.ndim == 1 else tuple(mask))
        assert np.take_along_axis(np.atleast_2d(mask), np.reshape(sample, (-1, 1)), axis=-1).all()


@each_id
def test_actions_outside_the_space_raise(env_id: str) -> None:
    """With the value and what is allowed, and without any effect."""
    env, other = make_short(env_id), make_short(env_id)
    env.reset(seed=1)
    _, info = other.reset(seed=1)
    right = np.asarray(valid_action(info["action_mask"], 0))
    too_much = np.asarray(env.action_space.nvec if right.ndim else env.action_space.n)
    for wrong in (np.full_like(right, -1), right * 0 + too_much, right + 0.5):
        with pytest.raises(ValueError, match=r"action.*must be .*from 0 to"):
            env.step(wrong if right.ndim else wrong.item())
    for wrong in (None, "0"):
        with pytest.raises(ValueError, match=r"action.*must be .*from 0 to"):
            env.step(wrong)
    assert_same(env.step(right), other.step(right))


@each_id
def test_needs_a_reset(env_id: str) -> None:
    """Before the first episode, and after each."""
    env = make_short(env_id)
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(env.action_space.sample())
    *_, (*_, info) = episode(env, seed=1)
    for _ in range(2):
        with pytest.raises(ResetNeeded, match="reset"):
            env.step(valid_action(info["action_mask"], 0))
    assert len(list(episode(env))) > 50


@each_id
def test_spec_survives_json(env_id: str) -> None:
    """An environment made from it is the same one; for a vector environment as well."""
    env = gym.make(env_id, **family(env_id).short)
    remade = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert_same(list(episode(env, seed=3)), list(episode(remade, seed=3)))
    envs = make_short_vector(env_id, 3, autoreset_mode="SameStep")
    remade = gym.make_vec(EnvSpec.from_json(envs.spec.to_json()))
    assert remade.num_envs == 3
    assert remade.metadata["autoreset_mode"] is gym.vector.AutoresetMode.SAME_STEP
    assert_same(envs.reset(seed=3), remade.reset(seed=3))


@each_id
def test_copies_go_on_identically(env_id: str) -> None:
    """Deep copies, pickles and saved states of a running episode, into the next episode too."""
    env = make_short(env_id)
    _, info = env.reset(seed=4)
    for k in range(40):
        *_, info = env.step(valid_action(info["action_mask"], k))
    state = env.get_state()
    deep, pickled, fresh = copy.deepcopy(env), pickle.loads(pickle.dumps(env)), make_short(env_id)
    here = fresh.set_state(pickle.loads(pickle.dumps(state)))

    def rest(env: gym.Env) -> list[Any]:
        mask, outcomes, over = info["action_mask"], [], False
        for k in range(1000):
            outcomes.append(env.step(valid_action(mask, k)))
            mask, over = outcomes[-1][-1]["action_mask"], outcomes[-1][3]
            if over:
                return [outcomes, log(env).tobytes(), list(episode(env))]
        raise AssertionError("the episode does not end")

    expected = rest(env)
    for other in (deep, pickled, fresh):
        assert_same(rest(other), expected)
    assert_same(env.set_state(state), here)
    assert_same(here[1]["action_mask"], info["action_mask"])
    assert_same(rest(env), expected)
    # A state is a copy: what went on since has not changed it, nor has one taken at the end.
    ended = make_short(env_id)
    list(episode(ended, seed=1))
    fresh.set_state(ended.get_state())
    with pytest.raises(ResetNeeded):
        fresh.step(valid_action(info["action_mask"], 0))
    assert_same(list(episode(fresh)), list(episode(ended)))


@each_id
def test_vector_copies_go_on_identically(env_id: str) -> None:
    """As `test_copies_go_on_identically`, across the rows' autoresets."""
    envs = make_short_vector(env_id, 3)
    _, infos = envs.reset(seed=4)
    for k in range(150):
        *_, infos = envs.step(valid_actions(infos["action_mask"], k))
    state = envs.get_state()
    deep, pickled = copy.deepcopy(envs), pickle.loads(pickle.dumps(envs))
    fresh = make_short_vector(env_id, 3)
    here = fresh.set_state(pickle.loads(pickle.dumps(state)))

    def rest(envs: gym.vector.VectorEnv) -> list[Any]:
        masks, outcomes = infos["action_mask"], []
        for k in range(200):
            outcomes.append(envs.step(valid_actions(masks, k)))
            masks = outcomes[-1][-1]["action_mask"]
        return outcomes

    expected = rest(envs)
    assert sum(outcome[3].sum() for outcome in expected) >= 3
    for other in (deep, pickled, fresh):
        assert_same(rest(other), expected)
    assert_same(envs.set_state(state), here)
    assert_same(here[1]["action_mask"], infos["action_mask"])
    assert_same(rest(envs), expected)


@each_vector_reward_id
def test_vector_rewards(env_id: str) -> None:
    """They are the reward terms, lie in their space, and weighted they are the scalar twin's reward."""
    env, twin = make_short(env_id), make_short(env_id.replace("/mo-", "/"))
    weights = family(env_id).weights(twin)
    assert np.count_nonzero(weights) > 2
    ours, theirs = list(episode(env, seed=8)), list(episode(twin, seed=8))
    paid = 0
    for (observation, reward, *flags, info), (other, scalar, *other_flags, other_info) in zip(
        ours[1:], theirs[1:], strict=True
    ):
        assert env.reward_space.contains(reward)
        assert reward @ weights == pytest.approx(scalar, rel=1e-12, abs=1e-12)
        paid += scalar != 0
        assert_same([observation, flags, info], [other, other_flags, other_info])
        assert_same(reward, info["reward_terms"])
        kept = reward.copy()
        reward[:] = np.nan  # it is the caller's own
        assert_same(info["reward_terms"], kept)
    assert paid > 20


@each_vector_reward_id
def test_linear_reward_of_mo_gymnasium(env_id: str) -> None:
    """Under its wrapper the vector twin is the scalar environment."""
    wrappers = pytest.importorskip("mo_gymnasium.wrappers", reason="needs mo-gymnasium, of the extra `dev`")
    twin = make_short(env_id.replace("/mo-", "/"))
    weights = family(env_id).weights(twin)
    env = wrappers.LinearReward(gym.make(env_id, **family(env_id).short), weight=weights)
    rewards = [outcome[1] for outcome in list(episode(env, seed=8))[1:]]
    expected = [outcome[1] for outcome in list(episode(twin, seed=8))[1:]]
    np.testing.assert_allclose(rewards, expected, rtol=1e-12, atol=1e-12)


@each_vector_reward_id
def test_vector_rewards_of_a_vector_environment(env_id: str) -> None:
    """Are the reward terms of each row, within the reward space."""
    envs = make_short_vector(env_id, 3)
    _, infos = envs.reset(seed=1)
    for k in range(200):
        _, rewards, _, _, infos = envs.step(valid_actions(infos["action_mask"], k))
        assert rewards.shape == (3, *envs.reward_space.shape)
        assert all(envs.reward_space.contains(reward) for reward in rewards)
        np.testing.assert_array_equal(rewards, infos["reward_terms"])


@each_id
def test_overload_stays_inside_the_space(env_id: str) -> None:
    """1e5 random steps: observations inside the space and finite, and always a valid action."""
    rows, steps = 50, 2000
    envs = gym.make_vec(env_id, num_envs=rows, **family(env_id).overload)
    observation, infos = envs.reset(seed=0)
    envs.action_space.seed(0)
    resets = 0
    for _ in range(steps):
        assert envs.observation_space.contains(observation)
        assert all(np.isfinite(values).all() for values in observation.values())
        assert infos["action_mask"].any(axis=-1).all()
        observation, rewards, _, truncated, infos = envs.step(envs.action_space.sample())
        assert np.isfinite(rewards).all()
        resets += truncated.sum()
    assert resets >= rows / 2


@each_scalar_id
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_find_the_id_by_its_module(env_id: str, context: str) -> None:
    """Processes that import nothing of this one make it from "routing_gym:routing_gym/…" (DESIGN 9)."""
    arguments = dict(family(env_id).short)
    make = partial(gym.make, f"routing_gym:{env_id}", **arguments)
    workers = gym.vector.AsyncVectorEnv([make, make], context=context)
    here = gym.vector.SyncVectorEnv([make, make])
    try:
        observation, infos = workers.reset(seed=3)
        assert_same((observation, infos), here.reset(seed=3))
        for k in range(5):
            actions = valid_actions(infos["action_mask"], k)
            outcome = workers.step(actions)
            assert_same(outcome, here.step(actions))
            infos = outcome[-1]
    finally:
        workers.close()


def test_import_is_light() -> None:
    """`import routing_gym` brings in no extra, and nothing that a router or a plot would need."""
    heavy = ["torch", "stable_baselines3", "matplotlib", "pygame", "moviepy", "highspy", "faiss", "pandas"]
    code = (
        "import sys, routing_gym, routing_gym.cluster.vector_env, routing_gym.cloud_edge.vector_env\n"
        f"print([name for name in {[*heavy, 'routing_baselines', 'routing_agents']} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
