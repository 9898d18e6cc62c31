"""Workloads: arrivals, outages and round trips, one stream per kind of draw, replayed traces."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.contents import ARRIVALS, LEGALITY, OUTAGE, RTT, Contents
from routing_gym.cloud_edge.workload import Arrivals, EpisodeSource, Surroundings, Workload
from routing_gym.common.config import ConfigError
from routing_gym.common.seeding import EpisodeStreams, new_generator
from routing_gym.common.trace import TraceError, read_trace

FEWER = settings(max_examples=40)
NODES = ["H100", "A100", "A100-250", "A10", "T4"]
NODE_OF = np.repeat(np.arange(5), [2, 3, 2, 2, 2])
COLUMNS = (
    "arrival_s",
    "edge_only",
    "input_tokens",
    "predicted_output_tokens",
    "output_tokens",
    "quality",
    "predicted_quality",
    "cluster_error",
    "topic",
    "rtt_s",
    "up",
)


def make_workload(**fields: Any) -> Workload:
    return Workload(CloudEdgeConfig.create(fields))


@lru_cache
def usual() -> Workload:
    """Return the default workload."""
    return make_workload()


def draw(workload: Workload, seed: int = 0) -> tuple[Arrivals, Surroundings]:
    return workload.draw(EpisodeStreams(new_generator(seed)))


def arrival_times(workload: Workload, seed: int = 0) -> np.ndarray:
    return draw(workload, seed)[0].arrival_s


def columns(workload: Workload, seed: int = 0) -> dict[str, np.ndarray]:
    """Return everything that is drawn for an episode, by name."""
    arrivals, surroundings = draw(workload, seed)
    every = arrivals._asdict() | arrivals.contents._asdict() | surroundings._asdict()
    return {name: every[name] for name in COLUMNS}


def changed_columns(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> set[str]:
    """Return the names under which two episodes differ, in any byte."""
    return {name for name in COLUMNS if one[name].tobytes() != other[name].tobytes()}


def stream(seed: int, kind: int) -> np.random.Generator:
    """Return a stream of the first episode after reset(seed), made as DESIGN 3 says."""
    child = np.random.SeedSequence(int(new_generator(seed).integers(2**63))).spawn(10)[kind]
    return np.random.Generator(np.random.PCG64(child))


def ks_statistic(sample: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return √n times the largest distance from the distribution (Kolmogorov and Smirnov)."""
    expected = cdf(np.sort(sample))
    ranks = np.arange(len(sample) + 1) / len(sample)
    return math.sqrt(len(sample)) * float(max((ranks[1:] - expected).max(), (expected - ranks[:-1]).max()))


def normal_cdf(values: np.ndarray) -> np.ndarray:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in values])


class Scripted(EpisodeStreams):
    """An episode's streams, of which one gives the numbers written down for it, over and over."""

    def __init__(self, kind: int, numbers: list[float]) -> None:
        super().__init__(new_generator(0))
        self._kind, self._numbers = kind, numbers

    def __getitem__(self, stream: int) -> Any:
        return self if stream == self._kind else super().__getitem__(stream)

    def _next(self, shape: Any = None) -> Any:
        return self._numbers[0] if shape is None else np.resize(np.array(self._numbers, float), shape)

    standard_exponential = standard_normal = random = _next


# Poisson arrivals


def test_counts_are_poisson() -> None:
    """By the window, 60 × 60 counts of mean and variance 20; four standard errors."""
    counts = np.concatenate(
        [np.bincount(arrival_times(usual(), seed).astype(int), minlength=60) for seed in range(60)]
    )
    assert len(counts) == 3600
    assert abs(counts.mean() - 20) < 4 * math.sqrt(20 / len(counts))
    assert abs(counts.var(ddof=1) / 20 - 1) < 4 * math.sqrt((2 + 1 / 20) / len(counts))
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 4 / math.sqrt(len(counts))


