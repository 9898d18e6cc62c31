"""Workloads: Poisson statistics, exact rate changes, one stream per kind of draw, replayed traces."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.distribution import ClusterDistribution
from routing_gym.cluster.workload import (
    CONFIG,
    GAPS,
    JITTER,
    OUTPUT,
    PREDICTION,
    PROMPT,
    Arrivals,
    EpisodeSource,
    SyntheticWorkload,
    TraceWorkload,
    make_workload,
)
from routing_gym.common.config import ConfigError
from routing_gym.common.seeding import EpisodeStreams, new_generator
from routing_gym.common.trace import read_trace

FEWER = settings(max_examples=60)
SHORT = {"warmup_s": 0.5, "measured_s": 1.5}


def draw(seed: int = 0, **fields: Any) -> Arrivals:
    return make_workload(ClusterConfig.create(**fields)).draw(EpisodeStreams(new_generator(seed)))


def children(seed: int) -> list[np.random.Generator]:
    """Return the six streams of the first episode after reset(seed), made as DESIGN 3 says."""
    entropy = int(new_generator(seed).integers(2**63))
    return [np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(entropy).spawn(6)]


def same_bytes(one: Arrivals, other: Arrivals, *names: str) -> bool:
    """Whether these columns agree for as many requests as both episodes have, and there are some."""
    count = min(len(one.arrival_ms), len(other.arrival_ms))
    return count > 0 and all(
        getattr(one, name)[:count].tobytes() == getattr(other, name)[:count].tobytes() for name in names
    )


def ks_statistic(sample: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return √n times the largest distance from the distribution (Kolmogorov and Smirnov)."""
    expected = cdf(np.sort(sample))
    ranks = np.arange(len(sample) + 1) / len(sample)
    return math.sqrt(len(sample)) * float(max((ranks[1:] - expected).max(), (expected - ranks[:-1]).max()))


class Scripted:
    """Streams that give the numbers written down for them, by kind of draw."""

    def __init__(self, **script: list[float]) -> None:
        kinds = {"gaps": GAPS, "prompt": PROMPT, "output": OUTPUT, "jitter": JITTER, "prediction": PREDICTION}
        self._script: dict[int, list[float]] = {kind: [] for kind in kinds.values()}
        self._script |= {kinds[name]: list(numbers) for name, numbers in script.items()}

    def __getitem__(self, stream: int) -> Scripted:
        self._current = self._script[stream]
        self._padding = 1e9 if stream == GAPS else 0.0
        return self

    def _next(self, count: int) -> np.ndarray:
        taken, self._current[:] = self._current[:count], self._current[count:]
        return np.array(taken + [self._padding] * (count - len(taken)))

    standard_exponential = standard_normal = random = _next


# Arrivals


