"""The cloud–edge vector environments: a config per row, common workloads, bounds of spaces, saved states.

That rows are single environments, in each autoreset mode, tests/common/test_vector.py shows for all families.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import routing_gym
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.env import CloudEdgeBatch, MOCloudEdgeBatch
from routing_gym.cloud_edge.request_env import CloudEdgeRequest
from routing_gym.cloud_edge.state import CloudEdgeState
from routing_gym.cloud_edge.vector_env import CloudEdgeBatchVector, CloudEdgeRequestVector
from routing_gym.cloud_edge.workload import Episode, EpisodeSource
from routing_gym.common.config import ConfigError
from routing_gym.common.seeding import new_generator
from routing_gym.common.trace import TraceError
from tests.cloud_edge.cases import on, workload_of
from tests.environments import assert_same, valid_action

ENVIRONMENTS: dict[str, tuple[Any, Any]] = {
    "CloudEdgeBatch-v0": (CloudEdgeBatch, CloudEdgeBatchVector),
    "CloudEdgeRequest-v0": (CloudEdgeRequest, CloudEdgeRequestVector),
}
each_id = pytest.mark.parametrize("name", ENVIRONMENTS)
each_mode = pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
SLOTS = 4


def other_catalogue() -> dict[str, Any]:
    """Return eleven destinations again, but of three models on four nodes, and a workload that knows them."""
    path = {"rtt_ms": 20.0, "up_mbps": 9.0, "down_mbps": 9.0, "transmit_w": 3.0, "receive_w": 2.0}
    price = {"price_in_usd": 40.0, "price_out_usd": 50.0, "fee_usd": 0.01}
    nodes = [
        {"name": f"n{k}", "tier": "edge" if k % 2 else "cloud", "models": list("abc"[: 3 - k // 3])}
        | {"single_tflops": 1.0 + k, "batch_tflops": 3.0 + 2 * k, "power_w": 900.0}
        for k in range(4)
    ]
    return {
        "catalogue": {
            "efficiency": 1.0,
            "speedup": 1.0,
            "utilisation": 0.9,
            "network": dict.fromkeys(("cloud", "edge"), path | {"price_gb_usd": 5.0}),
            "nodes": nodes,
            "models": {name: price | {"parameters_b": 3.0 + k} for k, name in enumerate("abc")},
        },
        "workload": workload_of(list("abc")),
    }


def mixed_configs(trace: Path) -> list[Any]:
    """Return conditions as different as rows can be, given in each of the ways."""
    down = [{"node": "A10", "window": 1, "windows": 2}, {"node": "T4", "window": 2, "windows": 1}]
    return [
        {"rate_per_s": 3.0, "windows": 5},
        CloudEdgeConfig.create(other_catalogue(), requests=2, windows=4, weights=[0.7, 0.1, 0.1, 0.1]),
        {"trace": str(trace), "rate_per_s": 6.0, "windows": 3},
        {"edge_only_share": 0.5, "outages": down, "windows": 4, "rate_per_s": 2.0, "reward_on": "predicted"},
        {"rate_per_s": 0.0, "windows": 2},
        {"requests": 6, "window_s": 0.3, "windows": 7, "rtt_sigma": 0.5, "catalogue": {"speedup": 1.0}},
        "routerbench-5node",
    ]


OVER: dict[str, Any] = {"max_requests": SLOTS, "outage_probability": 0.05}  # laid over all rows


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of a few seconds, with several arrivals at one time and answers longer than usual."""
    rng = np.random.default_rng(0)
    times = np.sort(np.round(rng.random(600) * 30.0, 1))
    tokens = rng.integers(0, 5000, (600, 2))
    rows = [f"{time:.1f},{prompt},{output}" for time, (prompt, output) in zip(times, tokens, strict=True)]
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


