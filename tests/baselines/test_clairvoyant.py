"""The clairvoyant: feasible, better than what it plays against, below the bound, best where all is tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from routing_baselines.cluster.bound import Bound
from routing_baselines.cluster.clairvoyant import Clairvoyant, _serve, deadline_aware
from routing_baselines.cluster.work import DeadlineAware
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.state import NONE
from routing_gym.cluster.vector_env import InferenceClusterVector
from routing_gym.common.jit import njit
from routing_gym.policy import Policy

SCENARIOS = ("steady", "burst", "straggler", "failure")
# Everything in a short time: queues that fill up, requests that are shed, a failure and its re-routes.
BUSY: dict[str, Any] = {
    "rate_per_s": 330,
    "queue_capacity": 8,
    "warmup_s": 0.2,
    "measured_s": 1.3,
    "events": [
        {"time_s": 0.3, "kind": "slowdown", "replica": 2, "factor": 2.0},
        {"time_s": 0.6, "kind": "failure", "replica": 0},
        {"time_s": 0.9, "kind": "recovery", "replica": 0},
    ],
}


def environment(configs: Sequence[ClusterConfig]) -> InferenceClusterVector:
    return InferenceClusterVector(
        len(configs), configs=configs, autoreset_mode=AutoresetMode.DISABLED, hold_finished=True
    )


def ready(policy: Policy, envs: InferenceClusterVector) -> Any:
    """Return the router's predict, once it knows the environment."""
    policy.configure(envs.configs)
    if policy.role == "yardstick":
        policy.attach(envs)
    return policy.predict


def play(policy: Policy, envs: InferenceClusterVector, seeds: Sequence[int]) -> list[dict[str, Any]]:
    observation, info = envs.reset(seed=list(seeds))
    predict = ready(policy, envs)
    over = np.zeros(len(seeds), bool)
    while not over.all():
        actions, _ = predict(observation, action_masks=info["action_mask"])
        observation, _, _, over, info = envs.step(actions)
    return [envs.episode_metrics(row) for row in range(len(seeds))]


def busy(**changes: Any) -> ClusterConfig:
    return ClusterConfig.create({**BUSY, **changes})


@njit
def answers(rows: Any, replicas: Any, requests: Any, demand: Any, margin: float) -> Any:
    """Return the compiled router's answer in each row that asks."""
    actions = np.full(len(rows), NONE)
    for e in range(len(rows)):
        if rows[e].current != NONE:
            actions[e] = deadline_aware(rows[e], replicas[e], requests[e], demand, margin)
    return actions


@pytest.mark.parametrize("admission", [False, True])
def test_the_compiled_deadline_aware_answers_as_the_router_does(admission: bool) -> None:
    configs = [
        busy(admission=admission),
        ClusterConfig.create(rate_per_s=250, scenario="straggler", admission=admission),
        ClusterConfig.create(rate_per_s=180, scenario="failure", admission=admission),
        ClusterConfig.create(rate_per_s=250, scenario="burst", prediction_sigma=None, admission=admission),
    ]
    envs = environment(configs)
    observation, info = envs.reset(seed=[7, 8, 9, 10])
    router = DeadlineAware()
    predict = ready(router, envs)
    demand = np.array([float(np.ravel(c)[0]) for c in router.demand])
    state = envs.state
    decisions = 0
    over = np.zeros(len(configs), bool)
    while not over.all():
        actions, _ = predict(observation, action_masks=info["action_mask"])
        compiled = answers(state.rows, state.replicas, state.requests, demand, router.margin)
        assert compiled[~over].tolist() == actions[~over].tolist()
        decisions += np.count_nonzero(~over)
        observation, _, _, over, info = envs.step(actions)
    assert decisions > 5000


@pytest.mark.parametrize("admission", [False, True])
def test_it_beats_deadline_aware_and_stays_below_the_bound(admission: bool) -> None:
    configs = [
        ClusterConfig.create(rate_per_s=rate, heterogeneity=h, scenario=scenario, admission=admission)
        for rate, h in ((100, 1.0), (180, 1.0), (250, 0.5))
        for scenario in SCENARIOS
    ]
    configs.append(busy(admission=admission))
    seeds = range(30_000, 30_000 + len(configs))
    envs = environment(configs)
    fixed = play(DeadlineAware(), envs, seeds)
    seer = play(Clairvoyant(), envs, seeds)
    bounds = [Bound().measure(episode) for episode in envs.episodes]
    for metrics, bound in zip(seer, bounds, strict=True):
        assert metrics["arrivals"] == bound["arrivals"]
        assert metrics["on_time"] <= bound["on_time"]
        assert metrics["invalid_actions"] == 0
    gains = [mine["attainment"] - theirs["attainment"] for mine, theirs in zip(seer, fixed, strict=True)]
    assert np.mean(gains) > 0
    # One episode may go the other way, where the look-ahead ends too early; by little.
    assert min(gains) > -0.01


