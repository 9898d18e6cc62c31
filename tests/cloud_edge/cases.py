"""Random batches and episodes of the cloud–edge system, and how to hand them to either implementation."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from routing_gym.cloud_edge import catalogue
from routing_gym.cloud_edge.base_env import CloudEdgeEnv
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.contents import Contents
from routing_gym.cloud_edge.evaluator import BatchTables
from routing_gym.cloud_edge.workload import Arrivals, Episode, EpisodeSource, Surroundings
from tests.cloud_edge import reference


class Case(NamedTuple):
    """A batch, and some legal assignments of it."""

    tables: reference.Tables
    assignments: list[list[int]]


def compiled(tables: reference.Tables) -> BatchTables:
    """Return the package's form of a batch."""
    shape = len(tables.legal), len(tables.speedup)
    return BatchTables(
        loss=np.reshape(tables.loss, shape),
        cost=np.reshape(tables.cost, shape),
        energy=np.reshape(tables.energy, shape),
        infer=np.reshape(tables.infer, shape),
        transfer=np.reshape(tables.transfer, shape),
        legal=np.reshape(tables.legal, shape).astype(bool),
        backlog=np.array(tables.backlog),
        speedup=np.array(tables.speedup),
        weights=np.array(tables.weights),
    )


def reindexed(
    tables: BatchTables, requests: Any = slice(None), destinations: Any = slice(None)
) -> BatchTables:
    """Return the batch with its requests and destinations in another order."""
    names = ("loss", "cost", "energy", "infer", "transfer", "legal")
    pairs = {name: np.ascontiguousarray(getattr(tables, name)[requests][:, destinations]) for name in names}
    return tables._replace(
        **pairs, backlog=tables.backlog[destinations], speedup=tables.speedup[destinations]
    )


def reference_destination(d: catalogue.Destination) -> reference.Destination:
    """Return the reference's form of a resolved destination."""
    return reference.Destination(
        parameters=d.parameters,
        single=d.single_flops,
        saturated=d.batch_flops,
        power_w=d.power_w,
        utilisation=d.utilisation,
        up_mbit_s=d.path.up_mbps,
        down_mbit_s=d.path.down_mbps,
        transmit_w=d.path.transmit_w,
        receive_w=d.path.receive_w,
        price_in=d.price.price_in_usd,
        price_out=d.price.price_out_usd,
        fee=d.price.fee_usd,
        price_gb=d.path.price_gb_usd,
        edge=not d.is_cloud,
    )


def random_legality(rng: np.random.Generator, count: int, width: int, share: float) -> np.ndarray:
    """Return which pairs are legal: about a share of them, and at least one for each request."""
    legal = rng.random((count, width)) < share
    legal[np.arange(count), rng.integers(0, width, count)] = True
    return legal


def random_assignments(rng: np.random.Generator, legal: np.ndarray, many: int) -> list[list[int]]:
    """Return legal assignments, each request's destination at random."""
    return [[int(rng.choice(np.flatnonzero(row))) for row in legal] for _ in range(many)]


def random_batch(rng: np.random.Generator, count: int, width: int) -> Case:
    """Return a batch of realistic sizes, in which no two numbers are equal."""
    legal = random_legality(rng, count, width, rng.choice([0.2, 0.7, 1.0]))
    tokens = rng.lognormal(4.0, 1.0, (count, 1))
    infer = tokens * rng.uniform(1e-3, 3e-2, width)
    tables = reference.Tables(
        loss=rng.random((count, width)).tolist(),
        cost=(tokens * rng.uniform(1e-7, 3e-5, width)).tolist(),
        energy=(infer * rng.uniform(50.0, 400.0, width)).tolist(),
        infer=infer.tolist(),
        transfer=(rng.uniform(0.005, 0.2, width) + tokens * 1e-5).tolist(),
        legal=legal.tolist(),
        backlog=(rng.choice([0.0, 1.0]) * rng.exponential(2.0, width)).tolist(),
        speedup=rng.uniform(1.0, 60.0, width).tolist(),
        weights=rng.dirichlet(np.ones(4)).tolist(),
    )
    return Case(tables, random_assignments(rng, legal, 8))