def test_gaps_are_exponential() -> None:
    """The one before the first arrival too."""
    gaps = np.concatenate([np.diff(arrival_times(usual(), seed)) for seed in range(12)])
    assert ks_statistic(gaps, lambda x: 1 - np.exp(-20 * x)) < 1.63  # the 1 % point
    short = make_workload(windows=2)
    first = np.array([arrival_times(short, seed)[0] for seed in range(600)])
    assert ks_statistic(first, lambda x: 1 - np.exp(-20 * x)) < 1.63


@pytest.mark.parametrize("rate", [0.05, 2, 20, 700])
def test_arrivals_are_sums_of_gaps_however_many_are_drawn_at_once(rate: float) -> None:
    workload = make_workload(rate_per_s=rate, windows=8)
    for seed in range(4):
        rng, unit = stream(seed, ARRIVALS), 0.0
        one_by_one = []
        while (unit := unit + rng.standard_exponential()) / rate < 8:
            one_by_one.append(unit / rate)
        assert arrival_times(workload, seed).tobytes() == np.array(one_by_one).tobytes()


def test_unlikely_many_arrivals_are_all_drawn() -> None:
    """Sixteen times as many as the rate makes likely: gaps are drawn until the end is passed."""
    workload = make_workload(rate_per_s=64, windows=8)
    arrivals, _ = workload.draw(Scripted(ARRIVALS, [2**-4]))
    assert arrivals.arrival_s.tolist() == [k / 1024 for k in range(1, 8192)]  # one at 8 s is too late


def test_nothing_arrives_at_rate_0() -> None:
    for fields in ({"rate_per_s": 0.0}, {"requests": 0}):
        arrivals, surroundings = draw(make_workload(**fields))
        assert arrivals.arrival_s.shape == arrivals.edge_only.shape == (0,)
        assert arrivals.contents.quality.shape == (0, 11)
        assert surroundings.up.shape == (60, 11)


@FEWER
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.1, 0.3, 1.0, 7.0]),
    st.integers(1, 30),
    st.sampled_from([{"rate_per_s": 0.7}, {"rate_per_s": 30.0}, {"requests": 1}, {"requests": 9}]),
)
def test_arrivals_are_sorted_and_inside_the_episode(
    seed: int, window_s: float, windows: int, arrivals: dict[str, Any]
) -> None:
    """And there is one of everything for each; tokens are whole numbers within the workload's maxima."""
    workload = make_workload(window_s=window_s, windows=windows, **arrivals)
    drawn, surroundings = draw(workload, seed)
    times, contents = drawn.arrival_s, drawn.contents
    assert (times >= 0).all() and (times < windows * window_s).all()
    assert (np.diff(times) >= 0).all()
    per_request = contents[:-1]  # one prediction of a length holds for all models
    assert drawn.edge_only.shape == times.shape and {len(values) for values in per_request} == {len(times)}
    assert surroundings.rtt_s.shape == surroundings.up.shape == (windows, 11)
    for name in ("input", "output", "predicted"):
        tokens = getattr(contents, f"{name}_tokens" if name != "predicted" else "predicted_output_tokens")
        assert (tokens >= 1).all() and (tokens == np.rint(tokens)).all()
        assert (tokens <= getattr(workload, f"{name}_maximum")).all()


def test_a_shorter_episode_begins_as_a_longer_one_does() -> None:
    changes = {"outage_probability": 0.2, "rtt_sigma": 0.3}
    long, short = make_workload(**changes), make_workload(windows=7, **changes)
    for seed in range(5):
        (one, around), (other, there) = draw(long, seed), draw(short, seed)
        assert other.arrival_s.tobytes() == one.arrival_s[one.arrival_s < 7].tobytes()
        assert there.rtt_s.tobytes() == around.rtt_s[:7].tobytes()
        assert there.up.tobytes() == around.up[:7].tobytes()


# A fixed number of arrivals


