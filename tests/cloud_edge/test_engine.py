"""The compiled engine: equal to a window-by-window reference, for both environments, and to work by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from routing_gym.cloud_edge.base_env import CloudEdgeEnv
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.contents import Contents
from routing_gym.cloud_edge.env import CloudEdgeBatch
from routing_gym.cloud_edge.request_env import CloudEdgeRequest
from routing_gym.cloud_edge.workload import Arrivals, Episode, EpisodeSource, Surroundings
from tests.cloud_edge.cases import (
    EpisodeCase,
    Played,
    assert_equal,
    episodes,
    on,
    play,
    play_reference,
    workload_of,
)

# Reproducible, and without the phase that explains failures, which takes minutes here.
RANDOM = settings(derandomize=True, database=None, phases=(Phase.explicit, Phase.generate, Phase.shrink))


def played_batch(case: EpisodeCase) -> Played:
    """Let the batch environment play a case."""
    return play(on(CloudEdgeBatch(case.episode.config), case.episode), case.choices)


def played_request(case: EpisodeCase) -> Played:
    """Let the request environment play a case."""
    return play(on(CloudEdgeRequest(case.episode.config), case.episode), case.choices)


@settings(RANDOM, max_examples=100)
@given(episodes())
def test_batch_environment_equals_the_reference(case: EpisodeCase) -> None:
    """Observations, masks, rewards, terms, log and metrics, of legal and illegal choices."""
    assert_equal(played_batch(case), play_reference(case, walk=False))


@settings(RANDOM, max_examples=100)
@given(episodes())
def test_request_environment_equals_the_reference(case: EpisodeCase) -> None:
    """Observations, masks, rewards, terms, log and metrics, of legal and illegal choices."""
    assert_equal(played_request(case), play_reference(case, walk=True))


def random_arguments(rng: np.random.Generator) -> dict[str, Any]:
    """Return an environment of a random condition, with outages and overload."""
    nodes = ["H100", "A100", "A100-250", "A10", "T4"]
    return {
        "catalogue": {"speedup": float(rng.choice([1.0, 3.0, 20.0])), "utilisation": 0.8},
        "replicate": int(rng.choice([1, 1, 2])),
        "window_s": float(rng.choice([1.0, 0.3])),
        "windows": int(rng.integers(2, 9)),
        "max_requests": int(rng.integers(1, 17)),
        "rate_per_s": float(rng.choice([3.0, 20.0])),
        "requests": [None, None, int(rng.integers(0, 12))][rng.integers(3)],
        "weights": rng.dirichlet(np.ones(4)).tolist(),
        "reward_on": str(rng.choice(["actual", "predicted"])),
        "rtt_sigma": float(rng.choice([0.0, 0.1, 1.0])),
        "edge_only_share": float(rng.choice([0.0, 0.4])),
        "outages": [{"node": str(rng.choice(nodes)), "window": int(rng.integers(2)), "windows": 2}],
        "outage_probability": float(rng.choice([0.0, 0.3, 0.9])),
        "outage_mean_windows": 2.0,
    }


@pytest.mark.parametrize("environment", [CloudEdgeBatch, CloudEdgeRequest])
def test_drawn_episodes_equal_the_reference(environment: type[CloudEdgeEnv]) -> None:
    """Through the environment as users build it; a second episode starts as clean as the first."""
    rng = np.random.default_rng(11)
    for start in range(12):
        env = environment("routerbench-5node", **random_arguments(rng))
        for seed in (start, None):
            played = play(env, tuple(rng.integers(0, 10_000, 500).tolist()), seed)
            assert_equal(played, play_reference(played.case, walk=environment is CloudEdgeRequest))


@settings(RANDOM, max_examples=60)
@given(episodes())
def test_a_walk_is_a_batch(case: EpisodeCase) -> None:
    """The same destinations, named one by one: the same log, metrics and total reward."""
    walked = played_request(case)
    config, log = case.episode.config, walked.log
    choices = np.zeros((config.windows, config.max_requests), np.int64)
    for window in range(config.windows):
        sent = log["destination"][log["window"] == window]
        choices[window, : len(sent)] = sent
    whole = played_batch(case._replace(choices=tuple(choices.ravel().tolist())))
    assert whole.metrics.pop("invalid_actions") == 0
    assert walked.metrics.pop("invalid_actions") == log["invalid"].sum()
    for name in set(log.dtype.names or ()) - {"invalid"}:
        np.testing.assert_array_equal(walked.log[name], whole.log[name], err_msg=name)
    for name, value in whole.metrics.items():
        np.testing.assert_array_equal(walked.metrics[name], value, err_msg=name)
    assert sum(walked.rewards) == pytest.approx(sum(whole.rewards), rel=1e-12)


@settings(RANDOM, max_examples=60)
@given(episodes())
def test_batches_do_not_depend_on_choices(case: EpisodeCase) -> None:
    """Every router meets the same requests at the same time, and the same bounds."""
    ours, theirs = played_batch(case), played_batch(case._replace(choices=(0,)))
    assert ours.log["window"].tolist() == theirs.log["window"].tolist()
    assert ours.log["set_aside"].tolist() == theirs.log["set_aside"].tolist()
    assert ours.masks == theirs.masks
    fixed = set(ours.observations[0]) - {"backlog_s", "outstanding"}
    for one, other in zip(ours.observations, theirs.observations, strict=True):
        for name in fixed:
            assert one[name].tobytes() == other[name].tobytes(), name


@settings(RANDOM, max_examples=60)
@given(episodes())
def test_laws(case: EpisodeCase) -> None:
    """No request is lost, sent twice, sent early, sent where it must not go, or overtaken without reason."""
    config, _, arrivals, surroundings = case.episode
    log = played_batch(case).log
    assert log["arrival"].tolist() == arrivals.arrival_s.tolist()
    sent = log["window"] >= 0
    assert ((log["destination"] >= 0) == sent).all()
    assert (log["dispatch"][sent] > log["arrival"][sent]).all()
    cloud = np.array([d.is_cloud for d in config.destinations])
    assert surroundings.up[log["window"][sent], log["destination"][sent]].all()
    assert not (cloud[log["destination"]] & log["edge_only"] & sent).any()
    assert (np.bincount(log["window"][sent], minlength=1) <= config.max_requests).all()
    # Only a request that had nowhere to go is overtaken by one that came later.
    order = np.where(sent, log["window"], config.windows)[~log["set_aside"]]
    assert (np.diff(order) >= 0).all()
    assert (log["queue"][sent] >= -1e-12).all()


def hand_worked_case(choices: tuple[int, ...]) -> EpisodeCase:
    """Four windows of 1 s, at most two requests each, a large model in the cloud and a small one at the edge.

    Per token in and out the cloud takes 1/256 and 1/64 s (S = 4, 64 W, 2⁻¹³ USD per token out), the edge 1/64
    and 1/64 s (S = 1, 32 W, for nothing), and the way 1/1024 s. RTT 1/16 and 1/64 s. The edge is down in
    windows 1 and 3.
    """
    path = {
        "rtt_ms": 0.0,
        "up_mbps": 2.0**15 / 1e6,
        "down_mbps": 2.0**15 / 1e6,
        "transmit_w": 0.0,
        "receive_w": 0.0,
        "price_gb_usd": 0.0,
    }
    large = {"name": "rack", "tier": "cloud", "models": ["large"], "power_w": 64.0}
    small = {"name": "box", "tier": "edge", "models": ["small"], "power_w": 32.0}
    config = CloudEdgeConfig.create(
        {
            "catalogue": {
                "efficiency": 1.0,
                "speedup": 1.0,
                "utilisation": 1.0,
                "network": {"cloud": path, "edge": path},
                "nodes": [
                    large | {"single_tflops": 2.0**36 / 1e12, "batch_tflops": 2.0**38 / 1e12},
                    small | {"single_tflops": 2.0**35 / 1e12, "batch_tflops": 2.0**35 / 1e12},
                ],
                "models": {
                    "large": {
                        "parameters_b": 2.0**29 / 1e9,
                        "price_in_usd": 0.0,
                        "price_out_usd": 1e6 / 2**13,
                    },
                    "small": {"parameters_b": 2.0**28 / 1e9, "price_in_usd": 0.0, "price_out_usd": 0.0},
                },
            },
            "workload": workload_of(["large", "small"]),
        },
        windows=4,
        max_requests=2,
    )
    arrivals = Arrivals(
        arrival_s=np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.25, 3.5]),
        edge_only=np.array([0, 1, 0, 0, 1, 0, 1], bool),
        contents=Contents(
            input_tokens=np.array([32.0, 32, 32, 64, 32, 0, 32]),
            predicted_output_tokens=np.array([32.0, 64, 96, 32, 32, 64, 32]),
            output_tokens=np.array(
                [[64, 32], [32, 96], [96, 96], [32, 32], [32, 32], [64, 32], [1, 1]], np.float32
            ),
            quality=np.array(
                [[1, 0.5], [1, 0.5], [1, 0], [0.5, 0], [0.5, 0.25], [0.75, 0.5], [1, 1]], np.float32
            ),
            predicted_quality=np.full((7, 2), 0.5, np.float32),
            cluster_error=np.full((7, 2), 0.25, np.float32),
            topic=np.zeros(7, np.int64),
        ),
    )
    surroundings = Surroundings(
        np.tile([1 / 16, 1 / 64], (4, 1)), np.array([[1, 1], [1, 0], [1, 1], [1, 0]], bool)
    )
    return EpisodeCase(Episode(config, EpisodeSource(config).workload, arrivals, surroundings), choices)


def assert_hand_worked_log(log: np.ndarray) -> None:
    """Assert what became of the seven requests."""
    assert log["window"].tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert log["destination"].tolist() == [1, 1, 0, 0, 1, 1, -1]
    assert log["set_aside"].tolist() == [0, 0, 0, 0, 1, 0, 1]
    assert log["invalid"].tolist() == [0, 1, 0, 1, 0, 0, 0]
    assert log["infer"][:6].tolist() == [1.0, 2.0, 1.625, 0.75, 1.0, 0.5]
    assert log["transfer"][:6].tolist() == [0.078125, 0.140625, 0.1875, 0.15625, 0.078125, 0.046875]
    assert log["queue"][:6].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0, 2.0]
    assert log["finish"][:6].tolist() == [1.078125, 3.140625, 1.8125, 0.90625, 2.078125, 2.546875]
    assert log["cost"][:6].tolist() == [0.0, 0.0, 96 / 2**13, 32 / 2**13, 0.0, 0.0]
    assert log["energy"][:6].tolist() == [32.0, 64.0, 104.0, 48.0, 32.0, 16.0]
    assert log["quality"][:6].tolist() == [0.5, 0.5, 1.0, 0.5, 0.25, 0.5]
    assert log["predicted_infer"][:6].tolist() == [1.0, 1.5, 1.625, 0.75, 1.0, 1.0]
    assert log["predicted_queue"][:6].tolist() == [0.0, 1.0, 0.0, 0.0, 0.5, 1.5]
    assert log["predicted_finish"][:6].tolist() == [1.078125, 2.609375, 1.8125, 0.90625, 1.578125, 2.578125]
    assert np.isnan(log["finish"][6]) and np.isnan(log["predicted_infer"][6])


def test_hand_worked_batches() -> None:
    """Every number of a short episode, worked out on paper.

    | at | sent |
    |---|---|
    | 1 s | 0 and 1 to the edge (1 named the cloud, where it may not go); 2 waits, for two are sent already |
    | 2 s | 2 and 3 to the cloud (3 named the edge, which is down); 4 must stay there, and is set aside |
    | 3 s | 4 and 5 to the edge |
    | 4 s | none: 6 is set aside |

    | at | B cloud, edge | as shown | not done |
    |---|---|---|---|
    | 1 s | 0, 0 | 0, 0 | |
    | 2 s | 0, 3 - 1 | 0, 2.5 - 1 | 0 and 1, until 2.078 and 4.141 s |
    | 3 s | 1.625 - 1, 2 - 1 | 1.625 - 1, 1.5 - 1 | 1, and 2 until 3.8125 s; 3 was done at 2.906 s |
    | 4 s | 0, 1 + 1.5 - 1 | 0, 0.5 + 2 - 1 | 1, and 4 and 5 until 5.078 and 5.547 s |
    | 5 s | 0, 0.5 | 0, 0.5 | 4 and 5 |
    """
    played = played_batch(hand_worked_case((1, 0, 0, 1, 1, 1, 1, 1)))
    assert_hand_worked_log(played.log)
    seen = {name: [shown[name].tolist() for shown in played.observations] for name in played.observations[0]}
    assert seen["active"] == [[1, 1], [1, 1], [1, 1], [0, 0], [0, 0]]
    assert seen["input_tokens"] == [[32, 32], [32, 64], [32, 0], [0, 0], [0, 0]]
    assert seen["predicted_output_tokens"] == [[32, 64], [96, 32], [32, 64], [0, 0], [0, 0]]
    assert seen["legal"] == [[1, 1, 0, 1], [1, 0, 1, 0], [0, 1, 1, 1], [1, 0, 1, 0], [1, 0, 1, 0]]
    assert seen["backlog_s"] == [[0, 0], [0, 1.5], [0.625, 0.5], [0, 1.5], [0, 0.5]]
    assert seen["outstanding"] == [[0, 0], [0, 2], [1, 1], [0, 3], [0, 2]]
    assert seen["infer_s"][0] == [0.625, 1.0, 1.125, 1.5]
    assert seen["transfer_s"][0] == [0.125, 0.078125, 0.15625, 0.109375]
    assert seen["energy"][0] == [40.0, 32.0, 72.0, 48.0]
    assert seen["cost"][0] == [32 / 2**13, 0.0, 64 / 2**13, 0.0]
    assert seen["quality"][0] == [0.5] * 4 and seen["cluster_error"][0] == [0.25] * 4
    assert seen["speedup"][0] == [4, 1] and seen["is_cloud"][0] == [1, 0]
    assert seen["token_price"][0] == [np.float32(1e6 / 2**14), 0] and seen["weights"][0] == [0.25] * 4

    # Window 0: Q 0.5 within [0.25, 0.5]; C 0 and E 96 at their least; T 3.140625 within [2.140625, 3.140625].
    # Window 1: nothing to choose, so all bounds coincide; in window 3 there is nobody to choose for.
    # Window 2: Q at its most again; T 2.546875 within [1.078125, 1.578125], for the edge was not idle.
    assert played.terms == [[-1, 0, 0, -1], [0] * 4, [-1, 0, 0, -2.9375], [0] * 4]
    assert played.rewards == [-0.5, 0, -0.984375, 0]
    metrics = {name: value for name, value in played.metrics.items() if name != "destination_shares"}
    assert metrics == pytest.approx(
        {
            "arrivals": 7,
            "dispatched": 6,
            "undispatched": 1,
            "waited": 3,  # 2, 4 and 6; request 3 arrived as window 1 began
            "set_aside": 2,
            "invalid_actions": 2,
            "windows": 4,
            "nonempty_windows": 3,
            "objective": (0.5 + 0.0 + 0.984375) / 3,
            # Predicted T: 2.609375 within [1.609375, 2.609375], and 2.578125 within [1.078125, 2.078125].
            "objective_predicted": (0.25 + 0.0 + 0.375) / 3,
            "quality_loss": (0.5 + 0.25 + 0.625) / 3,
            "cost_usd": 2.0**-6 / 3,
            "energy_j": (96 + 152 + 48) / 3,
            "completion_s": (3.140625 + 1.8125 + 2.546875) / 3,
            "quality": 3.25 / 6,
            # Latencies: 1.828125, 3.640625, 3.0625, 1.90625, 3.578125 and 3.296875.
            "mean_latency_s": 17.3125 / 6,
            "p50_latency_s": 3.0625,
            "p95_latency_s": 3.640625,
            "p99_latency_s": 3.640625,
            "p99_all_latency_s": np.inf,
            "cloud_share": 1 / 3,
            "mean_backlog_s": (2.0 + 1.0 + 1.5 + 0.5) / 4,
            "max_backlog_s": 2.0,
        }
    )
    assert played.metrics["destination_shares"].tolist() == pytest.approx([1 / 3, 2 / 3])


def test_hand_worked_walk() -> None:
    """The same episode, a request at a time: in each batch the longest predicted output comes first."""
    played = played_request(hand_worked_case((0, 1, 0, 1, 1, 1)))
    assert_hand_worked_log(played.log)
    seen = {name: [shown[name].tolist() for shown in played.observations] for name in played.observations[0]}
    assert seen["predicted_output_tokens"] == [[64], [32], [96], [32], [64], [32], [0]]
    assert seen["input_tokens"] == [[32], [32], [32], [64], [0], [32], [0]]
    assert seen["remaining"] == [[2], [1], [2], [1], [2], [1], [0]]
    assert seen["legal"] == [[0, 1], [1, 1], [1, 0], [1, 0], [1, 1], [0, 1], [1, 1]]
    assert seen["backlog_s"] == [[0, 0]] * 2 + [[0, 1.5]] * 2 + [[0.625, 0.5]] * 2 + [[0, 0.5]]
    assert seen["provisional_load_s"] == [
        *([0, 0], [0, 1.5]),
        *([0, 1.5], [1.625, 1.5]),
        *([0.625, 0.5], [0.625, 1.5]),
        [0, 0.5],
    ]
    assert seen["outstanding"] == [[0, 0], [0, 1], [0, 2], [1, 2], [1, 1], [1, 2], [0, 2]]
    assert seen["infer_s"] == [
        [1.125, 1.5],
        [0.625, 1.0],
        [1.625, 2.0],
        [0.75, 1.5],
        [1.0, 1.0],
        [0.625, 1.0],
        [0, 0],
    ]
    # As predicted: the edge's energy, or the cloud's; and T, of the bounds worked out above.
    assert seen["term_range"][0] == [0, 32 / 2**13, 8, 1.0]
    assert seen["term_range"][2] == [0] * 4
    assert seen["term_range"][4] == [0, 64 / 2**13, 32, 1.0]
    assert played.rewards == [0, -0.5, 0, 0, 0, -0.984375]
    assert played.terms[1] == [-1, 0, 0, -1] and played.terms[5] == [-1, 0, 0, -2.9375]
