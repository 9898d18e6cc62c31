"""Feature observations of single and vector environments, in every autoreset mode."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from routing_gym.cloud_edge import features as cloud_edge
from routing_gym.cluster import features as cluster
from routing_gym.cluster.workload import make_workload
from routing_gym.common.features import flatten, unflatten
from routing_gym.wrappers import FeatureObservation, VectorFeatureObservation
from tests.environments import (
    assert_same,
    episode,
    family,
    make_short,
    make_short_vector,
    valid_actions,
)

CLUSTER = "routing_gym/InferenceCluster-v0"
REQUEST = "routing_gym/CloudEdgeRequest-v0"
IDS = [CLUSTER, REQUEST, "routing_gym/mo-InferenceCluster-v0"]
each_id = pytest.mark.parametrize("env_id", IDS)


def features_of(env: Any, observation: dict[str, np.ndarray], rows: int | None = None) -> np.ndarray:
    """Return the features of an environment's observation, by what its config says of demand."""
    if "request" not in observation:
        return flatten(cloud_edge.request_features(observation))
    configs = [env.unwrapped.config] if rows is None else env.unwrapped.configs[:rows]
    demand = np.array([make_workload(config).demand for config in configs]).T
    return flatten(cluster.cluster_features(observation, tuple(demand[:, 0] if rows is None else demand)))


@each_id
def test_a_single_environment(env_id: str) -> None:
    """Features of its observations; rewards, flags, infos and masks are its own."""
    raw, env = make_short(env_id), FeatureObservation(make_short(env_id))
    plain, wrapped = list(episode(raw, seed=3)), list(episode(env, seed=3))
    assert len(plain) == len(wrapped) > 50
    for (seen, *rest), (features, *same) in zip(plain, wrapped, strict=True):
        assert env.observation_space.contains(features)
        np.testing.assert_array_equal(features, features_of(raw, seen))
        assert_same(rest, same)
    np.testing.assert_array_equal(env.action_masks(), raw.action_masks())


@each_id
def test_how_features_are_found_again(env_id: str) -> None:
    """The attributes take flat features apart."""
    env, envs = FeatureObservation(make_short(env_id)), VectorFeatureObservation(make_short_vector(env_id, 2))
    for each in (env, envs):
        assert each.element_count == (3 if "Cluster" in env_id else 11)
        flat = each.reset(seed=1)[0]
        parts = unflatten(flat, each.element_count, len(each.element_features), len(each.context_features))
        mask = parts.elements[..., each.element_features.index("legal" if env_id == REQUEST else "eligible")]
        np.testing.assert_array_equal(mask, each.action_masks())
    assert env.observation_space == envs.single_observation_space


@each_id
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_environment(env_id: str, mode: AutoresetMode) -> None:
    """Features of its observations and final observations, over ends of episodes; the rest is its own."""
    rows = 3
    raw = make_short_vector(env_id, rows, autoreset_mode=mode)
    envs = VectorFeatureObservation(make_short_vector(env_id, rows, autoreset_mode=mode))
    assert envs.metadata["autoreset_mode"] is mode
    seen, infos = raw.reset(seed=5)
    features, same = envs.reset(seed=5)
    assert_same(infos, same)
    ended = 0
    for k in range(250):
        assert envs.observation_space.contains(features)
        np.testing.assert_array_equal(features, features_of(raw, seen, rows))
        np.testing.assert_array_equal(envs.action_masks(), infos["action_mask"] == 1)
        actions = valid_actions(infos["action_mask"], k)
        seen, *outcome, infos = raw.step(actions)
        features, *same, others = envs.step(actions)
        assert_same(outcome, same)
        over = outcome[2]
        ended += over.sum()
        if mode is AutoresetMode.SAME_STEP and over.any():
            final, own = infos.pop("final_obs"), others.pop("final_obs")
            for row in range(rows):
                if over[row]:
                    alone = {name: value[None] for name, value in final[row].items()}
                    np.testing.assert_array_equal(own[row], features_of(raw, alone, 1)[0])
                else:
                    assert own[row] is None
        assert_same(infos, others)
        if mode is AutoresetMode.DISABLED and over.any():
            options = {"reset_mask": over}
            seen, infos = raw.reset(options=options)
            features, same = envs.reset(options=options)
            assert_same(infos, same)
    assert ended >= rows