@st.composite
def batches(draw: st.DrawFn, min_requests: int = 0, max_requests: int = 8, max_destinations: int = 5) -> Case:
    """Batches of few distinct numbers, so that ties and bounds that coincide happen often.

    All are whole 64ths, so that sums are exact and a width of zero is one in any order of summation.
    """
    count, width = draw(st.integers(min_requests, max_requests)), draw(st.integers(1, max_destinations))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def pairs() -> list[list[float]]:
        levels = draw(st.sampled_from([1, 1, 2, 4, 1000]))
        low = draw(st.sampled_from([0, 1, 64]))
        values = low + rng.integers(0, levels, (count, width))
        if draw(st.booleans()):  # what a destination does is the same for all, or nearly
            values[1:] = values[:1]
        return (values / 64.0).tolist()

    legal = random_legality(rng, count, width, draw(st.sampled_from([0.0, 0.3, 0.8, 1.0])))
    carried = draw(st.sampled_from([0, 0, 1, 500]))
    weights = draw(st.sampled_from([(0.25, 0.25, 0.25, 0.25), (0.0, 0.0, 0.0, 1.0), (0.4, 0.3, 0.2, 0.1)]))
    tables = reference.Tables(
        loss=pairs(),
        cost=pairs(),
        energy=pairs(),
        infer=pairs(),
        transfer=pairs(),
        legal=legal.tolist(),
        backlog=(rng.integers(0, carried + 1, width) / 64.0).tolist(),
        speedup=rng.choice([1.0, 1.0, 2.0, 3.0, 20.0, 0.5], width).tolist(),
        weights=list(weights),
    )
    return Case(tables, random_assignments(rng, legal, draw(st.integers(1, 4))))


def unloaded(tables: reference.Tables) -> reference.Tables:
    """Return the batch as it is when nothing is carried over."""
    return replace(tables, backlog=[0.0] * len(tables.backlog))


class EpisodeCase(NamedTuple):
    """A drawn episode, and the choices of a router, which are repeated as needed."""

    episode: Episode
    choices: tuple[int, ...]

    def batch_action(self, k: int) -> list[int]:
        """Return the destinations that decision k names, legal or not, for every slot."""
        slots = self.episode.config.max_requests
        return [self.request_action(k * slots + i) for i in range(slots)]

    def request_action(self, k: int) -> int:
        """Return the destination that decision k names, legal or not."""
        return self.choices[k % len(self.choices)] % self.episode.config.destination_count


class Played(NamedTuple):
    """What an environment made of a case."""

    case: EpisodeCase
    observations: list[dict[str, np.ndarray]]  # one per decision, and the closing one
    masks: list[list[Any]]
    rewards: list[float]
    terms: list[list[float]]
    log: np.ndarray
    metrics: dict[str, Any]


def on(env: CloudEdgeEnv, episode: Episode) -> CloudEdgeEnv:
    """Let an environment play this episode instead of one that it draws."""
    env._source = SimpleNamespace(config=episode.config, draw=lambda np_random: episode)
    return env


def play(env: CloudEdgeEnv, choices: tuple[int, ...], seed: int | None = None) -> Played:
    """Play the next episode to its end by these choices, repeated as needed."""
    observation, info = env.reset(seed=seed)
    case = EpisodeCase(env.episode, choices)
    act = case.request_action if hasattr(env.action_space, "n") else case.batch_action
    observations, masks = [observation], [info["action_mask"].tolist()]
    rewards: list[float] = []
    terms: list[list[float]] = []
    assert info["reward_terms"].tolist() == [0.0] * 4
    over = False
    while not over:
        assert np.array_equal(env.action_masks(), np.ravel(masks[-1]))
        observation, reward, terminated, over, info = env.step(act(len(rewards)))
        assert not terminated
        observations.append(observation)
        masks.append(info["action_mask"].tolist())
        rewards.append(reward)
        terms.append(info["reward_terms"].tolist())
        assert over == ("episode_metrics" in info)
    metrics = env.episode_metrics()
    assert info["episode_metrics"].keys() == {name for name, value in metrics.items() if value is not None}
    return Played(case, observations, masks, rewards, terms, env.assignment_log(), metrics)


def play_reference(case: EpisodeCase, walk: bool) -> reference.ReferenceCloudEdge:
    """Let the reference play a case: a window at a time, or a request at a time."""
    config, _, arrivals, surroundings = case.episode
    column = [config.served.hosted.index(d.model) for d in config.destinations]
    contents = arrivals.contents
    edge = reference.ReferenceCloudEdge(
        reference.Settings(
            destinations=[reference_destination(d) for d in config.destinations],
            rtt=surroundings.rtt_s.tolist(),
            up=surroundings.up.tolist(),
            weights=list(config.weights),
            max_requests=config.max_requests,
            window=config.window_s,
            reward_on=config.reward_on,
        ),
        [
            reference.Request(
                arrival=arrival,
                input_tokens=int(contents.input_tokens[r]),
                predicted_output=int(contents.predicted_output_tokens[r]),
                output=[int(contents.output_tokens[r, k]) for k in column],
                quality=[float(contents.quality[r, k]) for k in column],
                predicted_quality=[float(contents.predicted_quality[r, k]) for k in column],
                cluster_error=[float(contents.cluster_error[r, k]) for k in column],
                edge_only=bool(arrivals.edge_only[r]),
                predicted_by_destination=[int(contents.predicted_by_model[r, k]) for k in column]
                if contents.predicted_by_model.size
                else [],
            )
            for r, arrival in enumerate(arrivals.arrival_s.tolist())
        ],
    )
    if walk:
        edge.walk(lambda _: case.request_action(len(edge.decisions)))
    else:
        edge.run(lambda _: case.batch_action(len(edge.decisions)))
    return edge