def test_counts_are_poisson() -> None:
    """By the second, 15 × 60 counts of mean and variance 180; four standard errors."""
    counts = np.concatenate(
        [np.bincount((draw(seed).arrival_ms // 1000).astype(int), minlength=15)[:15] for seed in range(60)]
    )
    assert abs(counts.mean() - 180) < 4 * math.sqrt(180 / len(counts))
    assert abs(counts.var(ddof=1) / 180 - 1) < 4 * math.sqrt(2 / len(counts))
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 4 / math.sqrt(len(counts))


def test_gaps_are_exponential() -> None:
    gaps = np.concatenate([np.diff(draw(seed, rate_per_s=250).arrival_ms) for seed in range(12)])
    assert ks_statistic(gaps, lambda x: 1 - np.exp(-0.25 * x)) < 1.63  # the 1 % point
    workload = make_workload(ClusterConfig.create(**SHORT))
    first = np.array(
        [workload.draw(EpisodeStreams(new_generator(seed))).arrival_ms[0] for seed in range(500)]
    )
    assert ks_statistic(first, lambda x: 1 - np.exp(-0.18 * x)) < 1.63


def test_a_burst_has_its_rate_and_the_rest_its_own() -> None:
    arrival = np.concatenate([draw(seed, scenario="burst").arrival_ms for seed in range(40)])
    for start, end, rate in ((0, 6000, 0.18), (6000, 9000, 0.324), (9000, 15000, 0.18)):
        inside = arrival[(arrival > start) & (arrival <= end)]
        expected = 40 * rate * (end - start)
        assert abs(len(inside) - expected) < 4 * math.sqrt(expected)
        # Given their number, arrivals at a constant rate are uniform.
        assert ks_statistic(inside, lambda x, a=start, b=end: (x - a) / (b - a)) < 1.63


def rates(*changes: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"time_s": time, "kind": "rate", "factor": factor} for time, factor in changes]


def test_a_rate_change_rescales_the_gap_that_is_left() -> None:
    """1/8 per ms, doubled from 100 ms, nothing from 200 to 300 ms; worked by hand.

    The second gap, 12.5, would end at 50 + 100 ms; at 100 ms half of it is left, 50 ms, which at twice the
    rate takes 25. The third ends just as the rate falls to 0, and is not held up; the fourth begins there,
    waits out the stretch without arrivals, and takes 50 ms. The fifth ends at the cutoff, which still
    counts; the sixth lies beyond it.
    """
    config = ClusterConfig.create(
        warmup_s=0, measured_s=0.5, rate_per_s=125, events=rates((0.1, 2), (0.2, 0), (0.3, 1))
    )
    streams = Scripted(gaps=[6.25, 12.5, 18.75, 6.25, 18.75, 1e-9])
    arrivals = SyntheticWorkload(config).draw(streams)
    assert arrivals.arrival_ms.tolist() == [50, 125, 200, 350, 500]


def test_unlikely_many_arrivals_are_all_drawn() -> None:
    """1000 in a second at a rate of 125: gaps are drawn again and again until the cutoff is passed."""
    config = ClusterConfig.create(warmup_s=0, measured_s=1, rate_per_s=125)
    arrivals = SyntheticWorkload(config).draw(Scripted(gaps=[0.125] * 1200))
    assert arrivals.arrival_ms.tolist() == list(range(1, 1001))


def walk(
    rng: np.random.Generator, base: float, changes: list[tuple[float, float]], cutoff: float
) -> list[float]:
    """Return arrivals by going from change to change with one unit exponential at a time."""
    pieces = [(0.0, 1.0), *sorted(changes, key=lambda change: change[0])]
    ends = [start for start, _ in pieces[1:]] + [math.inf]
    now, piece, arrivals = 0.0, 0, []
    while True:
        left = float(rng.standard_exponential())
        while True:
            rate = base * pieces[piece][1]
            if left <= rate * (ends[piece] - now) and rate > 0:
                now += left / rate
                break
            if ends[piece] == math.inf:
                return arrivals
            left -= rate * (ends[piece] - now)
            now, piece = ends[piece], piece + 1
        if now > cutoff:
            return arrivals
        arrivals.append(now)


@FEWER
@given(
    st.integers(0, 10**6),
    st.lists(
        st.tuples(st.sampled_from([0, 0.25, 0.5, 1, 1.25, 3]), st.sampled_from([0, 0.2, 1, 7])), max_size=5
    ),
)
def test_arrivals_are_those_of_a_walk_from_change_to_change(
    seed: int, changes: list[tuple[float, float]]
) -> None:
    drawn = draw(seed, events=rates(*changes), **SHORT).arrival_ms
    walked = walk(children(seed)[0], 0.18, [(time * 1000, factor) for time, factor in changes], 2000)
    assert drawn == pytest.approx(walked, rel=1e-11)
    assert (np.diff(drawn) >= 0).all()


def test_nothing_arrives_while_the_rate_is_0() -> None:
    arrival = draw(events=rates((0.5, 0), (1.0, 1)), **SHORT).arrival_ms
    assert not ((arrival > 500) & (arrival < 1000)).any()
    assert (arrival > 1000).any()
    assert len(draw(rate_per_s=0, **SHORT).arrival_ms) == 0
    assert draw(events=rates((0, 0)), **SHORT).arrival_ms.size == 0


@pytest.mark.parametrize("rate", [0.5, 20, 180, 3000])
def test_arrivals_do_not_depend_on_how_many_are_drawn_at_once(rate: float) -> None:
    for seed in range(3):
        drawn = draw(seed, rate_per_s=rate, **SHORT).arrival_ms
        rng, unit = children(seed)[0], 0.0
        one_by_one = []
        while (unit := unit + rng.standard_exponential()) / (rate / 1000) <= 2000:
            one_by_one.append(unit / (rate / 1000))
        assert drawn.tobytes() == np.array(one_by_one).tobytes()


def test_a_shorter_episode_is_the_beginning_of_a_longer_one() -> None:
    long, short = draw(), draw(**SHORT)
    inside = long.arrival_ms <= 2000
    for name in Arrivals._fields:
        assert getattr(short, name).tobytes() == getattr(long, name)[inside].tobytes()


@FEWER
@given(
    st.integers(0, 10**6), st.floats(10, 400), st.sampled_from(["steady", "burst", "straggler", "failure"])
)
def test_the_same_seed_gives_the_same_bytes(seed: int, rate: float, scenario: str) -> None:
    fields = {"rate_per_s": rate, "scenario": scenario, **SHORT}
    one, other = draw(seed, **fields), draw(seed, **fields)
    assert same_bytes(one, other, *Arrivals._fields)
    assert len(one.arrival_ms) == len(other.arrival_ms)
    assert one.arrival_ms[0] > 0
    assert one.arrival_ms[-1] <= 2000


# One stream per kind of draw


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"prediction_sigma": 0.2}, {"predicted_tokens"}),
        ({"prediction_sigma": 0.0}, {"predicted_tokens"}),
        ({"prediction_sigma": None}, {"predicted_tokens"}),
        ({"rate_per_s": 90}, {"arrival_ms"}),
        ({"scenario": "burst", "rate_per_s": 180}, set()),  # its first 6 s, which SHORT does not leave
        ({"events": [{"time_s": 0.2, "kind": "rate", "factor": 3.0}]}, {"arrival_ms"}),
        ({"load": 0.5}, {"arrival_ms"}),
        ({"jitter": {"width": 0.1}}, {"jitter"}),
        ({"prompt_tokens": {"sigma": 0.1}}, {"prompt_tokens", "demand_ms"}),
        ({"output_tokens": {"median": 90}}, {"output_tokens", "predicted_tokens", "demand_ms"}),
        ({"demand": {"base_ms": 9.0}}, {"demand_ms"}),
        ({"replicas": 7, "heterogeneity": 0.2, "queue_capacity": 1}, set()),
        ({"scenario": "failure", "admission": True, "observation": "router", "reward": "slo"}, set()),
    ],
)
def test_a_kind_of_draw_leaves_the_others_bytes_alone(fields: dict[str, Any], changed: set[str]) -> None:
    for seed in range(3):
        usual, other = draw(seed, **SHORT), draw(seed, **SHORT, **fields)
        for name in Arrivals._fields:
            assert same_bytes(usual, other, name) == (name not in changed), name