@pytest.mark.parametrize("window_s", [1.0, 0.3])
def test_a_fixed_number_arrives_in_each_window_at_uniform_times(window_s: float) -> None:
    workload = make_workload(requests=30, window_s=window_s)
    assert workload.rate_per_s == 30 / window_s
    starts = np.repeat(np.arange(60) * window_s, 30)
    shares = []
    for seed in range(4):
        times = arrival_times(workload, seed)
        # By the products that say when windows end.
        assert (times >= starts).all() and (times < np.repeat(np.arange(1, 61) * window_s, 30)).all()
        shares.append((times - starts) / window_s)
    assert ks_statistic(np.concatenate(shares), lambda x: x) < 1.63
    # Those of a window are independent of each other but for their order: so are sums over windows.
    sums = np.concatenate(shares).reshape(-1, 30).sum(axis=1)
    assert abs(sums.var(ddof=1) / (30 / 12) - 1) < 4 * math.sqrt(2 / len(sums))


@pytest.mark.parametrize("window_s", [1.0, 0.1, 0.7, 1 / 3])
def test_no_arrival_is_rounded_into_the_next_window(window_s: float) -> None:
    workload = make_workload(requests=2, window_s=window_s, windows=3000)
    arrivals, _ = workload.draw(Scripted(ARRIVALS, [1 - 2**-53, 0.0]))
    first, second = arrivals.arrival_s.reshape(-1, 2).T
    assert (first == np.arange(3000) * window_s).all()
    ends = np.arange(1, 3001) * window_s
    assert (second < ends).all() and (ends - second <= 1e-12 * ends).all()


# One stream per kind of draw


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"edge_only_share": 0.5}, {"edge_only"}),
        ({"outage_probability": 0.3}, {"up"}),
        ({"outages": [{"node": "T4", "window": 1, "windows": 2}]}, {"up"}),
        ({"outage_mean_windows": 9.0}, set()),  # without a probability it says nothing
        ({"rtt_sigma": 0.2}, {"rtt_s"}),
        ({"rtt_sigma": 0.0}, {"rtt_s"}),
        ({"catalogue": {"network": {"edge": {"rtt_ms": 9.0}}}}, {"rtt_s"}),
        ({"catalogue": {"network": {"edge": {"up_mbps": 9.0}, "cloud": {"price_gb_usd": 1.0}}}}, set()),
        ({"catalogue": {"models": {"gpt-4": {"price_in_usd": 1.0, "fee_usd": 0.1}}}}, set()),
        ({"catalogue": {"models": {"gpt-4": {"parameters_b": 1.0}}}}, set()),
        ({"catalogue": {"speedup": 2.0, "efficiency": 0.5, "utilisation": 0.5}}, set()),
        ({"weights": [0.1, 0.2, 0.3, 0.4], "reward_on": "predicted", "max_requests": 3}, set()),
        ({"workload": {"prediction": {"output_sigma": 0.0}}}, {"predicted_output_tokens"}),
        ({"workload": {"prediction": {"difficulty_correlation": 0.1}}}, {"predicted_quality"}),
        ({"workload": {"difficulty_sd": 0.5}}, {"quality", "predicted_quality", "cluster_error"}),
        ({"workload": {"answer_sigma": 0.1}}, {"output_tokens"}),
    ],
)
def test_a_kind_of_setting_leaves_the_other_draws_bytes_alone(
    fields: dict[str, Any], changed: set[str]
) -> None:
    other = make_workload(**fields)
    for seed in range(3):
        assert changed_columns(columns(usual(), seed), columns(other, seed)) == changed


def test_copies_of_a_catalogue_meet_the_same_requests() -> None:
    many = make_workload(replicate=4)
    for seed in range(3):
        one, other = columns(usual(), seed), columns(many, seed)
        assert other["rtt_s"].shape == (60, 44)
        assert changed_columns(one, other) == {"rtt_s", "up"}


small_configs = st.fixed_dictionaries(
    {
        "windows": st.integers(1, 9),
        "rate_per_s": st.just(0.0) | st.floats(0.01, 30),
        "requests": st.none() | st.integers(0, 9),
        "edge_only_share": st.sampled_from([0.0, 0.3, 1.0]),
        "outage_probability": st.sampled_from([0.0, 0.3, 1.0]),
        "rtt_sigma": st.sampled_from([0.0, 0.1, 2.0]),
    }
)


