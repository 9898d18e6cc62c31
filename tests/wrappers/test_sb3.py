"""The adapter for Stable-Baselines3 against its own vector environment; routers in its evaluation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from routing_gym import make_policy
from routing_gym.evaluation.runner import ROUTER_SEED_OFFSET, Condition, Router, make_jobs, play
from routing_gym.evaluation.sequential import Sequential
from routing_gym.wrappers import FeatureObservation, VectorFeatureObservation, as_sb3
from tests.environments import assert_same, family, make_short, make_short_vector, valid_actions

pytest.importorskip("stable_baselines3", reason="needs the extra `agents`")

from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecCheckNan, VecMonitor, VecNormalize

from routing_gym.wrappers import SB3VecEnv, make_sb3_env

CLUSTER = "routing_gym/InferenceCluster-v0"
BATCH = "routing_gym/CloudEdgeBatch-v0"
REQUEST = "routing_gym/CloudEdgeRequest-v0"
each_id = pytest.mark.parametrize("env_id", [CLUSTER, BATCH, REQUEST])
SAME_STEP = AutoresetMode.SAME_STEP


def make_venv(env_id: str, rows: int, features: bool) -> SB3VecEnv:
    envs = make_short_vector(env_id, rows, autoreset_mode=SAME_STEP)
    return SB3VecEnv(VectorFeatureObservation(envs) if features else envs)


def make_dummy(env_id: str, rows: int, features: bool) -> DummyVecEnv:
    wrap = FeatureObservation if features else (lambda env: env)
    return DummyVecEnv([lambda: wrap(make_short(env_id)) for _ in range(rows)])


def assert_close(a: Any, b: Any) -> None:
    """Features of one row and of many may differ by rounding; fields as they are may not."""
    if isinstance(a, dict):
        assert_same(a, b)
    else:
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def valid(masks: Any, env_id: str, k: int) -> np.ndarray:
    """Return valid actions by flat masks."""
    rows = np.stack(masks)
    return valid_actions(rows.reshape(len(rows), 4, -1) if env_id == BATCH else rows, k)


@pytest.mark.parametrize(
    ("env_id", "features"),
    [(CLUSTER, False), (CLUSTER, True), (REQUEST, False), (REQUEST, True), (BATCH, False)],
)
def test_step_for_step_a_dummy_vec_env(env_id: str, features: bool) -> None:
    """Over several ends of episodes, what is bootstrapped at them included."""
    rows = 3
    ours, theirs = make_venv(env_id, rows, features), make_dummy(env_id, rows, features)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.seed(11) == theirs.seed(11) == [11, 12, 13]
    assert_close(ours.reset(), theirs.reset())
    assert_same(ours.reset_infos, theirs.reset_infos)
    ended = 0
    for k in range(250):
        masks = ours.env_method("action_masks")
        assert_same(masks, theirs.env_method("action_masks"))
        np.testing.assert_array_equal(ours.action_masks(), masks)
        actions = valid(masks, env_id, k)
        observation, rewards, dones, infos = ours.step(actions)
        expected, same_rewards, same_dones, same_infos = theirs.step(actions)
        assert_close(observation, expected)
        assert rewards.dtype == np.float32 and dones.dtype == bool
        assert_same([rewards, dones], [same_rewards, same_dones])
        for row in range(rows):
            info, same = infos[row], same_infos[row]
            if not dones[row]:
                assert info == {}
                continue
            ended += 1
            assert_close(info.pop("terminal_observation"), same.pop("terminal_observation"))
            assert info["TimeLimit.truncated"] is True
            assert type(info["episode_metrics"]) is dict
            assert_same(info, same)
            assert_same(ours.reset_infos[row], theirs.reset_infos[row])
    assert ended >= 2 * rows
    assert_close(ours.reset(), theirs.reset())  # the next episodes: seeds are used once
    ours.close()


def test_nothing_is_shared_between_rows() -> None:
    """A caller may keep, or write into, what it is given."""
    venv = make_venv(CLUSTER, 4, features=True)
    venv.reset()
    first, rewards, _, infos = venv.step(np.zeros(4, np.int64))
    kept = first.copy()
    infos[0]["mine"] = 1
    assert all("mine" not in info for info in infos[1:])
    rewards += 1.0
    venv.step(np.zeros(4, np.int64))
    np.testing.assert_array_equal(first, kept)


class Countdown(gym.Env):
    """Ends by itself, or is cut off after 6 steps; not all of its infos have the same keys."""

    observation_space = gym.spaces.Box(-1.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self) -> None:
        self.left = self.steps = 0

    def _observe(self) -> np.ndarray:
        return np.array([self.left, self.steps], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left, self.steps = int(self.np_random.integers(3, 9)) + (options or {}).get("more", 0), 0
        return self._observe(), {"start": self.left}

    def step(self, action: Any) -> Any:
        self.left, self.steps = self.left - 1, self.steps + 1
        terminated, truncated = self.left == 0, self.steps == 6
        info = {"nested": {"word": "x" * self.steps}} if self.steps % 2 else {"left": self.left}
        return self._observe(), float(action), terminated, truncated, info

    def action_masks(self) -> np.ndarray:
        return np.arange(3) <= self.left


def test_other_vector_environments() -> None:
    """Gymnasium's own, of environments that also terminate, and have an `action_masks` each."""
    ours = SB3VecEnv(gym.vector.SyncVectorEnv([Countdown] * 4, autoreset_mode=SAME_STEP))
    theirs = DummyVecEnv([Countdown] * 4)
    for venv in (ours, theirs):
        venv.seed(2)
        venv.set_options({"more": 1})
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    cut = set()
    for k in range(60):
        assert_same(ours.env_method("action_masks", indices=[2, 0]), theirs.env_method("action_masks")[2::-2])
        assert ours.get_attr("left", indices=1) == theirs.get_attr("left", indices=1)
        assert_same(ours.reset_infos, theirs.reset_infos)
        observation, rewards, dones, infos = ours.step(np.full(4, k % 3))
        expected, same_rewards, same_dones, same_infos = theirs.step(np.full(4, k % 3))
        assert_same([observation, rewards, dones], [expected, same_rewards, same_dones])
        for row in np.flatnonzero(dones):
            assert_same(infos[row], same_infos[row])
            cut.add(infos[row]["TimeLimit.truncated"])
    assert cut == {True, False}
    np.testing.assert_array_equal(ours.reset(), theirs.reset())  # options are used once


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"autoreset_mode = AutoresetMode.NEXT_STEP: .* needs SAME_STEP"):
        SB3VecEnv(make_short_vector(CLUSTER, 2))
    venv = make_venv(CLUSTER, 2, features=False)
    for ask in (venv.get_attr, venv.env_method):
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            ask("nonsense")
    assert venv.has_attr("action_masks") and not venv.has_attr("nonsense")
    assert venv.env_is_wrapped(gym.Wrapper) == [False, False]
    assert venv.get_attr("render_mode") == [None, None]
    with pytest.raises(NotImplementedError, match="set_attr"):
        venv.set_attr("left", 1)
    venv.set_options([{}, {"more": 1}])
    with pytest.raises(ValueError, match="share their options"):
        venv.reset()