def test_columns_follow_the_design_s_formulas() -> None:
    config = ClusterConfig.create(**SHORT)
    drawn = draw(7, **SHORT)
    count = len(drawn.arrival_ms)
    _, prompt, output, jitter, prediction, _ = children(7)
    prompts = np.clip(np.rint(180 * np.exp(0.8 * prompt.standard_normal(count))), 16, 2048)
    outputs = np.clip(np.rint(60 * np.exp(0.7 * output.standard_normal(count))), 4, 512)
    a, b, c = config.demand.coefficients
    np.testing.assert_array_equal(drawn.prompt_tokens, prompts)
    np.testing.assert_array_equal(drawn.output_tokens, outputs)
    np.testing.assert_array_equal(drawn.demand_ms, a + b * prompts + c * outputs)
    np.testing.assert_array_equal(drawn.jitter, 0.9 + 0.2 * jitter.random(count))
    noise = np.exp(0.5 * prediction.standard_normal(count))
    np.testing.assert_array_equal(drawn.predicted_tokens, np.clip(np.rint(outputs * noise), 4, 512))


def test_tokens_are_rounded_then_clipped() -> None:
    """z of 0 gives the median, 0.1 gives 195.0 and 64.3; what lies beyond is cut off. By hand."""
    z = [0.0, 0.1, 9.0, -9.0]
    config = ClusterConfig.create(
        warmup_s=0,
        measured_s=1,
        rate_per_s=1000,
        demand={"base_ms": 1.0, "prompt_ms": 0.01, "output_ms": 0.1},
    )
    streams = Scripted(
        gaps=[1, 1, 1, 1], prompt=z, output=z, jitter=[0, 0.25, 0.5, 0.75], prediction=[1, -1, 9, -9]
    )
    drawn = SyntheticWorkload(config).draw(streams)
    assert drawn.arrival_ms == pytest.approx([1, 2, 3, 4])
    assert drawn.prompt_tokens.tolist() == [180, 195, 2048, 16]
    assert drawn.output_tokens.tolist() == [60, 64, 512, 4]
    assert drawn.predicted_tokens.tolist() == [99, 39, 512, 4]  # 60 e^.5 = 98.9, 64 e^-.5 = 38.8
    assert drawn.demand_ms == pytest.approx([1 + 1.8 + 6, 1 + 1.95 + 6.4, 1 + 20.48 + 51.2, 1 + 0.16 + 0.4])
    assert drawn.jitter == pytest.approx([0.9, 0.95, 1.0, 1.05])