@FEWER
@given(small_configs, st.integers(0, 10**6))
def test_the_same_seed_gives_the_same_bytes(fields: dict[str, Any], seed: int) -> None:
    one, other = make_workload(**fields), make_workload(**fields)
    assert not changed_columns(columns(one, seed), columns(other, seed))
    assert not changed_columns(columns(one, seed), columns(one, seed))


def test_another_seed_gives_another_episode() -> None:
    workload = make_workload(edge_only_share=0.3, outage_probability=0.3)
    assert changed_columns(columns(workload, 1), columns(workload, 2)) == set(COLUMNS)


# What requests may do


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_asked_share_must_stay_at_the_edge(share: float) -> None:
    workload = make_workload(edge_only_share=share)
    marked = np.concatenate([draw(workload, seed)[0].edge_only for seed in range(10)])
    assert marked.dtype == bool
    assert abs(marked.mean() - share) <= 4 * math.sqrt(share * (1 - share) / len(marked))
    count = len(draw(workload, 3)[0].arrival_s)
    expected = stream(3, LEGALITY).random(count) < share
    assert draw(workload, 3)[0].edge_only.tolist() == expected.tolist()


# Outages


def test_scheduled_outages_are_just_those() -> None:
    """They overlap, hold for all models of a node and for no copy of it, and may outlast the episode."""
    workload = make_workload(
        replicate=2,
        windows=8,
        outages=[
            {"node": "A100", "window": 2, "windows": 3},
            {"node": "A100", "window": 4, "windows": 2},
            {"node": "T4#2", "window": 7, "windows": 100},
            {"node": "H100", "window": 0, "windows": 1},
        ],
    )
    expected = np.ones((8, 22), bool)
    expected[2:6, 2:5] = False
    expected[7, 11 + 9 :] = False
    expected[0, :2] = False
    for seed in range(3):
        np.testing.assert_array_equal(draw(workload, seed)[1].up, expected)


@pytest.fixture(scope="module")
def random_up() -> np.ndarray:
    """Return which nodes were up, (episodes, windows, nodes), at p = .1 and outages of 4 windows."""
    workload = make_workload(
        windows=400, rate_per_s=0.0, outage_probability=0.1, outage_mean_windows=4.0, rtt_sigma=0.0
    )
    every = np.stack([draw(workload, seed)[1].up for seed in range(25)])
    for node in range(5):  # all destinations of a node together
        own = every[:, :, NODE_OF == node]
        assert (own == own[:, :, :1]).all()
    return every[:, :, np.searchsorted(NODE_OF, np.arange(5))]


def test_a_healthy_node_fails_as_often_as_asked(random_up: np.ndarray) -> None:
    """In the first window too; each node alike. Four standard errors."""
    healthy = np.concatenate([np.ones_like(random_up[:, :1]), random_up[:, :-1]], axis=1)
    fails = healthy & ~random_up
    for node in range(5):
        count = healthy[:, :, node].sum()
        assert abs(fails[:, :, node].sum() / count - 0.1) < 4 * math.sqrt(0.1 * 0.9 / count)
    first = ~random_up[:, 0]
    assert abs(first.mean() - 0.1) < 4 * math.sqrt(0.1 * 0.9 / first.size)


def test_outages_last_as_long_as_asked(random_up: np.ndarray) -> None:
    """Geometrically: whatever has passed of one, the next window ends it with probability 1/4."""
    lengths = []
    for up in np.moveaxis(random_up, 2, 1).reshape(-1, 400):
        edges = np.flatnonzero(np.diff(np.concatenate([[True], up, [True]]).astype(int)))
        starts, ends = edges[::2], edges[1::2]
        lengths += (ends - starts)[ends < 400].tolist()
    counts = np.bincount(lengths)
    assert abs(np.mean(lengths) - 4) < 4 * math.sqrt(12 / len(lengths))  # variance (1 - p)/p²
    for passed in (1, 2, 3, 6):
        lasted = counts[passed:].sum()
        assert abs(counts[passed] / lasted - 0.25) < 4 * math.sqrt(0.25 * 0.75 / lasted)