@each_id
@each_mode
def test_each_row_has_its_own_config(name: str, mode: str, trace: Path) -> None:
    """Row i is the single environment of its config, seeded s + i, episode after episode."""
    configs = mixed_configs(trace)[:-1]
    rows = len(configs)
    envs: Any = gym.make_vec(
        f"routing_gym/{name}", num_envs=rows, configs=configs, autoreset_mode=mode, **OVER
    ).unwrapped
    singles = [ENVIRONMENTS[name][0](config, **OVER) for config in configs]
    observation, infos = envs.reset(seed=20)
    alone = [env.reset(seed=20 + row) for row, env in enumerate(singles)]
    assert [config.outage_probability for config in envs.configs] == [0.05] * rows
    over, episodes = np.zeros(rows, bool), np.zeros(rows, int)
    for k in range(70):
        assert envs.observation_space.contains(observation)
        masks = envs.action_masks()
        for row, (single, info) in enumerate(alone):
            for field, values in single.items():
                assert values.tobytes() == observation[field][row].tobytes(), (k, row, field)
            np.testing.assert_array_equal(info["action_mask"], infos["action_mask"][row])
            np.testing.assert_array_equal(singles[row].action_masks(), masks[row])
            assert singles[row].config == envs.configs[row]
        actions = np.array([valid_action(mask, k + row) for row, mask in enumerate(infos["action_mask"])])
        before = over
        observation, rewards, _, over, infos = envs.step(actions)
        for row, env in enumerate(singles):
            if before[row] and mode == "NextStep":
                alone[row] = env.reset()
                assert (rewards[row], over[row]) == (0.0, False)
                continue
            single, reward, _, truncated, info = env.step(actions[row])
            assert (reward, truncated) == (rewards[row], over[row])
            alone[row] = single, info
            episodes[row] += truncated
            if truncated:
                known = infos["final_info"] if mode == "SameStep" else infos
                metrics = known["episode_metrics"]
                for field, value in info["episode_metrics"].items():
                    assert metrics[f"_{field}"][row]
                    np.testing.assert_array_equal(metrics[field][row], value)
                given = {field for field in metrics if field[0] != "_" and metrics[f"_{field}"][row]}
                assert given == info["episode_metrics"].keys()
                if mode != "SameStep":
                    assert envs.assignment_log(row).tobytes() == env.assignment_log().tobytes()
                if mode != "NextStep":
                    alone[row] = env.reset()
        if mode == "Disabled" and over.any():
            observation, infos = envs.reset(options={"reset_mask": over})
            over = np.zeros(rows, bool)
        elif mode == "SameStep":
            over = np.zeros(rows, bool)
    assert (episodes >= 2).all()


@each_id
def test_rows_that_do_not_fit_together(name: str, trace: Path) -> None:
    """Name the row, the field, the value and what is allowed."""
    make = ENVIRONMENTS[name][1]
    wrong: list[tuple[list[Any], str]] = [
        ([{}, "testbed-6node"], r"configs\[1\]\.destination_count = 6: must be 11, as in configs\[0\]"),
        ([{}, {}, {"replicate": 2}], r"configs\[2\]\.destination_count = 22: must be 11"),
        ([{}, {"max_requests": 5}], r"configs\[1\]\.max_requests = 5: must be 32"),
    ]
    for configs, message in wrong:
        with pytest.raises(ConfigError, match=message):
            make(len(configs), configs=configs)
    with pytest.raises(ValueError, match="configs has 2 entries; num_envs is 3"):
        make(3, configs=[{}, {}])
    with pytest.raises(ConfigError, match="rate_per_s = -1"):
        make(2, configs=[{}, {"rate_per_s": -1}])
    with pytest.raises(TraceError, match="cannot read the trace"):
        make(2, configs=[{}, {"trace": "nowhere.csv"}])
    with pytest.raises(ConfigError, match=r"lasts .* s at 20 requests/s; an episode takes 60 s"):
        make(2, configs=[{}, {"trace": str(trace)}])


@each_id
def test_the_space_holds_every_row_s(name: str, trace: Path) -> None:
    """The bounds of the common space are the widest of all rows'."""
    single, vector = ENVIRONMENTS[name]
    configs = mixed_configs(trace)
    envs = vector(len(configs), configs=configs, max_requests=SLOTS)
    spaces = [single(config, max_requests=SLOTS).observation_space for config in configs]
    for field, box in envs.single_observation_space.items():
        highest = np.max([space[field].high for space in spaces], axis=0)
        np.testing.assert_array_equal(box.high, highest)
        np.testing.assert_array_equal(box.low, 0.0)
        assert np.isfinite(box.high).all()
        assert envs.observation_space[field].shape == (len(configs), *box.shape)
    widest = {int(np.argmax([space[field].high.max() for space in spaces])) for field in spaces[0]}
    assert len(widest) > 2  # which are those of several rows
    assert envs.single_action_space == single(max_requests=SLOTS).action_space