def assert_equal(played: Played, theirs: reference.ReferenceCloudEdge) -> None:
    """Assert that environment and reference agree on every number that either of them shows."""
    shown = [observation for observation, _ in theirs.decisions] + [theirs.closing]
    rewards, terms = theirs.rewards, theirs.reward_terms
    if not rewards:  # an episode in which nothing is asked is one step
        shown, rewards, terms = shown * 2, [0.0], [[0.0] * 4]
    assert len(played.observations) == len(shown)
    for name in shown[0] | played.observations[0]:
        seen = np.array([observation[name] for observation in played.observations])
        assert seen.dtype == np.float32
        expected = np.array([observation[name] for observation in shown]).reshape(len(shown), -1)
        np.testing.assert_allclose(seen, expected, rtol=2e-7, atol=1e-12, err_msg=name)
    assert played.masks == [observation["legal"] for observation in shown]
    np.testing.assert_allclose(played.rewards, rewards, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(played.terms, terms, rtol=1e-10, atol=1e-10)
    assert_log(played.log, theirs)
    metrics = theirs.metrics()
    assert played.metrics.keys() == metrics.keys()
    for name, value in played.metrics.items():
        if isinstance(metrics[name], int) or metrics[name] is None:
            assert value == metrics[name], name
        else:
            np.testing.assert_allclose(value, metrics[name], rtol=1e-10, atol=1e-10, err_msg=name)


def assert_log(log: np.ndarray, theirs: reference.ReferenceCloudEdge) -> None:
    """Assert that a log holds what became of the reference's requests."""
    rows = []
    for request in theirs.requests:
        d = request.destination
        row: dict[str, Any] = {
            "arrival": request.arrival,
            "dispatch": np.nan,
            "window": request.window,
            "destination": d,
            "input_tokens": request.input_tokens,
            "predicted_output_tokens": request.predicted_output,
            "output_tokens": np.nan,
            "edge_only": request.edge_only,
            "set_aside": request.set_aside,
            "invalid": request.invalid,
        }
        for name in ("infer", "transfer", "queue", "finish", "cost", "energy", "quality"):
            row[name] = row[f"predicted_{name}"] = np.nan
        if d >= 0:
            assert request.actual and request.actual_pair and request.predicted and request.predicted_pair
            row |= request.actual_pair._asdict() | request.actual._asdict()
            predicted = request.predicted_pair._asdict() | request.predicted._asdict()
            row |= {f"predicted_{name}": value for name, value in predicted.items()}
            row["dispatch"] = (request.window + 1) * theirs.settings.window
            row["output_tokens"] = request.output[d]
            row["quality"], row["predicted_quality"] = request.quality[d], request.predicted_quality[d]
        rows.append(row)
    assert len(log) == len(rows)
    for name in set(log.dtype.names or ()).union(*rows):
        np.testing.assert_allclose(log[name], [row[name] for row in rows], 1e-12, 1e-12, err_msg=name)


def exact_catalogue(draw: st.DrawFn) -> dict[str, Any]:
    """Return nodes and models whose every constant is a power of two in the unit that the model uses.

    Durations, costs and energies of whole numbers of tokens are then exact in any order of evaluation:
    requests finish just when something else happens, and bounds coincide.
    """

    def power(*exponents: int) -> float:
        return 2.0 ** draw(st.sampled_from(exponents))

    def path() -> dict[str, float]:
        return {
            "rtt_ms": 0.0,
            "up_mbps": power(8, 11, 20) / 1e6,
            "down_mbps": power(8, 11, 20) / 1e6,
            "transmit_w": power(-1, 1),
            "receive_w": power(-1, 1),
            "price_gb_usd": draw(st.sampled_from([0.0, 1e9 / 2**12])),
        }

    models = {
        f"m{k}": {
            "parameters_b": power(28, 29, 31) / 1e9,
            "price_in_usd": draw(st.sampled_from([0.0, 1e6 / 2**14])),
            "price_out_usd": draw(st.sampled_from([0.0, 1e6 / 2**13])),
            "fee_usd": draw(st.sampled_from([0.0, 2.0**-6])),
        }
        for k in range(draw(st.integers(1, 4)))
    }
    nodes = [
        {
            "name": f"n{k}",
            "tier": draw(st.sampled_from(["cloud", "edge"])),
            "power_w": power(5, 7),
            "single_tflops": power(35, 36, 37) / 1e12,
            "batch_tflops": power(37, 38, 41) / 1e12,
            "models": draw(st.lists(st.sampled_from(list(models)), min_size=1, max_size=3, unique=True)),
        }
        for k in range(draw(st.integers(1, 4)))
    ]
    return {
        "efficiency": 1.0,
        "speedup": 1.0,
        "utilisation": power(-1, 0),
        "network": {"cloud": path(), "edge": path()},
        "nodes": nodes,
        "models": models,
    }


def workload_of(models: list[str]) -> dict[str, Any]:
    """Return a workload that knows these models."""
    lengths = {"median": 50.0, "sigma": 0.7, "maximum": 400}
    return {
        "kind": "synthetic",
        "difficulty_sd": 1.0,
        "answer_sigma": 0.3,
        "prediction": {
            "topic_error": 0.2,
            "difficulty_correlation": 0.5,
            "scatter": 0.3,
            "output_sigma": 0.4,
        },
        "topics": {
            "one": {"share": 0.5, "input_tokens": lengths, "output_tokens": lengths},
            "two": {
                "share": 0.5,
                "ease": 1.0,
                "input_tokens": lengths,
                "output_tokens": lengths | {"median": 5.0},
            },
        },
        "models": {
            name: {"quality": 0.3 + 0.1 * k, "verbosity": 1.0 + 0.2 * k} for k, name in enumerate(models)
        },
    }


@st.composite
def episodes(draw: st.DrawFn) -> EpisodeCase:
    """Small episodes on a coarse grid of time, tokens and quality, in which all kinds of coincidence occur.

    Arrivals fall on windows' ends, answers on dispatches; nodes are often down, at times all of them.
    """
    nodes = exact_catalogue(draw)
    config = CloudEdgeConfig.create(
        {"catalogue": nodes, "workload": workload_of(list(nodes["models"]))},
        replicate=draw(st.sampled_from([1, 1, 1, 2])),
        window_s=draw(st.sampled_from([1.0, 1.0, 0.5, 4.0])),
        windows=draw(st.integers(1, 8)),
        max_requests=draw(st.integers(1, 5)),
        weights=draw(st.sampled_from([(0.25, 0.25, 0.25, 0.25), (0.5, 0.25, 0.125, 0.125)])),
        reward_on=draw(st.sampled_from(["actual", "predicted"])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, 24))
    places = draw(st.sampled_from([1, 2, 64]))  # in a window
    arrival = np.sort(rng.integers(0, config.windows * places, count)) * (config.window_s / places)
    models, width = len(config.catalogue.hosted), config.destination_count
    predicted = rng.integers(1, draw(st.sampled_from([2, 5, 100])), count).astype(float)
    right = draw(st.booleans())  # whether answers are as long as predicted
    output = np.repeat(predicted[:, None], models, axis=1)
    if not right:
        output = rng.integers(1, 100, (count, models)).astype(float)
    levels = draw(st.sampled_from([1, 2, 65]))
    by_model = rng.integers(1, 100, (count, models)) if draw(st.booleans()) else np.zeros((0, 0))

    def scores() -> np.ndarray:
        return (rng.integers(0, levels, (count, models)) / 64.0).astype(np.float32)

    contents = Contents(
        rng.integers(0, draw(st.sampled_from([1, 3, 200])), count).astype(float),
        predicted,
        output.astype(np.float32),
        scores(),
        scores(),
        scores(),
        np.zeros(count, np.int64),
        by_model.astype(np.float32),
    )
    edge_only = rng.random(count) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    health = draw(st.sampled_from([1.0, 0.7, 0.2]))
    surroundings = Surroundings(
        rng.integers(0, 9, (config.windows, width)) / 64.0, rng.random((config.windows, width)) < health
    )
    choices = tuple(draw(st.lists(st.integers(0, 97), min_size=1, max_size=30)))
    workload = EpisodeSource(config).workload
    return EpisodeCase(
        Episode(config, workload, Arrivals(arrival, edge_only, contents), surroundings), choices
    )
