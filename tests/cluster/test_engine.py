"""The compiled engine: equal to a tick-by-tick reference, and true to the model's laws."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.env import InferenceCluster
from routing_gym.cluster.state import ClusterState
from routing_gym.cluster.workload import Arrivals
from tests.cluster.cases import Case, Played, assert_equal, cases, play, play_reference

# Reproducible, and without the phase that explains failures, which takes minutes here.
RANDOM = settings(derandomize=True, database=None, phases=(Phase.explicit, Phase.generate, Phase.shrink))


@settings(RANDOM, max_examples=400)
@given(cases())
def test_equals_the_reference(case: Case) -> None:
    """Logs, statistics, observations, masks, terms and rewards, bit for bit."""
    assert_equal(play(case), play_reference(case), case)


def random_arguments(rng: np.random.Generator) -> dict[str, Any]:
    """Return an environment of a random condition, under light load or heavy overload."""
    replicas = int(rng.integers(1, 9))
    step = float(rng.choice([0.5, 0.5, 0.25, 1.0]))
    times = rng.choice([0.0, 0.0501, 0.1, 0.125, 0.2003], 3)

    def event() -> dict[str, Any]:
        kind = str(rng.choice(["rate", "slowdown", "failure", "failure", "recovery", "recovery"]))
        value: dict[str, Any] = {"time_s": float(rng.choice(times)), "kind": kind}
        if kind != "rate":
            value["replica"] = int(rng.integers(min(replicas, 3)))
        if kind in ("rate", "slowdown"):
            value["factor"] = float(rng.choice([0.5, 1.0, 3.0]))
        return value

    return {
        "replicas": replicas,
        "heterogeneity": float(rng.choice([0.0, 0.5, 1.0, 1.7])),
        "queue_capacity": int(rng.choice([rng.integers(1, 4), rng.integers(1, 51)])),
        "admission": bool(rng.integers(2)),
        "time_step_ms": step,
        "deadline_ms": float(rng.choice([50.0, 15.0])),
        "warmup_s": 0.0,
        "measured_s": float(rng.choice([0.125, 0.25, 0.5])),
        "load": float(rng.choice([0.5, 1.0, 3.0])),
        "prediction_sigma": [None, 0.0, 0.5, 1.0][rng.integers(4)],
        "signal_interval_ms": step * float(rng.choice([0, 1, 7, 100])),
        "reward": str(rng.choice(["on_time", "slo", "latency", "weighted"])),
        "events": [event() for _ in range(rng.integers(0, 9))],
    }


def play_environment(env: InferenceCluster, seed: int) -> tuple[Case, Played]:
    """Play an episode at random through the environment; return what it was, and what became of it."""
    observation, info = env.reset(seed=seed)
    episode = env.get_state()["episode"]
    assert episode.config == env.config
    choices = tuple(np.random.default_rng(seed).integers(0, env.action_space.n, 64).tolist())
    case = Case(env.config, episode.workload.cutoff_ms, episode.arrivals, choices)
    state = ClusterState(1, env.config.replicas)
    played = Played([observation], [info["action_mask"].tolist()], [], [], [], state)
    over = False
    while not over:
        observation, reward, _, over, info = env.step(case.choice(len(played.terms)))
        played.observations.append(observation)
        played.masks.append(info["action_mask"].tolist())
        played.terms.append(info["reward_terms"])
        played.rewards.append(reward)
    state.restore(env.get_state()["arrays"])
    return case, played


def test_environment_equals_the_reference() -> None:
    """As above, through the environment and on its own workloads; every kind of thing happens in them."""
    happened: Counter[str] = Counter()
    for seed in range(150):
        env = InferenceCluster(**random_arguments(np.random.default_rng(seed)))
        case, played = play_environment(env, seed)
        reference = play_reference(case)
        try:
            assert_equal(played, reference, case)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        happened.update(reference.counters)
        happened["invalid"] += reference.invalid_actions
        happened["shed by overload"] += reference.counters["shed"] - reference.counters["rejected"]
    scarce = {name: count for name, count in happened.items() if count < 30}
    assert not scarce, f"too rare to be tested: {scarce}"


@pytest.mark.parametrize("scenario", ["steady", "burst", "straggler", "failure"])
def test_whole_episodes_equal_the_reference(scenario: str) -> None:
    """The default condition, 15 s long, under each scenario."""
    case, played = play_environment(InferenceCluster(scenario=scenario), 1)
    assert case.cutoff_ms == 15_000.0
    reference = play_reference(case)
    assert_equal(played, reference, case)
    assert reference.counters["completed"] > 2000


@pytest.mark.slow
@settings(RANDOM, max_examples=3000)
@given(cases())
def test_equals_the_reference_on_many_more(case: Case) -> None:
    """As `test_equals_the_reference`, on other examples."""
    assert_equal(play(case), play_reference(case), case)


@settings(RANDOM, max_examples=150)
@given(cases())
def test_arrivals_are_completed_shed_or_unfinished(case: Case) -> None:
    """Each request is exactly one of them, and the reward terms count the same ones."""
    played = play(case)
    log = played.log
    assert len(log) == len(case.arrivals.arrival_ms)
    completed, shed = ~np.isnan(log["completion"]), log["shed"]
    assert not (completed & shed).any()
    assert (log["rejected"] <= shed).all()
    replicas = played.state.replicas[0]
    held = replicas["waiting"].sum() + (replicas["in_flight"] >= 0).sum()
    unfinished = len(log) - completed.sum() - shed.sum()
    assert held == unfinished == played.state.rows["outstanding"][0]
    on_time, late, lost, latency, integral = np.sum(played.terms, axis=0)
    assert (on_time + late, lost) == (completed.sum(), shed.sum())
    latencies = (log["completion"] - log["arrival"])[completed]
    assert late == (latencies > case.config.deadline_ms).sum()
    assert latency == pytest.approx(latencies.sum(), rel=1e-12, abs=1e-9)
    # A request is in the system from the boundary that routes it until it is completed, re-routing
    # included; one that is left at the end, until after the cutoff.
    step = case.config.time_step_ms
    routed = np.maximum(np.ceil(log["arrival"] / step), 1.0) * step
    left = np.where(completed, log["completion"], case.cutoff_ms + step)
    if not (log["reroutes"][shed] > 0).any():
        assert integral == (left - routed)[~shed].sum()


@settings(RANDOM, max_examples=150)
@given(cases())
def test_each_replica_serves_in_order_and_never_idles(case: Case) -> None:
    """FIFO, one at a time, not before arrival, and at once when there is work.

    So each start is settled by what was accepted: a request starts when it is accepted, or when the one
    before it is completed, whichever is later.
    """
    played = play(case)
    log, step, means = played.log, case.config.time_step_ms, case.config.replica_service_ms
    assert not (log["start"] < log["arrival"]).any()
    last = {acceptance.request: acceptance for acceptance in played.acceptances}
    for replica in range(case.config.replicas):
        # Requests that moved on were waiting still, so they delayed nobody.
        free = 0.0
        for time, request, where in played.acceptances:
            if where != replica or last[request] != (time, request, where) or log["shed"][request]:
                continue
            start, completion = log["start"][request], log["completion"][request]
            expected = max(time, free)
            if expected > case.cutoff_ms:
                assert np.isnan(start)
                continue
            assert start == expected
            # Slowness may change, so only that a service is whole steps long, and takes some.
            free = completion if completion >= start + step else np.inf
            assert np.isnan(completion) == (free == np.inf)
            if not case.config.events and free < np.inf:
                service = log["demand"][request] * means[replica] / 11.0 * log["jitter"][request]
                # Whether a product lies on a boundary or an ulp beyond it is the reference's affair.
                assert -1e-9 <= completion - start - service < step + 1e-9


def test_naming_ineligible_replicas_gains_nothing() -> None:
    """It does the same as naming the next eligible replica in cyclic order, but is counted."""
    named = 0
    for seed in range(40):
        arguments = random_arguments(np.random.default_rng(seed)) | {"load": 2.0, "admission": False}
        naming, honest = InferenceCluster(**arguments), InferenceCluster(**arguments)
        observation, info = naming.reset(seed=seed)
        honest.reset(seed=seed)
        expected, over = 0, False
        while not over:
            mask = info["action_mask"]
            ineligible = np.flatnonzero(mask == 0)
            wish = int(ineligible[0]) if len(ineligible) else int(mask.argmax())
            order = (wish + np.arange(len(mask))) % len(mask)
            expected += len(ineligible) > 0
            observation, reward, _, over, info = naming.step(wish)
            honest_observation, honest_reward, _, honest_over, _ = honest.step(order[mask[order] == 1][0])
            assert (reward, over) == (honest_reward, honest_over)
            for name, values in observation.items():
                assert values.tobytes() == honest_observation[name].tobytes(), (seed, name)
        log, honest_log = naming.request_log(), honest.request_log()
        assert log["invalid"].sum() == expected and not honest_log["invalid"].any()
        log["invalid"] = 0
        assert log.tobytes() == honest_log.tobytes()
        metrics, honest_metrics = naming.episode_metrics(), honest.episode_metrics()
        assert metrics.pop("invalid_actions") == expected
        assert honest_metrics.pop("invalid_actions") == 0
        np.testing.assert_equal(metrics, honest_metrics)
        named += expected
    assert named > 1000


def hand_worked_case() -> Case:
    """Five requests, two replicas of which the second is half as fast; the first fails at 12 ms."""
    config = ClusterConfig.create(
        replicas=2,
        service_ms=[11.0, 22.0],
        queue_capacity=2,
        deadline_ms=16.5,
        ewma_alpha=0.5,
        service_ceiling_ms=32.0,
        reward=[1.0, -1.0, -1.0, 0.0, 0.0],
        events=[
            {"time_s": 0.012, "kind": "failure", "replica": 0},
            {"time_s": 0.030, "kind": "recovery", "replica": 0},
        ],
    )
    arrivals = Arrivals(
        arrival_ms=np.array([0.25, 2.5, 4.0, 4.0, 12.0]),
        prompt_tokens=np.array([100.0, 200.0, 300.0, 400.0, 500.0]),
        output_tokens=np.array([10.0, 20.0, 30.0, 40.0, 50.0]),
        predicted_tokens=np.array([11.0, 22.0, 33.0, 44.0, 55.0]),
        demand_ms=np.array([10.0, 8.0, 6.0, 4.0, 20.0]),
        jitter=np.array([1.0, 1.02, 1.0, 1.0, 1.0]),
    )
    # Requests 0, 1 and 2 to replica 0, 3 to replica 1; then 2 anew, to the failed one; and 4 to replica 1.
    return Case(config, 60.0, arrivals, (0, 0, 0, 1, 0, 1))


def test_hand_worked_episode() -> None:
    """Every number of a short episode with a failure, worked out on paper.

    | ms | what |
    |---|---|
    | 0.5 | request 0 (arrived at 0.25) starts on replica 0: 10 ms, until 10.5 |
    | 2.5 | request 1 waits behind it |
    | 4.0 | request 2 waits on replica 0; request 3 starts on replica 1: 4 · 22/11 = 8 ms, until 12.0 |
    | 10.5 | request 0 done, latency 10.25; request 1 starts: 8 · 1.02 = 8.16 ms, 17 steps, until 19.0 |
    | 12.0 | request 3 done, latency 8. Replica 0 fails; request 2 is routed anew, named to 0, sent on to 1 |
    | 12.0 | and starts there: 6 · 22/11 = 12 ms, until 24.0. Request 4 waits behind it |
    | 19.0 | request 1 done on the failed replica, latency 16.5, just in time |
    | 24.0 | request 2 done, latency 20, late; request 4 starts: 40 ms, beyond the end at 60.0 |
    """
    case = hand_worked_case()
    played = play(case)
    log = played.log
    assert log["replica"].tolist() == [0, 0, 1, 1, 1]
    assert log["start"].tolist() == [0.5, 10.5, 12.0, 4.0, 24.0]
    np.testing.assert_array_equal(log["completion"], [10.5, 19.0, 24.0, 12.0, np.nan])
    assert log["reroutes"].tolist() == [0, 0, 1, 0, 0]
    assert log["invalid"].tolist() == [0, 0, 1, 0, 0]
    assert not log["shed"].any() and not log["rejected"].any()

    # on time, late, shed, latencies, and requests in the system times 0.5 ms, from decision to decision
    assert np.array(played.terms).tolist() == [
        [0, 0, 0, 0, 2.0],  # 0.5 … 2.0: 1 request at 4 boundaries
        [0, 0, 0, 0, 3.0],  # 2.5 … 3.5: 2 at 3
        [0, 0, 0, 0, 0],  # request 3 comes at the same boundary as 2
        [2, 0, 0, 18.25, 30.5],  # 4.0 … 10.0: 4 at 13; 10.5 … 11.5: 3 at 3. Requests 0 and 3 are done
        [0, 0, 0, 0, 0],  # request 4 comes at the boundary of the failure
        [1, 1, 0, 36.5, 67.5],  # 12.0 …: request 1 at 14 boundaries, 2 at 24, 4 at 97. Requests 1 and 2
    ]
    assert played.rewards == [0, 0, 0, 2, 0, 0]

    # The decision on the re-routed request.
    seen = {name: values.tolist() for name, values in played.observations[4].items()}
    assert seen["request"] == [300, 33, 8.0]
    assert seen["outstanding"] == [1, 0]
    assert seen["outstanding_prompt_tokens"] == [200, 0]
    assert seen["outstanding_predicted_tokens"] == [22, 0]
    assert seen["oldest_age"] == [9.5, 0]
    assert seen["completed"] == [1, 1]
    assert seen["since_completion"] == [1.5, 0]
    assert seen["service_ewma"] == [10.5, 9.5]  # (11 + 10)/2, (11 + 8)/2
    assert seen["reward_ewma"] == [0.671875, 0.703125]  # from 1 - 11/32, with 1 - 10/32 and 1 - 8/32
    assert seen["speed_ewma"] == [1.0, 1.5]  # 10/10 and 8/4
    assert seen["healthy"] == seen["eligible"] == [0, 1]
    assert seen["waiting"] == [0, 0] and seen["in_flight"] == [1, 0]
    assert seen["in_flight_age"] == [1.5, 0]
    assert seen["arrival_gap"] == [np.float32(0.9375)]  # 2.25, then with 1.5: 1.875, then with 0
    assert played.masks[4] == [0, 1]
    # The next one: request 2 waits on replica 1, as starts come after all decisions.
    assert played.observations[5]["outstanding"].tolist() == [1, 1]
    assert played.observations[5]["waiting"].tolist() == [0, 1]
    assert played.observations[5]["arrival_gap"] == np.float32(4.46875)

    replicas = played.state.replicas[0]
    assert replicas["service_ewma"].tolist() == [9.5, 10.75]  # with 8.5 and with 12
    assert replicas["reward_ewma"].tolist() == [0.703125, 0.6640625]
    assert replicas["speed_ewma"].tolist() == [1.03125, 1.75]  # with 8.5/8 and with 12/6
    assert replicas["healthy"].tolist() == [1, 1]
    assert played.observations[6]["request"].tolist() == [0, 0, 0]
    assert played.masks[6] == [1, 1]
    assert_equal(played, play_reference(case), case)


def test_a_snapshot_is_taken_between_events_and_decisions() -> None:
    """At multiples of the interval, and seen unchanged until the next; the router's own records stay live."""
    case = hand_worked_case()
    config = case.config.replace(signal_interval_ms=4.0)
    seen = play(Case(config, case.cutoff_ms, case.arrivals, case.choices)).observations
    # At 0.5 and 2.5 ms the snapshot is that of time 0; at 4.0 and 12.0 ms it is new.
    assert [values["signal_age"].item() for values in seen[:6]] == [0.5, 2.5, 0, 0, 0, 0]
    assert [values["in_flight"].tolist() for values in seen[:4]] == [[0, 0], [0, 0], [1, 0], [1, 0]]
    # Request 2, routed at 4.0 ms, is in no snapshot of that boundary.
    assert [values["waiting"].tolist() for values in seen[:4]] == [[0, 0], [0, 0], [1, 0], [1, 0]]
    assert [values["in_flight_age"].tolist() for values in seen[:4]] == [[0, 0], [0, 0], [3.5, 0], [3.5, 0]]
    assert seen[3]["outstanding"].tolist() == [3, 0]
    # At 12.0 ms: after completions and the failure. Request 2 came to replica 1 later.
    for k in (4, 5):
        assert seen[k]["waiting"].tolist() == [0, 0]
        assert seen[k]["in_flight"].tolist() == [1, 0]
    assert seen[5]["outstanding"].tolist() == [1, 1]