def test_frames() -> None:
    pytest.importorskip("pygame", reason="needs the extra `render`")
    venv = SB3VecEnv(make_short_vector(CLUSTER, 2, autoreset_mode=SAME_STEP, render_mode="rgb_array"))
    venv.reset()
    frames = venv.get_images()
    assert len(frames) == 2 and venv.render().shape[-1] == 3


def test_monitor_and_normalisation_on_top() -> None:
    """Returns and lengths are those of episodes; final observations are normalised as others are."""
    venv = make_sb3_env(CLUSTER, 3, seed=5, **family(CLUSTER).short)
    assert isinstance(venv, VecMonitor)
    normalised = VecNormalize(venv, clip_obs=5.0)
    twin = make_venv(CLUSTER, 3, features=True)
    twin.seed(5)
    twin.reset()
    normalised.reset()
    returns, lengths, seen = np.zeros(3), np.zeros(3, int), 0
    for k in range(250):
        actions = valid(twin.env_method("action_masks"), CLUSTER, k)
        _, rewards, dones, raw = twin.step(actions)
        _, _, _, infos = normalised.step(actions)
        np.testing.assert_array_equal(normalised.get_original_reward(), rewards)
        returns += rewards
        lengths += 1
        for row in np.flatnonzero(dones):
            episode = infos[row]["episode"]
            assert episode["r"] == pytest.approx(returns[row], rel=1e-5) and episode["l"] == lengths[row]
            expected = normalised.normalize_obs(raw[row]["terminal_observation"])
            np.testing.assert_allclose(infos[row]["terminal_observation"], expected, rtol=1e-5)
            returns[row] = lengths[row] = 0
            seen += 1
    assert seen > 6
    assert make_sb3_env(CLUSTER, 2, features=False, monitor=False).observation_space["healthy"].shape == (3,)