def test_nodes_fail_independently(random_up: np.ndarray) -> None:
    """Where two are healthy, whether they fail next is uncorrelated; so is whether they recover."""
    before, now = random_up[:, :-1], random_up[:, 1:]
    for one in range(5):
        for other in range(one):
            for state in (True, False):
                both = (before[:, :, one] == state) & (before[:, :, other] == state)
                pair = now[:, :, one][both], now[:, :, other][both]
                assert abs(np.corrcoef(*pair)[0, 1]) < 4.5 / math.sqrt(both.sum())


def test_a_node_that_always_fails_and_recovers_at_once_alternates() -> None:
    workload = make_workload(windows=6, outage_probability=1.0, outage_mean_windows=1.0)
    assert draw(workload)[1].up.tolist() == [[window % 2 == 1] * 11 for window in range(6)]


def test_random_outages_worked_by_hand() -> None:
    """p = .25 and outages of 2 windows: up at .25 or more, recovered below .5; every node at its own draw.

    The first fails at .2, stays down at .5 and .9, and recovers at .4; the second, with the same draws one
    window later, is up at first.
    """
    workload = make_workload(windows=5, outage_probability=0.25, outage_mean_windows=2.0)
    draws = np.full((5, 5), 0.3)
    draws[:, 0] = [0.2, 0.5, 0.9, 0.4, 0.25]
    draws[:, 1] = [0.25, 0.2, 0.5, 0.9, 0.4]
    _, surroundings = workload.draw(Scripted(OUTAGE, draws.ravel().tolist()))
    expected = np.ones((5, 11), bool)
    expected[:3, :2] = False
    expected[1:4, 2:5] = False
    assert surroundings.up.tolist() == expected.tolist()


def test_a_scheduled_outage_and_a_random_one_both_count() -> None:
    random = {"outage_probability": 0.3, "outage_mean_windows": 3.0}
    scheduled = {"outages": [{"node": "A10", "window": 3, "windows": 9}]}
    one, other, both = (make_workload(**fields) for fields in (random, scheduled, random | scheduled))
    for seed in range(3):
        up = draw(one, seed)[1].up & draw(other, seed)[1].up
        assert draw(both, seed)[1].up.tolist() == up.tolist()
        assert up.tolist() != draw(one, seed)[1].up.tolist()


# Round trips


def test_round_trips_are_lognormal_per_node_and_window() -> None:
    workload = make_workload(rtt_sigma=0.4, windows=400)
    base = np.where(NODE_OF < 3, 0.050, 0.0065)
    z = []
    for seed in range(4):
        rtt = draw(workload, seed)[1].rtt_s
        noise = np.log(rtt / base) / 0.4
        of_node = noise[:, np.searchsorted(NODE_OF, np.arange(5))]
        np.testing.assert_allclose(noise, of_node[:, NODE_OF], atol=1e-12)  # one a node, for all its models
        expected = np.clip(stream(seed, RTT).standard_normal((400, 5)), -4, 4)
        np.testing.assert_allclose(of_node, expected, atol=1e-12)
        z.append(of_node)
    everything = np.concatenate(z)
    assert ks_statistic(everything.ravel(), normal_cdf) < 1.63
    correlation = np.corrcoef(everything.T) - np.eye(5)
    assert np.abs(correlation).max() < 4.5 / math.sqrt(len(everything))
    assert np.abs(np.corrcoef(everything[:-1].ravel(), everything[1:].ravel())[0, 1]) < 4 / math.sqrt(7995)