def test_events_of_time_zero_hold_from_the_start() -> None:
    """A replica that fails at 0 never gets anything, and one slowed at 0 is slow at once."""
    case = hand_worked_case()
    events = [
        {"time_s": 0.0, "kind": "failure", "replica": 0},
        {"time_s": 0.0, "kind": "slowdown", "replica": 1, "factor": 0.25},
    ]
    config = case.config.replace(events=events, queue_capacity=5)
    played = play(Case(config, case.cutoff_ms, case.arrivals, (0,)))
    assert played.masks[0] == [0, 1]
    assert set(played.log["replica"].tolist()) == {1}
    assert played.log["completion"][0] == 5.5  # 0.5 + 10 · 22/11 / 4


def test_an_event_on_a_boundary_acts_there() -> None:
    """Though 1.0035 s times 1000 is a little more than 1003.5 ms as floats are multiplied."""
    assert 1.0035 * 1000.0 > 1003.5
    config = ClusterConfig.create(
        replicas=2, events=[{"time_s": 1.0035, "kind": "failure", "replica": 0}], observation="router"
    )
    one = np.ones(2)
    arrivals = Arrivals(np.array([1003.0, 1003.5]), one, one, one, one, one)
    case = Case(config, 1100.0, arrivals)
    played = play(case)
    assert played.masks == [[1, 1], [0, 1], [1, 1]]
    assert_equal(played, play_reference(case), case)


def test_without_any_decision_the_episode_is_one_step() -> None:
    """All is shed while every replica is down; what is lost is paid with the only step."""
    case = hand_worked_case()
    events = [{"time_s": 0.0, "kind": "failure", "replica": i} for i in (0, 1)]
    played = play(Case(case.config.replace(events=events), case.cutoff_ms, case.arrivals, (0,)))
    assert np.array(played.terms).tolist() == [[0, 0, 5, 0, 0]]
    assert played.rewards == [-5.0]
    assert played.log["shed"].all()
    assert (played.log["replica"] == -1).all()