@pytest.mark.parametrize("algorithm", [PPO, A2C, DQN])
@pytest.mark.parametrize("env_id", [CLUSTER, REQUEST])
def test_algorithms_train(algorithm: Any, env_id: str) -> None:
    """A few updates, without a NaN."""
    venv = make_sb3_env(env_id, 4, seed=0, **family(env_id).short)
    checked = VecCheckNan(VecNormalize(venv, norm_obs=False), raise_exception=True)
    settings = {PPO: {"n_steps": 64, "batch_size": 64, "n_epochs": 2}, A2C: {}, DQN: {"learning_starts": 64}}
    model = algorithm("MlpPolicy", checked, seed=3, device="cpu", **settings[algorithm])
    model.learn(600)
    assert model.num_timesteps >= 600
    assert len(model.ep_info_buffer) >= 2


def test_maskable_ppo_never_takes_a_masked_action() -> None:
    """In training, where it samples, with replicas that fail and fill up."""
    contrib = pytest.importorskip("sb3_contrib", reason="needs the extra `agents`")
    masked = 0

    class Watched(SB3VecEnv):
        def step_async(self, actions: np.ndarray) -> None:
            nonlocal masked
            masks = self.action_masks()
            assert masks[np.arange(len(actions)), actions].all()
            masked += int((~masks).sum())
            super().step_async(actions)

    venv = Watched(VectorFeatureObservation(make_short_vector(CLUSTER, 4, autoreset_mode=SAME_STEP)))
    model = contrib.MaskablePPO(
        "MlpPolicy", venv, n_steps=64, batch_size=64, n_epochs=1, device="cpu", seed=0
    )
    model.learn(1000)
    assert masked > 50


def run(env_id: str, name: str, seeds: list[int], **params: Any) -> list[dict[str, Any]]:
    """Return the metrics that the runner finds."""
    config = make_short(env_id).config
    jobs = make_jobs([Router(name, name, params)], [Condition("short", config)], seeds)
    results = [result for job in jobs for result in play([job])]
    return [result.metrics for result in sorted(results, key=lambda result: result.job.seed)]


ROUTERS = [
    (CLUSTER, "cluster/round_robin", {}),
    (CLUSTER, "cluster/deadline_aware", {"margin": 0.8}),
    (CLUSTER, "cluster/adaptive", {}),
    (CLUSTER, "cluster/random", {}),
    (CLUSTER, "cluster/learned", {}),
    (BATCH, "cloud_edge/round_robin", {}),
    (BATCH, "cloud_edge/greedy", {}),
]