@FEWER
@given(st.integers(0, 10**6), st.none() | st.sampled_from([0.0, 0.1, 2.0]))
def test_tokens_are_whole_numbers_within_bounds(seed: int, sigma: float | None) -> None:
    drawn = draw(seed, prediction_sigma=sigma, **SHORT)
    for name, low, high in (("prompt", 16, 2048), ("output", 4, 512), ("predicted", 4, 512)):
        tokens = getattr(drawn, f"{name}_tokens")
        assert tokens.dtype == np.float64
        assert (tokens == np.rint(tokens)).all()
        assert low <= tokens.min() <= tokens.max() <= high
    assert (drawn.jitter >= 0.9).all()
    assert (drawn.jitter < 1.1).all()


def test_predictions_are_exact_noisy_or_hidden() -> None:
    exact = draw(prediction_sigma=0)
    assert exact.predicted_tokens.tolist() == exact.output_tokens.tolist()
    assert set(draw(prediction_sigma=None).predicted_tokens) == {60.0}
    noisy = draw(prediction_sigma=0.5)
    error = np.log(noisy.predicted_tokens / noisy.output_tokens)
    free = (noisy.predicted_tokens > 4) & (noisy.predicted_tokens < 512)
    assert abs(error[free].std() - 0.5) < 0.03


def test_demands_average_11_ms() -> None:
    demand = np.concatenate([draw(seed).demand_ms for seed in range(40)])
    assert abs(demand.mean() - 11) < 4 * demand.std() / math.sqrt(len(demand))


# Load


def test_load_sets_the_rate() -> None:
    """Σ 11/m = 11/8 + 1 + 11/16 = 3.0625 and E[d] = 11: load .9 takes .9 · 3.0625 / 11 = .250568 per ms."""
    workload = make_workload(ClusterConfig.create(load=0.9, rate_per_s=5))
    assert workload.rate_per_ms == pytest.approx(0.9 * 3.0625 / 11, rel=1e-13)
    assert workload.offered_load == pytest.approx(0.9, rel=1e-13)
    assert make_workload(ClusterConfig.create()).offered_load == pytest.approx(0.18 * 11 / 3.0625, rel=1e-13)