def test_round_trips_are_cut_at_4_sigma() -> None:
    """Which is what the observation's bound rests on."""
    workload = make_workload(rtt_sigma=0.5, windows=3, catalogue={"network": {"cloud": {"rtt_ms": 40.0}}})
    _, surroundings = workload.draw(Scripted(RTT, [9.0, -9.0, 0.0, 4.0, 1.0]))
    factor = np.exp([2.0, -2.0, 0.0, 2.0, 0.5])[NODE_OF]
    base = np.where(NODE_OF < 3, 0.040, 0.0065)
    np.testing.assert_allclose(surroundings.rtt_s, np.tile(base * factor, (3, 1)), rtol=1e-14)
    assert workload.rtt_maximum_s == pytest.approx(base * math.exp(2.0), rel=1e-14)
    assert (surroundings.rtt_s <= workload.rtt_maximum_s).all()


def test_round_trips_without_noise_are_the_path_s() -> None:
    workload = Workload(CloudEdgeConfig.create("testbed-6node", rtt_sigma=0.0, windows=2))
    expected = [0.05, 0.0065, 0.0065, 0.0065, 0.0065, 0.197]  # the V100 has its own
    assert draw(workload)[1].rtt_s.tolist() == [expected, expected]
    assert workload.rtt_maximum_s.tolist() == expected


# Traces