@pytest.mark.parametrize(("env_id", "name", "params"), ROUTERS)
@pytest.mark.parametrize("contrib", [False, True])
def test_evaluate_policy_gives_the_runners_numbers(
    env_id: str, name: str, params: dict[str, Any], contrib: bool
) -> None:
    """Every metric, and the return, of each episode; contrib's drops the router's state."""
    if contrib:
        maskable = pytest.importorskip("sb3_contrib.common.maskable.evaluation", reason="needs `agents`")
    evaluate = maskable.evaluate_policy if contrib else evaluate_policy
    rows, seed = 3, 40
    seeds = list(range(seed, seed + rows))
    venv = make_sb3_env(env_id, rows, seed=seed, features=False, **family(env_id).short)
    configs = venv.unwrapped.vector_env.unwrapped.configs
    router = as_sb3(make_policy(name, **params), configs, [each + ROUTER_SEED_OFFSET for each in seeds])
    found: dict[int, dict[str, Any]] = {}

    def keep(local: dict[str, Any], _: dict[str, Any]) -> None:
        if local["done"]:
            found[local["i"]] = local["info"]

    returns, lengths = evaluate(
        router, venv, n_eval_episodes=rows, callback=keep, return_episode_rewards=True
    )
    expected = run(env_id, name, seeds, **params)
    timed = {key for key in expected[0] if "decision" in key}
    for row in range(rows):
        metrics = found[row]["episode_metrics"]
        defined = {k: v for k, v in expected[row].items() if v is not None and k not in timed}
        assert_same(metrics, defined)
        paid, length = play_plain(env_id, name, params, seeds[row])
        assert found[row]["episode"]["r"] == pytest.approx(paid, rel=1e-5)
        assert found[row]["episode"]["l"] == length
    assert sorted(zip(returns, lengths, strict=True)) == sorted(
        (info["episode"]["r"], info["episode"]["l"]) for info in found.values()
    )


def play_plain(env_id: str, name: str, params: dict[str, Any], seed: int) -> tuple[float, int]:
    """Return what an episode pays a router whose state the caller keeps, and how long it is."""
    env = make_short(env_id)
    policy = make_policy(name, **params)
    policy.configure([env.config])
    state = policy.initial_state([seed + ROUTER_SEED_OFFSET])
    observation, info = env.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over:
        batch = {key: value[None] for key, value in observation.items()}
        masks = info["action_mask"][None]
        actions, state = policy.predict(batch, state, np.array([steps == 0]), action_masks=masks)
        observation, reward, _, over, info = env.step(actions[0])
        total, steps = total + reward, steps + 1
    return total, steps


def test_a_row_s_state_starts_anew_with_its_episode() -> None:
    """The cursor of round robin begins at 0 again, in that row alone; what the caller says is not used."""
    router = as_sb3(make_policy("cluster/round_robin"))
    observation = make_short_vector(CLUSTER, 2).reset(seed=0)[0]
    start = np.ones(2, bool)
    chosen = []
    for starts in (start, ~start, [True, False], ~start):
        actions, state = router.predict(observation, "nonsense", np.array(starts))
        assert state is None
        chosen.append(actions.tolist())
    assert chosen == [[0, 0], [1, 1], [0, 2], [1, 0]]


def test_what_an_operator_knows() -> None:
    """Is passed on at once, or by `configure`."""
    config = make_short(CLUSTER, demand={"output_ms": 0.2}).config
    at_once, later = make_policy("cluster/least_work"), make_policy("cluster/least_work")
    as_sb3(at_once, configs=[config])
    as_sb3(later).configure([config])
    assert at_once.demand == later.demand == config.demand.coefficients


def test_the_router_inside() -> None:
    """It stays what it is, is told what an operator knows, and may be one of single requests."""
    inner = Sequential(make_policy("cloud_edge/uniroute"))
    router = as_sb3(inner, configs=make_short_vector(BATCH, 2).configs)
    assert (router.family, router.role, router.acts_on) == ("cloud_edge", "router", "batch")
    observation = make_short_vector(BATCH, 2).reset(seed=0)[0]
    actions, _ = router.predict(observation, episode_start=np.ones(2, bool))
    np.testing.assert_array_equal(actions, inner.predict(observation, episode_start=np.ones(2, bool))[0])
    with pytest.raises(ValueError, match="seeds has 3 entries; there are 2 rows"):
        as_sb3(inner, seeds=[1, 2, 3]).predict(observation)


def test_features_tell_what_is_paid() -> None:
    venv = make_sb3_env(CLUSTER, 2, seed=0, reward_weights=True, configs=["default", {"reward": "latency"}])
    paid = venv.reset()[:, 12:17]
    np.testing.assert_allclose(paid, [[1, 0, 0, 0, 0], [0, 0, -10 / 11, -1 / 11, 0]], rtol=1e-6)
    with pytest.raises(ValueError, match="reward_weights = True: they are features; needs features = True"):
        make_sb3_env(CLUSTER, 2, features=False, reward_weights=True)