@each_id
def test_progress_is_the_share_of_windows_that_are_over(name: str) -> None:
    envs = ENVIRONMENTS[name][1](
        2, configs=[{"windows": 4}, {"windows": 8}], requests=1, max_requests=1, autoreset_mode="Disabled"
    )
    envs.reset(seed=0)
    for k in range(4):
        assert envs.progress().tolist() == [k / 4, k / 8]
        envs.step(np.zeros(envs.action_space.shape, int))
    assert envs.progress().tolist() == [1.0, 0.5]


# Workloads


def drawn(log: np.ndarray, episode: Episode) -> bytes:
    """Return the bytes of all that no router may change: arrivals, contents, surroundings, and batches."""
    names = ("arrival", "window", "edge_only", "set_aside", "input_tokens", "predicted_output_tokens")
    arrivals = episode.arrivals
    parts = [log[name] for name in names]
    parts += [arrivals.arrival_s, arrivals.edge_only, *arrivals.contents, *episode.surroundings]
    return b"".join(part.tobytes() for part in parts)


def play(env: Any, rule: str, observation: Any, info: dict[str, Any]) -> bytes:
    """Play the environment's current episode out by a rule or a router, and return what was drawn."""
    over, k, rng, state = False, 0, np.random.default_rng(0), None
    router = routing_gym.make_policy(f"cloud_edge/{rule}") if "_" in rule else None
    shape = env.action_space.shape
    while not over:
        if router is not None:
            action, state = router.predict(observation, state, k == 0)
        elif rule == "legal":
            action = valid_action(info["action_mask"], k)
        else:
            action = np.zeros(shape, int) if rule == "first" else rng.integers(0, 11, shape)
        observation, *_, over, info = env.step(action)
        k += 1
    return drawn(env.assignment_log(), env.episode)


@pytest.mark.parametrize("which", range(6))
def test_workloads_are_common_to_all_routers(trace: Path, which: int) -> None:
    """Byte for byte: whatever the router does, one window or one request at a time, and in every episode."""
    config = mixed_configs(trace)[which]
    played: dict[tuple[str, str], list[bytes]] = {}
    for name, (make, _) in ENVIRONMENTS.items():
        rules = ["first", "legal", "random"]
        env = make(config, **OVER)
        rules += ["round_robin", "least_loaded", "edge_only"] if name == "CloudEdgeBatch-v0" else []
        for rule in rules:
            played[name, rule] = [
                play(env, rule, *env.reset(seed=123 if episode == 0 else None)) for episode in range(3)
            ]
    expected = played["CloudEdgeBatch-v0", "first"]
    assert all(seen == expected for seen in played.values())
    assert len({*expected}) == 3


@each_id
def test_a_row_s_neighbours_leave_its_workload_alone(name: str, trace: Path) -> None:
    """Anywhere in a vector environment, beside rows of other conditions and seeds."""
    make, vector = ENVIRONMENTS[name]
    others = mixed_configs(trace)[:-1]
    config = {"requests": 3, "windows": 4, "edge_only_share": 0.3}
    env = make(config, **OVER)
    expected = [play(env, "first", *env.reset(seed=77 if episode == 0 else None)) for episode in range(3)]
    for row in (0, 3):
        configs = [*others[:row], config, *others[row:]]
        envs = vector(len(configs), configs=configs, autoreset_mode="Disabled", **OVER)
        seeds: list[int | None] = list(range(len(configs)))
        seeds[row] = 77
        seen: list[bytes] = []
        envs.reset(seed=seeds)
        while len(seen) < 3:
            actions = np.full(envs.action_space.shape, row % 3)
            *_, over, _ = envs.step(actions)
            if over[row]:
                seen.append(drawn(envs.assignment_log(row), envs.episodes[row]))
            if over.any():
                envs.reset(options={"reset_mask": over})
        assert seen == expected


# Bounds of the observations