@given(st.integers(1, 12), st.floats(0.1, 2), st.floats(0, 1))
def test_equal_load_at_another_number_of_replicas(replicas: int, load: float, heterogeneity: float) -> None:
    config = ClusterConfig.create(replicas=replicas, load=load, heterogeneity=heterogeneity)
    workload = make_workload(config)
    speed = sum(11 / mean for mean in config.replica_service_ms)
    assert workload.offered_load == pytest.approx(load)
    assert workload.rate_per_ms * 11 / speed == pytest.approx(load)


def test_events_multiply_the_rate_that_the_load_sets() -> None:
    plain = draw(load=0.9, warmup_s=0, measured_s=20).arrival_ms
    doubled = draw(load=0.9, events=rates((0, 2)), warmup_s=0, measured_s=10).arrival_ms
    assert doubled == pytest.approx(plain / 2)


# Traces


def write_trace(path: Path, arrival_s: Any, prompt: Any, output: Any) -> str:
    rows = [f"{float(a)!r},{p},{o}" for a, p, o in zip(arrival_s, prompt, output, strict=True)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A minute of 1200 requests, which starts at 7 s on its own clock; prompts number the rows."""
    rng = np.random.default_rng(3)
    inner = np.sort(rng.uniform(0, 60, 1198))
    return write_trace(
        tmp_path / "trace.csv",
        7 + np.concatenate([[0], inner, [60]]),
        np.arange(1, 1201),
        rng.integers(2, 900, 1200),
    )


def test_each_seed_replays_a_stretch_from_its_own_start(trace: str) -> None:
    rows = read_trace(trace)
    starts = set()
    for seed in range(20):
        drawn = draw(seed, trace=trace)
        start = children(seed)[0].random() * (60_000 - 15_000)
        inside = (rows.arrival_ms >= start) & (rows.arrival_ms <= start + 15_000)
        assert inside.sum() > 100
        assert drawn.arrival_ms == pytest.approx(rows.arrival_ms[inside] - start)
        assert drawn.prompt_tokens.tolist() == rows.prompt_tokens[inside].tolist()
        assert drawn.output_tokens.tolist() == rows.output_tokens[inside].tolist()
        assert drawn.arrival_ms.min() >= 0
        assert drawn.arrival_ms.max() <= 15_000
        assert same_bytes(drawn, draw(seed, trace=trace), *Arrivals._fields)
        starts.add(int(inside.argmax()))
    assert len(starts) == 20


def test_starts_spread_over_the_whole_trace(trace: str) -> None:
    """Prompts number the rows, 20 a second: 45 s can be the start, the first 900 rows or so."""
    workload = make_workload(ClusterConfig.create(trace=trace))
    first = [workload.draw(EpisodeStreams(new_generator(seed))).prompt_tokens[0] for seed in range(300)]
    assert min(first) < 60
    assert 840 < max(first) < 960
    assert abs(np.mean(first) - 450) < 4 * 900 / math.sqrt(12 * 300)


def test_a_full_replay_takes_every_row(trace: str) -> None:
    rows = read_trace(trace)
    workload = make_workload(ClusterConfig.create(trace=trace, trace_full=True))
    for seed in range(3):
        drawn = workload.draw(EpisodeStreams(new_generator(seed)))
        assert drawn.arrival_ms.tobytes() == rows.arrival_ms.tobytes()
        assert drawn.prompt_tokens.tolist() == rows.prompt_tokens.tolist()
    assert workload.cutoff_ms == 60_050, "the last arrival has a deadline's time, rounded up to a boundary"


def test_an_arrival_at_the_cutoff_counts(tmp_path: Path) -> None:
    """As it does under Poisson arrivals: the cohort is (3 s, 15 s]."""
    path = write_trace(tmp_path / "trace.csv", [0, 4, 15], [10, 20, 30], [1, 2, 3])
    assert draw(trace=path).arrival_ms.tolist() == [0, 4000, 15_000]


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_load_scales_the_time_of_a_trace(trace: str, load: float) -> None:
    config = ClusterConfig.create(trace=trace, load=load, replicas=2, measured_s=2)
    workload = make_workload(config)
    assert isinstance(workload, TraceWorkload)
    rows = read_trace(trace)
    full = make_workload(config.replace(trace_full=True)).draw(EpisodeStreams(new_generator(0)))
    assert full.arrival_ms == pytest.approx(rows.arrival_ms * workload.time_scale)
    # Offered: arrivals per ms × mean demand / speed, from what was replayed.
    per_ms = (len(full.arrival_ms) - 1) / full.arrival_ms[-1]
    speed = 11 / 8 + 11 / 11
    assert per_ms * full.demand_ms.mean() / speed == pytest.approx(load)
    assert workload.offered_load == pytest.approx(load)


def test_without_a_load_a_trace_keeps_its_time(trace: str) -> None:
    workload = make_workload(ClusterConfig.create(trace=trace, rate_per_s=500))
    assert isinstance(workload, TraceWorkload)
    assert workload.time_scale == 1
    assert workload.offered_load == pytest.approx((1199 / 60_000) * 11 / 3.0625)


def test_demand_is_refitted_to_a_mean_of_11(trace: str) -> None:
    default = ClusterConfig.create().demand.coefficients
    workload = make_workload(ClusterConfig.create(trace=trace, trace_full=True))
    drawn = workload.draw(EpisodeStreams(new_generator(0)))
    assert drawn.demand_ms.mean() == pytest.approx(11, rel=1e-12)
    ratios = np.array(workload.demand) / default
    assert ratios == pytest.approx(np.full(3, ratios[0]))
    a, b, c = workload.demand
    assert drawn.demand_ms == pytest.approx(a + b * drawn.prompt_tokens + c * drawn.output_tokens)


def test_predictions_keep_to_the_trace_s_own_range_and_median(trace: str) -> None:
    rows = read_trace(trace)
    hidden = draw(trace=trace, prediction_sigma=None)
    assert set(hidden.predicted_tokens) == {float(np.median(rows.output_tokens))}
    noisy = draw(trace=trace, prediction_sigma=3.0).predicted_tokens
    assert noisy.min() == rows.output_tokens.min()
    assert noisy.max() == rows.output_tokens.max()
    workload = make_workload(ClusterConfig.create(trace=trace))
    assert workload.prompt_maximum == rows.prompt_tokens.max()


def test_a_trace_shorter_than_an_episode_is_refused_with_both_lengths(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "trace.csv", np.arange(0, 12.25, 0.25), [100] * 49, [50] * 49)
    with pytest.raises(
        ConfigError, match=r"trace = .*trace\.csv: lasts 12\.0 s at this load; an episode takes 15 s"
    ):
        make_workload(ClusterConfig.create(trace=path))
    # 4 requests a second of 11 ms offer 4 · 11 / 3062.5; half of that load takes twice the time.
    make_workload(ClusterConfig.create(trace=path, load=4 * 11 / 3062.5 / 2))
    make_workload(ClusterConfig.create(trace=path, measured_s=9))
    make_workload(ClusterConfig.create(trace=path, trace_full=True))
    with pytest.raises(ConfigError, match=r"lasts 6\.0 s at this load; an episode takes 15 s"):
        make_workload(ClusterConfig.create(trace=path, load=4 * 11 / 3062.5 * 2))
    with pytest.raises(ConfigError, match=r"lasts 1\.2 s at this load, which is within the warm-up of 3 s"):
        make_workload(ClusterConfig.create(trace=path, load=4 * 11 / 3062.5 * 10, trace_full=True))


# Real traffic

AZURE = Path(__file__).parents[2].parent / "shared" / "data" / "azure_llm_2023"


def azure(kind: str) -> Path:
    path = AZURE / f"AzureLLMInferenceTrace_{kind}.csv"
    if not path.is_file():
        pytest.skip(f"needs the Azure LLM inference trace 2023 at {path}")
    return path


@pytest.mark.parametrize(
    ("kind", "count", "rate", "cv"), [("conv", 19_366, 5.53, 1.09), ("code", 8_819, 2.57, 13.2)]
)
def test_azure_traces_have_their_published_statistics(kind: str, count: int, rate: float, cv: float) -> None:
    rows = read_trace(azure(kind))
    assert len(rows.arrival_ms) == len(rows.prompt_tokens) == len(rows.output_tokens) == count
    assert round(rows.rate_per_ms * 1000, 2) == rate
    gaps = np.diff(rows.arrival_ms)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.005)


def test_azure_token_counts_have_their_published_quantiles() -> None:
    rows = read_trace(azure("conv"))
    assert np.quantile(rows.prompt_tokens, [0.5, 0.9, 0.99]).round().tolist() == [1020, 2734, 4142]
    assert np.quantile(rows.output_tokens, [0.5, 0.9, 0.99]).round().tolist() == [129, 424, 601]


@pytest.mark.parametrize("kind", ["conv", "code"])
def test_azure_times_are_exact(kind: str) -> None:
    """Against NumPy's datetime64, which counts whole ns."""
    path = azure(kind)
    lines = path.read_text().split()[1:]
    texts = [f"{day}T{clock.partition(',')[0]}" for day, clock in zip(lines[::2], lines[1::2], strict=True)]
    times = np.array(texts, "datetime64[ns]").astype(np.int64)
    assert read_trace(path).arrival_ms.tolist() == ((times - times[0]) / 1e6).tolist()


@pytest.mark.parametrize("kind", ["conv", "code"])
def test_azure_at_a_load(kind: str) -> None:
    config = ClusterConfig.create(trace=azure(kind), load=0.9)
    workload = make_workload(config)
    counts = [len(workload.draw(EpisodeStreams(new_generator(seed))).arrival_ms) for seed in range(100)]
    # 15 s at .9 · 3.0625 / 11 per ms on average; bursts make the mean of 100 stretches rough.
    assert np.mean(counts) == pytest.approx(15_000 * 0.9 * 3.0625 / 11, rel=0.25)


# Episodes


def test_an_episode_takes_one_draw_whatever_it_holds() -> None:
    for conditions in (ClusterConfig.create(**SHORT), ClusterDistribution.create(**SHORT)):
        rng, counted = new_generator(1), new_generator(1)
        EpisodeSource(conditions).draw(rng)
        counted.integers(2**63)
        assert rng.bit_generator.state == counted.bit_generator.state


def test_a_fixed_condition_s_episode_is_that_of_its_workload() -> None:
    config = ClusterConfig.create(**SHORT)
    episode = EpisodeSource(config).draw(new_generator(4))
    assert episode.config is episode.workload.config is config
    assert same_bytes(episode.arrivals, draw(4, **SHORT), *Arrivals._fields)


def test_a_distribution_s_episode_is_that_of_the_condition_it_samples() -> None:
    distribution = ClusterDistribution.create(**SHORT)
    source = EpisodeSource(distribution)
    for seed in range(5):
        episode = source.draw(new_generator(seed))
        assert episode.config == distribution.sample(children(seed)[CONFIG])
        plain = make_workload(ClusterConfig.create(episode.config.model_dump()))
        assert episode.workload.rate_per_ms == plain.rate_per_ms
        alone = plain.draw(EpisodeStreams(new_generator(seed)))
        assert len(alone.arrival_ms) == len(episode.arrivals.arrival_ms)
        assert same_bytes(episode.arrivals, alone, *Arrivals._fields)