@pytest.mark.parametrize("admission", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_as_good_as_the_best_of_all_sequences_of_actions(seed: int, admission: bool) -> None:
    """Seven or eight requests, two replicas, one of which slows down: a row for each sequence."""
    config = ClusterConfig.create(
        replicas=2,
        rate_per_s=115,
        warmup_s=0.0,
        measured_s=0.07,
        deadline_ms=25.0,
        queue_capacity=3,
        events=[{"time_s": 0.03, "kind": "slowdown", "replica": 0, "factor": 3.0}],
        admission=admission,
    )
    choices, depth = (3, 7) if admission else (2, 8)
    probe = environment([config])
    # The first seed from here on that draws as many requests.
    chosen = 100 * seed
    while probe.reset(seed=[chosen]) and len(probe.episodes[0].arrivals.arrival_ms) != depth:
        chosen += 1
    envs = environment([config] * choices**depth)
    envs.reset(seed=[chosen] * envs.num_envs)
    sequences = np.indices((choices,) * depth).reshape(depth, -1)
    for actions in sequences:
        envs.step(actions)
    assert (envs.state.rows["done"] != 0).all()
    served = envs.state.requests[:, :depth]
    latency = np.where(
        served["finish"] >= 0, served["finish"] * config.time_step_ms - served["arrival"], np.inf
    )
    best = (latency <= config.deadline_ms).sum(axis=1).max()
    [metrics] = play(Clairvoyant(width=300), probe, [chosen])
    assert metrics["on_time"] == best


@njit
def foreseen(row: Any, replicas: Any, requests: Any, events: Any, slow: Any) -> Any:
    """Return (end, on time) of each request that was started, as the search saw it when the episode began."""
    seen = np.zeros((row.next_request, 2), np.int64)
    for r in range(row.next_request):
        request = requests[r]
        if request.start != NONE:
            context = (row, 0, replicas["service_ms"], slow)
            end, on_time = _serve(context, events, request.replica, request, request.start)
            seen[r, 0], seen[r, 1] = end, on_time
    return seen


def test_the_search_foresees_services_as_the_engine_performs_them() -> None:
    slowdowns = [
        {"time_s": 0.1 * k, "kind": "slowdown", "replica": k % 3, "factor": 0.5 + k} for k in range(9)
    ]
    envs = environment([busy(events=slowdowns)])
    play(DeadlineAware(), envs, [11])
    state = envs.state
    row, requests = state.rows[0], state.requests[0, : state.rows["next_request"][0]]
    seen = foreseen(row, state.replicas[0], requests, state.events[0], np.ones(3))
    done = requests["finish"] != NONE
    assert np.count_nonzero(done) > 100
    assert seen[done, 0].tolist() == requests["finish"][done].tolist()
    late = envs.request_log(0)["completion"] - requests["arrival"] > row["deadline_ms"]
    assert 0 < np.count_nonzero(late[done]) < np.count_nonzero(done)
    assert seen[done, 1].tolist() == (~late[done]).tolist()
    cut_off = ~done & (requests["start"] != NONE)
    assert (seen[cut_off, 0] > row["cutoff"]).all()
    assert not seen[cut_off, 1].any()


@pytest.mark.parametrize("admission", [False, True])
def test_it_only_looks(admission: bool) -> None:
    envs = environment([busy(admission=admission)] * 2)
    observation, info = envs.reset(seed=[1, 2])
    predict = ready(Clairvoyant(horizon=40), envs)
    over = np.zeros(2, bool)
    while not over.all():
        before = {name: array.tobytes() for name, array in envs.state.arrays().items()}
        actions, _ = predict(observation)
        again, _ = predict(observation)
        assert {name: array.tobytes() for name, array in envs.state.arrays().items()} == before
        assert actions.tolist() == again.tolist()
        observation, _, _, over, info = envs.step(actions)
    assert info["action_mask"].all()


def test_its_answer_is_possible_whatever_was_done_so_far() -> None:
    """It need not be followed: here it is asked along the way of a random router."""
    rng = np.random.default_rng(5)
    for admission in (False, True):
        envs = environment([busy(admission=admission)] * 2)
        observation, info = envs.reset(seed=[3, 4])
        predict = ready(Clairvoyant(horizon=40, width=8), envs)
        over = np.zeros(2, bool)
        while not over.all():
            actions, _ = predict(observation)
            assert info["action_mask"][np.arange(2), actions].all()
            random = (info["action_mask"] * rng.random(info["action_mask"].shape)).argmax(axis=-1)
            observation, _, _, over, info = envs.step(random)


@pytest.mark.parametrize("decisions", [1, 3])
def test_a_second_episode_is_played_as_by_a_new_one(decisions: int) -> None:
    """The first ends before its plan does, and the plan must not be taken for the second's."""
    envs = environment([busy()])
    policy = Clairvoyant(horizon=1000)
    observation, _ = envs.reset(seed=[1])
    predict = ready(policy, envs)
    for _ in range(decisions):
        actions, _ = predict(observation)
        observation, *_ = envs.step(actions)
    observation, _ = envs.reset(seed=[2])
    over = np.zeros(1, bool)
    while not over.all():
        actions, _ = predict(observation)
        observation, _, _, over, _ = envs.step(actions)
    mine = envs.request_log(0)
    play(Clairvoyant(horizon=1000), envs, [2])
    assert mine.tobytes() == envs.request_log(0).tobytes()


def test_it_says_what_is_missing() -> None:
    envs = environment([busy()])
    observation, _ = envs.reset(seed=[1])
    for prepare in ("configure", "attach", None):
        policy = Clairvoyant()
        if prepare == "configure":
            policy.configure(envs.configs)
        elif prepare == "attach":
            policy.attach(envs)
        with pytest.raises(RuntimeError, match="configure and attach it first"):
            policy.predict(observation)


@pytest.mark.parametrize(
    ("params", "message"),
    [({"horizon": -1}, "horizon = -1"), ({"width": 0}, "width = 0"), ({"margin": 0.0}, "margin = 0.0")],
)
def test_parameters_that_make_no_sense(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Clairvoyant(**params)


def test_without_a_look_ahead_it_still_plays() -> None:
    [metrics] = play(Clairvoyant(horizon=0, width=1), environment([busy()]), [6])
    assert metrics["on_time"] > 0