def longest_requests(**fields: Any) -> CloudEdgeConfig:
    """Return a condition in which every request and answer is as long as can be, and all slots are filled."""
    lengths = {
        "input_tokens": {"median": 2048.0, "sigma": 0.0, "maximum": 2048},
        "output_tokens": {"median": 1024.0, "sigma": 0.0, "maximum": 1024},
    }
    usual = CloudEdgeConfig.create()
    workload = {
        "answer_sigma": 0.0,
        "prediction": {"output_sigma": 0.0},
        "topics": dict.fromkeys(usual.workload.topics, lengths),
        "models": {model: {"verbosity": 1.0} for model in usual.catalogue.hosted},
    }
    catalogue = {"speedup": 1.0, "network": {"edge": {"price_gb_usd": 3.0}}}
    return CloudEdgeConfig.create(
        catalogue=catalogue, workload=workload, requests=8, max_requests=8, windows=4, rtt_sigma=0.5, **fields
    )


@each_id
@pytest.mark.parametrize("destination", [0, 5, 8])
def test_bounds_are_reached_and_not_exceeded(name: str, destination: int) -> None:
    """Under the largest load that there can be: all of it to one destination, by the slowest of paths."""
    config = longest_requests(weights=[0.0, 1.0, 0.0, 0.0])
    source = EpisodeSource(config)
    episode = source.draw(new_generator(0))
    slow = np.tile(source.workload.rtt_maximum_s, (config.windows, 1))
    episode = episode._replace(surroundings=episode.surroundings._replace(rtt_s=slow))
    env: Any = on(ENVIRONMENTS[name][0](config), episode)
    observation, _ = env.reset(seed=0)
    space, seen, over = env.observation_space, [observation], False
    while not over:
        observation, *_, over, _ = env.step(np.full(env.action_space.shape, destination))
        seen.append(observation)
    assert all(space.contains(one) for one in seen)
    high = {field: box.high.astype(float) for field, box in space.items()}
    largest = {field: np.max([one[field] for one in seen], axis=0).astype(float) for field in high}
    reached = {"input_tokens", "predicted_output_tokens", "cost", "energy", "infer_s", "transfer_s", "legal"}
    reached |= {"speedup", "token_price"} | ({"active"} if "active" in high else {"remaining"})
    for field in reached:
        np.testing.assert_allclose(largest[field], high[field], rtol=2e-6, err_msg=field)
    assert largest["weights"].tolist() == [0, 1, 0, 0]
    # What a window of 1 s drains is all that keeps the backlog below its bound.
    new = high["backlog_s"][destination] / config.windows
    assert new > 1.0
    backlog = [float(one["backlog_s"][destination]) for one in seen]
    assert max(backlog) == pytest.approx(config.windows * (new - 1.0), rel=1e-5)
    assert largest["outstanding"][destination] == config.windows * config.max_requests
    if name == "CloudEdgeRequest-v0":
        load = float(seen[-2]["provisional_load_s"][destination])  # with seven of eight assigned
        assert load == pytest.approx(3 * (new - 1.0) + new * 7 / 8, rel=1e-5)


# Saved states


def test_a_state_of_another_shape_is_refused_and_changes_nothing() -> None:
    own = CloudEdgeBatchVector(3, windows=3, max_requests=4)
    own.reset(seed=1)
    before = own.get_state()
    for other, message in (
        (
            CloudEdgeBatchVector(2, windows=3, max_requests=4),
            r"\(2, 4, 11\); this environment has \(3, 4, 11\)",
        ),
        (CloudEdgeBatchVector(3, windows=3, max_requests=5), "max_requests = 5; this environment has 4"),
        (CloudEdgeBatchVector(3, "testbed-6node", max_requests=4), "destination_count = 6; .* has 11"),
        (CloudEdgeRequestVector(3, windows=3, max_requests=4), "with Discrete actions; this one's are"),
    ):
        other.reset(seed=1)
        with pytest.raises(ValueError, match=message):
            own.set_state(other.get_state())
        after = own.get_state()
        assert_same(after["arrays"], before["arrays"])
        assert after["generators"] == before["generators"]
        assert all(one is same for one, same in zip(after["episodes"], before["episodes"], strict=True))
    own.step(np.zeros((3, 4), np.int64))