@pytest.mark.parametrize(
    ("env_id", "configs"),
    [
        # Rows of different services: what the operator knows of demand is each row's own.
        (CLUSTER, ["default", {"demand": {"output_ms": 0.2}}, {"demand": {"base_ms": 5.0}}]),
        (REQUEST, ["routerbench-5node"] * 3),
    ],
)
def test_rows_are_single_environments(env_id: str, configs: list[Any]) -> None:
    """Row i shows what a single environment of its condition shows, at an episode's end too."""
    envs = VectorFeatureObservation(
        make_short_vector(env_id, 3, configs=configs, autoreset_mode=AutoresetMode.SAME_STEP)
    )
    singles = [FeatureObservation(make_short(env_id, config=config)) for config in configs]
    features, infos = envs.reset(seed=[7, 7, 7])
    here = [env.reset(seed=7)[0] for env in singles]
    ended = 0
    for k in range(150):
        np.testing.assert_allclose(features, here, rtol=1e-6, atol=1e-6)
        actions = valid_actions(infos["action_mask"], k)
        features, _, _, truncated, infos = envs.step(actions)
        for row, env in enumerate(singles):
            here[row] = env.step(actions[row])[0]
            if truncated[row]:
                ended += 1
                np.testing.assert_allclose(infos["final_obs"][row], here[row], rtol=1e-6, atol=1e-6)
                here[row] = env.reset()[0]
    assert ended >= 3
    assert np.allclose(features[0], features[1]) == (env_id == REQUEST)


MIXED: dict[str, Any] = {
    "config": "training",
    "rewards": ["on_time", [0.0, -1.0, 0.0, 0.0, -0.02]],
    "warmup_s": 0.0,
    "measured_s": 0.25,
    "rate_per_s": [200, 300],
}


def told(configs: list[Any]) -> np.ndarray:
    """Return what rows of these conditions show of their rewards, by hand: (1 - w, -w, 0, 0, -w) over all."""
    w = np.array([1 - config.reward_weights[0] for config in configs])
    rows = np.stack([1 - w, -w, 0 * w, 0 * w, -w], axis=1) / (1 + w)[:, None]
    return rows.astype(np.float32)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_reward_weights_are_each_episode_s_own(mode: AutoresetMode) -> None:
    """After the context, and of the episode that is seen: in its last observation still of that."""
    rows = 3
    envs = VectorFeatureObservation(
        gym.make_vec(CLUSTER, num_envs=rows, autoreset_mode=mode, **MIXED), reward_weights=True
    )
    plain = VectorFeatureObservation(gym.make_vec(CLUSTER, num_envs=rows, autoreset_mode=mode, **MIXED))
    width = len(plain.context_features)
    assert envs.context_features == (*plain.context_features, *cluster.REWARD_FEATURES)
    assert envs.single_observation_space.shape == (plain.single_observation_space.shape[0] + 5,)

    def check(features: np.ndarray, usual: np.ndarray, configs: list[Any]) -> None:
        np.testing.assert_array_equal(np.delete(features, np.s_[width : width + 5], axis=-1), usual)
        np.testing.assert_allclose(features[..., width : width + 5], told(configs), atol=1e-6)

    (features, infos), (usual, _) = envs.reset(seed=5), plain.reset(seed=5)
    configs, seen, ended = envs.unwrapped.configs, set(), 0
    for k in range(250):
        assert envs.observation_space.contains(features)
        check(features, usual, configs)
        seen |= {config.reward for config in configs}
        actions = valid_actions(infos["action_mask"], k)
        features, _, _, over, infos = envs.step(actions)
        usual, _, _, _, others = plain.step(actions)
        ended += over.sum()
        if mode is AutoresetMode.SAME_STEP:
            for row in np.flatnonzero(over):
                last, same = infos["final_obs"][row], others["final_obs"][row]
                check(last[None], same[None], [configs[row]])
                assert envs.unwrapped.configs[row].reward != configs[row].reward
        if mode is AutoresetMode.DISABLED and over.any():
            check(features, usual, configs)
            options = {"reset_mask": over}
            (features, infos), (usual, _) = envs.reset(options=options), plain.reset(options=options)
        configs = envs.unwrapped.configs
    assert len(seen) >= ended >= rows


def test_reward_weights_of_a_single_environment() -> None:
    """As of a row; also in copies, and after a state was set behind the wrapper's back."""
    env = FeatureObservation(gym.make(CLUSTER, **MIXED), reward_weights=True)
    envs = VectorFeatureObservation(
        gym.make_vec(CLUSTER, num_envs=1, autoreset_mode=AutoresetMode.SAME_STEP, **MIXED),
        reward_weights=True,
    )
    assert env.observation_space == envs.single_observation_space
    assert env.context_features == envs.context_features
    (alone, info), (rows, _) = env.reset(seed=3), envs.reset(seed=3)
    over, episodes = False, 0
    while episodes < 3:
        if episodes == 0:
            almost_over = envs.unwrapped.get_state()
        np.testing.assert_allclose(rows[0], alone, rtol=1e-6, atol=1e-6)
        action = int(info["action_mask"].argmax())
        rows, _, _, _, infos = envs.step(np.array([action]))
        alone, _, _, over, info = env.step(action)
        if over:
            episodes += 1
            np.testing.assert_allclose(infos["final_obs"][0], alone, rtol=1e-6, atol=1e-6)
            alone, info = env.reset()
    # The end of the first episode again: its last observation shows its own weights, not the present one's.
    envs.unwrapped.set_state(almost_over)
    (config,) = envs.unwrapped.configs
    _, _, _, over, infos = envs.step(envs.unwrapped.action_masks().argmax(axis=1))
    width = len(envs.context_features)
    assert over[0]
    np.testing.assert_allclose(infos["final_obs"][0][width - 5 : width], told([config])[0], atol=1e-6)

    spec = EnvSpec.from_json(json.loads(json.dumps(env.spec.to_json())))
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env)), gym.make(spec)):
        assert_same(list(episode(other, seed=4)), list(episode(env, seed=4)))
        assert other.context_features == env.context_features