def write_trace(path: Path, arrival_s: Any, prompt: Any, output: Any) -> str:
    rows = [f"{float(a)!r},{p},{o}" for a, p, o in zip(arrival_s, prompt, output, strict=True)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A minute of 1200 requests, which starts at 7 s on its own clock; prompts number the rows.

    Some answers are empty.
    """
    rng = np.random.default_rng(3)
    inner = np.sort(rng.uniform(0, 60, 1198))
    return write_trace(
        tmp_path_factory.mktemp("trace") / "trace.csv",
        7 + np.concatenate([[0], inner, [60]]),
        np.arange(1, 1201),
        rng.integers(0, 900, 1200),
    )


def literal() -> dict[str, Any]:
    """Return a workload in which every model's answer, and the predicted one, is as long as the trace's."""
    models = {model: {"verbosity": 1.0} for model in usual().config.catalogue.hosted}
    return {"answer_sigma": 0.0, "prediction": {"output_sigma": 0.0}, "models": models}


NATURAL = 1199 / 60


@pytest.mark.parametrize("rate", [None, 20.0, 5.0, 60.0])
def test_each_seed_replays_a_stretch_from_its_own_start(trace: str, rate: float | None) -> None:
    """At the rate asked for, by default 20/s, or at the trace's own."""
    rows = read_trace(trace)
    scale = 1.0 if rate is None else NATURAL / rate
    clock = rows.arrival_ms / 1000 * scale
    workload = make_workload(trace=trace, rate_per_s=rate, windows=10, workload=literal())
    assert workload.rate_per_s == pytest.approx(rate or NATURAL)
    assert workload.length_ms == pytest.approx(60_000 * scale)
    starts = set()
    for seed in range(20):
        arrivals, _ = draw(workload, seed)
        start = stream(seed, ARRIVALS).random() * (60 * scale - 10)
        inside = (clock >= start) & (clock < start + 10)
        assert inside.sum() > 25
        assert arrivals.arrival_s == pytest.approx(clock[inside] - start, abs=1e-9)
        assert arrivals.arrival_s.min() >= 0 and arrivals.arrival_s.max() < 10
        contents = arrivals.contents
        assert contents.input_tokens.tolist() == rows.prompt_tokens[inside].tolist()
        answers = np.maximum(rows.output_tokens[inside], 1)
        assert contents.predicted_output_tokens.tolist() == answers.tolist()
        assert (contents.output_tokens == answers[:, None]).all()
        starts.add(int(inside.argmax()))
    assert len(starts) >= 18


def test_without_a_rate_of_its_own_a_trace_is_scaled_to_the_default_s(trace: str) -> None:
    assert make_workload(trace=trace, windows=10).rate_per_s == 20.0


def test_starts_spread_over_the_whole_trace(trace: str) -> None:
    """Prompts number the rows, 20 a second: 50 s can be the start, the first 1000 rows or so."""
    workload = make_workload(trace=trace, windows=10)
    first = [draw(workload, seed)[0].contents.input_tokens[0] for seed in range(300)]
    assert min(first) < 60
    assert 940 < max(first) < 1060
    assert abs(np.mean(first) - 500) < 4 * 1000 / math.sqrt(12 * 300)


def test_tokens_of_a_trace_keep_within_the_bounds_that_the_spaces_rest_on(trace: str) -> None:
    """A model may answer at more length than the trace's did and a prediction be off, but not without end."""
    workload = make_workload(
        trace=trace, windows=10, workload={"answer_sigma": 1.0, "prediction": {"output_sigma": 1.0}}
    )
    assert workload.input_maximum == 1200
    longest = read_trace(trace).output_tokens.max()
    assert workload.output_maximum > longest and workload.predicted_maximum > longest
    most = np.zeros(3)
    for seed in range(60):
        contents = draw(workload, seed)[0].contents
        tokens = contents.input_tokens, contents.output_tokens, contents.predicted_output_tokens
        assert all(values.min() >= 1 for values in tokens)
        most = np.maximum(most, [values.max() for values in tokens])
    assert 1150 < most[0] <= 1200
    assert 0.8 * workload.output_maximum < most[1] <= workload.output_maximum
    assert longest < most[2] <= workload.predicted_maximum


def test_a_trace_s_contents_are_drawn_as_any(trace: str) -> None:
    """Only arrivals and token counts are the trace's; the rest has its own streams."""
    with_trace = make_workload(trace=trace, windows=10, rate_per_s=None)
    other = make_workload(trace=trace, windows=10, rate_per_s=None, edge_only_share=0.5, rtt_sigma=0.3)
    for seed in range(3):
        assert changed_columns(columns(with_trace, seed), columns(other, seed)) == {"edge_only", "rtt_s"}
        assert not changed_columns(columns(with_trace, seed), columns(with_trace, seed))


def test_a_trace_shorter_than_an_episode_is_refused_with_both_lengths(tmp_path: Path) -> None:
    """4 requests a second for 12 s; at 2/s it lasts 24 s."""
    path = write_trace(tmp_path / "trace.csv", np.arange(0, 12.25, 0.25), [100] * 49, [50] * 49)
    with pytest.raises(
        ConfigError,
        match=r"trace = .*trace\.csv: lasts 12\.0 s at 4 requests/s; an episode takes 60 s\. Lower rate",
    ):
        make_workload(trace=path, rate_per_s=None)
    with pytest.raises(ConfigError, match=r"lasts 6\.0 s at 8 requests/s; an episode takes 7\.5 s"):
        make_workload(trace=path, rate_per_s=8.0, windows=15, window_s=0.5)
    make_workload(trace=path, rate_per_s=2.0, windows=24)
    with pytest.raises(ConfigError, match=r"lasts 24\.0 s at 2 requests/s; an episode takes 25 s"):
        make_workload(trace=path, rate_per_s=2.0, windows=25)


def test_a_trace_just_as_long_as_an_episode_is_replayed_but_for_an_arrival_at_its_end(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.csv", [0, 4, 4, 12], [10, 20, 25, 30], [1, 2, 3, 4])
    workload = make_workload(trace=path, rate_per_s=None, windows=12)
    for seed in range(3):
        arrivals, _ = draw(workload, seed)
        assert arrivals.arrival_s.tolist() == [0, 4, 4]
        assert arrivals.contents.input_tokens.tolist() == [10, 20, 25]


def test_no_arrival_of_a_trace_is_rounded_to_the_episode_s_end(trace: str) -> None:
    """start + 3 rounds up beyond the arrival, and arrival - start rounds up to 3."""
    workload = make_workload(trace=trace, rate_per_s=None, windows=3)
    start, arrival = 0.25 + 3 * 2**-52, 3.25 + 2**-51
    assert arrival < start + 3 and arrival - start == 3
    workload._trace_s = np.array([0.0, arrival, 4.0])
    arrivals, _ = workload.draw(Scripted(ARRIVALS, [start]))
    assert arrivals.arrival_s.tolist() == [np.nextafter(3.0, 0.0)]


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read the trace .*nowhere\.csv"):
        make_workload(trace=str(tmp_path / "nowhere.csv"))


# Real traffic

AZURE = Path(__file__).parents[2].parent / "shared" / "data" / "azure_llm_2023"


@pytest.mark.parametrize(
    ("kind", "natural", "longest"), [("conv", 5.53, (14_050, 1000)), ("code", 2.57, (7437, 1899))]
)
def test_azure_traces_replay_at_their_own_rate_and_at_another(
    kind: str, natural: float, longest: tuple[int, int]
) -> None:
    path = AZURE / f"AzureLLMInferenceTrace_{kind}.csv"
    if not path.is_file():
        pytest.skip(f"needs the Azure LLM inference trace 2023 at {path}")
    rows = read_trace(path)
    for rate in (None, 12.0):
        workload = make_workload(trace=path, rate_per_s=rate, workload=literal())
        assert workload.rate_per_s == pytest.approx(rate or natural, abs=0.005)
        assert (workload.input_maximum, workload.output_maximum) == longest
        counts = []
        for seed in range(60):
            contents = draw(workload, seed)[0].contents
            counts.append(len(contents.input_tokens))
            assert contents.input_tokens.max(initial=0) <= workload.input_maximum
            assert contents.output_tokens.max(initial=0) <= workload.output_maximum
        # Bursts make the mean of 60 stretches rough.
        assert np.mean(counts) == pytest.approx(60 * workload.rate_per_s, rel=0.25)
        # A stretch is one of the trace's, row by row.
        first = draw(workload, 5)[0].contents
        tokens = np.stack([first.input_tokens, first.output_tokens[:, 0]]).T
        every = np.stack([rows.prompt_tokens, np.maximum(rows.output_tokens, 1)]).T
        found = np.lib.stride_tricks.sliding_window_view(every, len(tokens), axis=0)
        assert (found == tokens.T).all(axis=(1, 2)).any()


# Episodes


def test_an_episode_takes_one_draw_whatever_it_holds() -> None:
    for fields in ({}, {"rate_per_s": 0.0}, {"requests": 3, "windows": 2, "outage_probability": 0.5}):
        rng, counted = new_generator(1), new_generator(1)
        EpisodeSource(CloudEdgeConfig.create(fields)).draw(rng)
        counted.integers(2**63)
        assert rng.bit_generator.state == counted.bit_generator.state


def test_an_episode_is_what_its_workload_draws() -> None:
    source = EpisodeSource(CloudEdgeConfig.create(windows=5))
    episode = source.draw(new_generator(4))
    assert episode.config is source.config is episode.workload.config and episode.workload is source.workload
    arrivals, surroundings = draw(source.workload, 4)
    assert episode.arrivals.arrival_s.tobytes() == arrivals.arrival_s.tobytes()
    for name in Contents._fields:
        one, other = getattr(episode.arrivals.contents, name), getattr(arrivals.contents, name)
        assert one.tobytes() == other.tobytes()
    assert episode.surroundings.rtt_s.tobytes() == surroundings.rtt_s.tobytes()


@pytest.mark.parametrize(
    ("fields", "rate", "expected"),
    [
        ({}, 20.0, 1200.0),
        ({"rate_per_s": 3.0, "window_s": 0.5, "windows": 10}, 3.0, 15.0),
        ({"requests": 30, "window_s": 0.5, "windows": 10}, 60.0, 300.0),
        ({"requests": 30, "rate_per_s": None}, 30.0, 1800.0),
    ],
)
def test_what_a_workload_says_of_itself(fields: dict[str, Any], rate: float, expected: float) -> None:
    workload = make_workload(**fields)
    assert (workload.rate_per_s, workload.expected_requests) == (rate, expected)
    assert workload.horizon_s == workload.config.windows * workload.config.window_s
    assert workload.length_ms is None
    mean = np.mean([len(arrival_times(workload, seed)) for seed in range(40)])
    assert abs(mean - expected) < 4 * math.sqrt(expected / 40)