def test_a_state_of_the_other_environment_is_refused() -> None:
    """Their arrays are alike, but a walk has no place in a batch; a vector reward makes no difference."""
    batch, request = CloudEdgeBatch(windows=3), CloudEdgeRequest(windows=3)
    twin = MOCloudEdgeBatch(windows=3)
    for env in (batch, request, twin):
        env.reset(seed=1)
    with pytest.raises(ValueError, match="with MultiDiscrete actions; this one's are Discrete"):
        request.set_state(batch.get_state())
    with pytest.raises(ValueError, match="with Discrete actions; this one's are MultiDiscrete"):
        batch.set_state(request.get_state())
    assert_same(batch.set_state(twin.get_state())[0], twin.set_state(batch.get_state())[0])


# Memory


def test_memory_grows_only_as_needed_and_nothing_is_lost() -> None:
    """Each axis on its own; the other rows keep what they hold, and a smaller episode moves nothing."""
    small = EpisodeSource(CloudEdgeConfig.create(requests=2, windows=3))
    more = EpisodeSource(CloudEdgeConfig.create(requests=5, windows=3))
    longer = EpisodeSource(CloudEdgeConfig.create(requests=1, windows=8))
    fewer_models = EpisodeSource(CloudEdgeConfig.create(other_catalogue(), requests=2, windows=3))
    state = CloudEdgeState(2, 11, 32)
    names = ("requests", "pairs", "paths", "windows")

    def shapes() -> list[tuple[int, ...]]:
        return [getattr(state, name).shape[1:] for name in names]

    def load(row: int, source: EpisodeSource) -> None:
        state.load(row, *source.draw(new_generator(row)))

    assert shapes() == [(0,), (0, 1), (0, 11), (0,)]
    load(0, fewer_models)
    assert shapes() == [(6,), (6, 3), (3, 11), (3,)]
    first = {name: getattr(state, name)[0].copy() for name in names}
    load(1, small)
    assert shapes() == [(6,), (6, 11), (3, 11), (3,)]
    load(1, more)
    assert shapes()[0][0] >= 15 and shapes()[2:] == [(3, 11), (3,)]
    load(1, longer)
    assert shapes()[2][0] >= 8 and shapes()[2] == (shapes()[3][0], 11)
    for name, values in first.items():
        kept = getattr(state, name)[0][tuple(slice(size) for size in values.shape)]
        for field in values.dtype.names:  # bytes between fields are nobody's
            np.testing.assert_array_equal(kept[field], values[field], err_msg=f"{name} {field}")
    held = {name: getattr(state, name) for name in names}
    for source in (small, fewer_models, longer):
        load(1, source)
        assert all(getattr(state, name) is array for name, array in held.items())


@each_id
def test_an_episode_leaves_nothing_to_the_next(name: str) -> None:
    """Whatever larger or other episode a row held before, it plays on as a fresh environment does."""
    make = ENVIRONMENTS[name][0]
    down = [{"node": node, "window": 0, "windows": 1} for node in ("H100", "A100", "A100-250", "A10", "T4")]
    large = make(longest_requests(edge_only_share=0.5, outages=down))
    small = CloudEdgeConfig.create(requests=2, max_requests=8, windows=3, edge_only_share=0.4)
    episode = EpisodeSource(small).draw(new_generator(3))
    used, fresh = large, make(small)
    used.reset(seed=1)
    over = False
    while not over:
        *_, over, _ = used.step(np.zeros(used.action_space.shape, int))
    before = used.episode_metrics()
    assert min(before[count] for count in ("invalid_actions", "set_aside", "waited", "undispatched")) > 0
    one, other = on(used, episode).reset(), on(fresh, episode).reset()
    assert_same(one, other)
    mask, over, k = other[-1]["action_mask"], False, 0
    while not over:
        action = valid_action(mask, k)
        after, wanted = used.step(action), fresh.step(action)
        assert_same(after, wanted)
        mask, over, k = wanted[-1]["action_mask"], wanted[3], k + 1
    assert used.assignment_log().tobytes() == fresh.assignment_log().tobytes()
    assert_same(used.episode_metrics(), fresh.episode_metrics())