def test_reward_weights_are_the_cluster_s() -> None:
    for wrapped in (
        lambda: FeatureObservation(make_short(REQUEST), reward_weights=True),
        lambda: VectorFeatureObservation(make_short_vector(REQUEST, 2), reward_weights=True),
    ):
        with pytest.raises(ValueError, match="reward_weights = True: only InferenceCluster pays by weights"):
            wrapped()


def test_a_distribution_does_not_vary_demand(tmp_path: Any) -> None:
    """So what a row's base condition says of it holds in every episode, of a trace too."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival_s,prompt_tokens,output_tokens\n"
        + "".join(f"{k / 90},{k % 70},{k % 9}\n" for k in range(3000))
    )
    for base in ({}, {"trace": str(trace)}):
        envs = gym.make_vec(
            CLUSTER,
            num_envs=6,
            config={"base": base, "load": [0.5, 1.0], "scenarios": ["steady", "straggler", "failure"]},
            warmup_s=0.0,
            measured_s=0.25,
        )
        (known,) = {make_workload(config).demand for config in envs.unwrapped.configs}
        for _ in range(3):
            envs.reset(seed=0)
            assert len({each.config.heterogeneity for each in envs.unwrapped.episodes}) == 6
            assert {each.workload.demand for each in envs.unwrapped.episodes} == {known}


@each_id
def test_spec_survives_json(env_id: str) -> None:
    env = FeatureObservation(gym.make(env_id, **family(env_id).short))
    remade = gym.make(EnvSpec.from_json(json.loads(json.dumps(env.spec.to_json()))))
    assert isinstance(remade, FeatureObservation)
    assert_same(list(episode(env, seed=3)), list(episode(remade, seed=3)))


@each_id
def test_copies_go_on_identically(env_id: str) -> None:
    env = FeatureObservation(make_short(env_id))
    list(episode(env, seed=3))
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert_same(list(episode(env, seed=4)), list(episode(other, seed=4)))


@pytest.mark.parametrize("env_id", [CLUSTER, REQUEST])
@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
def test_gymnasiums_checker(env_id: str) -> None:
    """It finds nothing amiss, but that there is a wrapper."""
    check_env(FeatureObservation(make_short(env_id)), skip_render_check=True)


def test_other_environments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"features are made of .* InferenceCluster and CloudEdgeRequest"):
        FeatureObservation(make_short("routing_gym/CloudEdgeBatch-v0"))
    singles = gym.vector.SyncVectorEnv([lambda: make_short(CLUSTER)] * 2)
    with pytest.raises(
        TypeError, match=r"SyncVectorEnv.* wrap each single environment in FeatureObservation"
    ):
        VectorFeatureObservation(singles)
    with pytest.raises(TypeError, match=r"this environment's are Box"):
        VectorFeatureObservation(VectorFeatureObservation(make_short_vector(CLUSTER, 2)))


def test_import_needs_no_extra() -> None:
    """`routing_gym.wrappers` brings in neither torch nor Stable-Baselines3."""
    code = (
        "import sys, routing_gym.wrappers as w\n"
        "w.VectorFeatureObservation, w.FeatureObservation, w.as_sb3\n"
        "print([name for name in ('torch', 'stable_baselines3', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_what_needs_an_extra_says_so() -> None:
    code = (
        "import sys\n"
        "sys.modules['stable_baselines3'] = None\n"
        "import routing_gym.wrappers as w\n"
        "for name in ('SB3VecEnv', 'make_sb3_env', 'nonsense'):\n"
        "    try:\n"
        "        getattr(w, name)\n"
        "    except (ImportError, AttributeError) as error:\n"
        "        print(error)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    needed = 'this needs Stable-Baselines3: pip install "routing-gym[agents]"'
    missing = "module 'routing_gym.wrappers' has no attribute 'nonsense'"
    assert done.stdout.splitlines() == [needed, needed, missing], done.stderr
