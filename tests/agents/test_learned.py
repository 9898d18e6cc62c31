"""Trained routers as routers: what they see, what they may choose, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import routing_gym
from routing_agents import learned
from routing_agents.folder import load, save
from routing_agents.inference import Forward, drawn, likeliest
from routing_agents.learned import CloudEdgeLearned, Learned
from routing_agents.manifest import LearnedError
from routing_baselines.cluster.sampling import Random
from routing_baselines.cluster.work import LeastWork
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.features import request_features
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.features import cluster_features, reward_features
from routing_gym.cluster.observation import REPORTED_FIELDS
from routing_gym.common.config import ConfigError
from routing_gym.evaluation.arguments import routers_of
from routing_gym.evaluation.runner import Condition, Router, make_jobs, run_jobs
from routing_gym.rewards import cluster_weights
from routing_gym.wrappers import VectorFeatureObservation
from tests.agents.trained import describe, register, save_random
from tests.baselines.states import fits, observation, observations, random_observation, row

SHAPES = st.sampled_from([(), (0,), (1,), (5,), (2, 3), (2, 1, 2)])
ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
SHORT: dict[str, Any] = {
    "observation": "router",
    "rate_per_s": 330,
    "queue_capacity": 3,
    "warmup_s": 0.2,
    "measured_s": 1.0,
    "events": [
        {"time_s": 0.3, "kind": "failure", "replica": 0},
        {"time_s": 0.9, "kind": "recovery", "replica": 0},
    ],
}
CLUSTER = ClusterConfig.create(**SHORT)
ADMISSION = CLUSTER.replace(admission=True)
CLOUD_EDGE = CloudEdgeConfig.create("testbed-6node", windows=4, requests=9, edge_only_share=0.3)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("routers")
    return {
        "cluster": save_random(place / "cluster", CLUSTER),
        "mlp": save_random(place / "mlp", CLUSTER, network="mlp", elements=3),
        "admission": save_random(place / "admission", ADMISSION),
        "told": save_random(place / "told", CLUSTER, reward_features=True),
        "cloud_edge": save_random(place / "cloud_edge", CLOUD_EDGE),
        "cloud_edge mlp": save_random(place / "cloud_mlp", CLOUD_EDGE, network="mlp", elements=6),
    }


def request_observation(rng: np.random.Generator, lead: tuple[int, ...], count: int) -> dict[str, np.ndarray]:
    """Return observations of requests with these leading axes, some destinations illegal."""
    each = ("quality", "cluster_error", "cost", "energy", "infer_s", "transfer_s", "backlog_s", "token_price")
    whole = {"input_tokens": 1, "predicted_output_tokens": 1, "term_range": 4}
    fields = {name: rng.uniform(0, 1, (*lead, count)) for name in each}
    fields |= {name: rng.uniform(1, 9, (*lead, size)) for name, size in whole.items()}
    fields |= {
        "legal": rng.random((*lead, count)) < 0.6,
        "speedup": rng.uniform(1, 20, (*lead, count)),
        "is_cloud": rng.random((*lead, count)) < 0.5,
        "outstanding": rng.integers(0, 9, (*lead, count)),
        "remaining": rng.integers(1, 32, (*lead, 1)),
        "weights": np.full((*lead, 4), 0.25),
    }
    fields["provisional_load_s"] = fields["backlog_s"] + rng.uniform(0, 1, (*lead, count))
    return {name: np.asarray(value, np.float32) for name, value in fields.items()}


def same_metrics(found: dict[str, Any], due: dict[str, Any]) -> bool:
    """Whether the metrics of an environment's info are among a result's."""
    return all(np.array_equal(found[name], value) for name, value in due.items())


@ONE_FOLDER
@given(drawn_rows=observations(SHAPES), admission=st.booleans())
def test_a_replica_is_chosen_by_features_and_network(
    folders: dict[str, Path], drawn_rows: Any, admission: bool
) -> None:
    batch, shape = drawn_rows
    folder = folders["admission" if admission else "cluster"]
    manifest, weights = load(folder)
    features = cluster_features(batch, ClusterConfig.create().demand.coefficients)
    allowed = fits(batch)
    if admission:
        allowed = np.concatenate([allowed, np.ones((*shape, 1), bool)], axis=-1)
    due = likeliest(Forward(manifest.sizes, weights)(features), allowed)
    actions, state = Learned(path=folder).predict(batch)
    assert state is None
    assert actions.dtype == np.int64
    assert actions.shape == shape
    assert actions.tolist() == due.tolist()


@ONE_FOLDER
@given(lead=SHAPES, count=st.integers(1, 7), seed=st.integers(0, 2**32))
def test_a_destination_is_chosen_by_features_and_network(
    folders: dict[str, Path], lead: tuple[int, ...], count: int, seed: int
) -> None:
    batch = request_observation(np.random.default_rng(seed), lead, count)
    legal = batch["legal"] > 0
    allowed = legal | ~legal.any(axis=-1, keepdims=True)
    manifest, weights = load(folders["cloud_edge"])
    due = likeliest(Forward(manifest.sizes, weights)(request_features(batch)), allowed)
    actions, _ = CloudEdgeLearned(path=folders["cloud_edge"]).predict(batch)
    assert actions.shape == lead
    assert actions.tolist() == due.tolist()


@ONE_FOLDER
@given(drawn_rows=observations(SHAPES), kind=st.sampled_from(["cluster", "admission"]), draws=st.booleans())
def test_a_batch_is_routed_as_its_rows_are(
    folders: dict[str, Path], drawn_rows: Any, kind: str, draws: bool
) -> None:
    batch, shape = drawn_rows
    router = Learned(path=folders[kind])
    seeds = range(int(np.prod(shape)))
    state = router.initial_state(seeds)
    alone = {index: router.initial_state([k]) for k, index in enumerate(np.ndindex(shape))}
    for _ in range(3):
        actions, state = router.predict(batch, state, deterministic=not draws)
        for index in np.ndindex(shape):
            action, alone[index] = router.predict(row(batch, index), alone[index], deterministic=not draws)
            assert np.shape(action) == ()
            assert action == actions[index]


@ONE_FOLDER
@given(drawn_rows=observations(SHAPES), seed=st.integers(0, 2**32), draws=st.booleans(), wide=st.booleans())
def test_masks_are_honoured(
    folders: dict[str, Path], drawn_rows: Any, seed: int, draws: bool, wide: bool
) -> None:
    """They go before `eligible`; of N actions or of N + 1, whether the router rejects or not."""
    batch, shape = drawn_rows
    rng = np.random.default_rng(seed)
    count = batch["eligible"].shape[-1]
    mask = rng.random((*shape, count + wide)) < 0.5
    mask[..., rng.integers(count)] = True
    for kind in ("cluster", "admission"):
        router = Learned(path=folders[kind])
        for masks in (mask, mask.astype(np.int8)):
            actions, _ = router.predict(batch, deterministic=not draws, action_masks=masks)
            whole = np.concatenate([mask, np.full((*shape, 1 - wide), kind == "admission")], axis=-1)
            assert np.take_along_axis(whole, actions[..., None], axis=-1).all()
            assert kind == "admission" or (actions < count).all()
            if not wide:
                told = {**batch, "eligible": mask.astype(np.float32)}
                assert router.predict(told, deterministic=not draws)[0].tolist() == actions.tolist()


def test_where_nothing_may_be_chosen_all_may(folders: dict[str, Path]) -> None:
    """As in a closing observation: something valid must be returned."""
    none = np.zeros(3)
    batch = observation(eligible=none)
    free = observation(eligible=none + 1)
    for name in ("cluster", "mlp", "admission"):
        router = Learned(path=folders[name])
        actions = [router.predict(batch, action_masks=mask)[0] for mask in (None, np.zeros(3), np.ones(3))]
        assert len(set(map(int, actions))) == 1
        assert 0 <= actions[0] < 3 + (name == "admission")
        assert router.predict(free)[0].shape == ()


@pytest.mark.parametrize("count", [1, 3, 8, 16])
def test_ties_go_to_the_lowest_index(folders: dict[str, Path], count: int) -> None:
    """Replicas that are alike are tied exactly, wherever they stand."""
    same = np.full(count, 2.0)
    batch = observation(outstanding=same, outstanding_prompt_tokens=same * 99, oldest_age=same)
    router = Learned(path=folders["cluster"])
    assert router.predict(batch)[0] == 0
    eligible = np.ones(count)
    eligible[: count // 2] = 0
    # All that are eligible are alike.
    assert router.predict({**batch, "eligible": eligible.astype(np.float32)})[0] == count // 2


@ONE_FOLDER
@given(drawn_rows=observations(SHAPES))
def test_the_router_s_own_records_are_enough(folders: dict[str, Path], drawn_rows: Any) -> None:
    batch, _ = drawn_rows
    router = Learned(path=folders["cluster"])
    own = {name: value for name, value in batch.items() if name not in (*REPORTED_FIELDS, "signal_age")}
    assert router.predict(own)[0].tolist() == router.predict(batch)[0].tolist()


def test_each_row_s_demand_is_what_its_operator_knows(folders: dict[str, Path]) -> None:
    configs = [CLUSTER.replace(demand={"output_ms": ms}) for ms in (0.0, 0.08, 1.3)]
    rng = np.random.default_rng(0)
    batch = random_observation(rng, (3,), 4)
    rows = [CLUSTER.replace(replicas=4, demand=config.demand) for config in configs]
    router = Learned(path=folders["cluster"])
    router.configure(rows)
    manifest, weights = load(folders["cluster"])
    forward = Forward(manifest.sizes, weights)
    found = forward(router._features(batch))
    for k, config in enumerate(configs):
        alone = row(batch, (k,))
        assert np.array_equal(found[k], forward(cluster_features(alone, config.demand.coefficients)))
    assert not np.array_equal(found, forward(cluster_features(batch, LeastWork().demand)))


WEIGHTINGS = ["on_time", "latency", [0.5, -1.0, 0.0, -0.004, 0.0], "weighted"]


def test_what_is_paid_steers_a_router_that_is_told_so(folders: dict[str, Path]) -> None:
    """Each row by what it pays, at its own deadline; before `configure` as the shipped config pays."""
    batch = random_observation(np.random.default_rng(2), (40,), 3)
    rows = [
        CLUSTER.replace(reward=WEIGHTINGS[k % 4], deadline_ms=(40.0, 80.0)[k % 2], demand={"base_ms": 1 + k})
        for k in range(40)
    ]
    manifest, weights = load(folders["told"])
    forward = Forward(manifest.sizes, weights)

    def due(k: int, config: ClusterConfig) -> np.ndarray:
        reward = reward_features(config.reward_weights, config.deadline_ms)
        return forward(cluster_features(row(batch, (k,)), config.demand.coefficients, reward))

    router = Learned(path=folders["told"])
    for config in (ClusterConfig.create(), CLUSTER.replace(reward="latency")):
        router.configure([config])  # one condition for any number of rows
        found = router._logits(router._features(batch))
        np.testing.assert_allclose(found, [due(k, config) for k in range(40)], rtol=1e-5, atol=1e-6)
        assert Learned(path=folders["told"]).predict(batch)[0].shape == (40,)
        assert router.predict(row(batch, (0,)))[0].shape == ()
    router.configure(rows)
    found = router._logits(router._features(batch))
    np.testing.assert_allclose(found, [due(k, rows[k]) for k in range(40)], rtol=1e-5, atol=1e-6)
    assert np.array_equal(
        Learned(path=folders["told"])._features(batch).context[..., -5:], np.tile([1, 0, 0, 0, 0], (40, 1))
    )


def test_what_an_operator_wants_goes_before_what_is_paid(folders: dict[str, Path]) -> None:
    batch = random_observation(np.random.default_rng(3), (300,), 3)
    chosen = {}
    for name in ("on_time", "latency"):
        paid = Learned(path=folders["told"])
        paid.configure([CLUSTER.replace(reward=name)])
        chosen[name] = paid.predict(batch)[0]
        given_weights = cluster_weights(name, 50)
        for reward in (name, list(given_weights), given_weights):
            wanted = Learned(path=folders["told"], reward=reward)
            assert wanted.predict(batch)[0].tolist() == chosen[name].tolist()
            wanted.configure([CLUSTER.replace(reward="slo")])
            assert wanted.predict(batch)[0].tolist() == chosen[name].tolist()
    assert 10 < (chosen["on_time"] != chosen["latency"]).sum() < 290


def test_a_weighting_that_is_none_or_of_no_use_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(LearnedError, match="reward = 'latency': it was trained for one reward, not to be to"):
        Learned(path=folders["cluster"], reward="latency")
    for wrong in ("speed", [1, 0], [1, 0, 0, 0, float("nan")]):
        with pytest.raises(ConfigError, match=r"reward = .*: must be one of on_time, .*, or five weights"):
            Learned(path=folders["told"], reward=wrong)


def test_it_is_steered_on_the_command_line_too(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, cluster__learned="routing_agents.learned:Learned")
    (router,) = routers_of(f"learned:path={folders['told']}:reward=latency", "cluster")
    assert router.params["reward"] == "latency"
    plain = Router("plain", "cluster/learned", {"path": str(folders["told"])})
    conditions = [Condition(name, CLUSTER.replace(reward=name)) for name in ("on_time", "latency")]
    found = {
        result.job.key[:2]: result.metrics["mean_latency_ms"]
        for result in run_jobs(make_jobs([router, plain], conditions, [30_000]))
    }
    wanted = {found[router.label, name] for name in ("on_time", "latency")}
    assert wanted == {found["plain", "latency"]} != {found["plain", "on_time"]}


def test_torch_and_numpy_are_told_the_same(tmp_path: Path) -> None:
    """Environment, features, network: what is trained is what is played, each row with its own reward."""
    pytest.importorskip("torch", reason='needs torch: pip install "routing-gym[agents]"')
    import torch

    from routing_agents.networks import SetNetwork, router_weights

    manifest = describe(CLUSTER, reward_features=True)
    torch.manual_seed(0)
    sizes = {name: getattr(manifest.sizes, name) for name in ("context", "element", "hidden", "admission")}
    network = SetNetwork(**sizes)
    with torch.no_grad():
        network.logit.weight *= 100  # as after training, not nearly uniform
    save(tmp_path / "router", manifest, router_weights(network))
    configs = [CLUSTER.replace(reward=reward) for reward in WEIGHTINGS]
    raw, envs = (
        gym.make_vec("routing_gym/InferenceCluster-v0", num_envs=4, configs=configs) for _ in range(2)
    )
    features = VectorFeatureObservation(envs, reward_weights=True)
    assert (features.context_features, features.element_features) == (
        manifest.context_features,
        manifest.element_features,
    )
    router = Learned(path=tmp_path / "router")
    router.configure(raw.unwrapped.configs)
    (seen, infos), (flat, _) = raw.reset(seed=0), features.reset(seed=0)
    for _ in range(100):
        with torch.no_grad():
            due = network.logits(torch.as_tensor(flat)).numpy()
        np.testing.assert_allclose(router._logits(router._features(seen)), due, atol=1e-5)
        actions, _ = router.predict(seen, action_masks=infos["action_mask"])
        seen, *_, infos = raw.step(actions)
        flat, *_ = features.step(actions)
    assert np.ptp(due, axis=1).max() > 0.1


def test_draws_are_the_policy_s_own(folders: dict[str, Path]) -> None:
    router = Learned(path=folders["cluster"], seed=5)
    batch = random_observation(np.random.default_rng(1), (200,), 3)
    logits = Forward(router.manifest.sizes, load(folders["cluster"])[1])(
        cluster_features(batch, LeastWork().demand)
    )
    state = router.initial_state(range(5, 205))
    due, after = drawn(logits, fits(batch), state)
    actions, found = router.predict(batch, deterministic=False)
    assert actions.tolist() == due.tolist()
    assert found.tolist() == after.tolist()
    again, _ = router.predict(batch, found, deterministic=False)
    likely, same = router.predict(batch, found)
    assert same is found
    assert not np.array_equal(actions, again)
    assert not np.array_equal(actions, likely)
    # As other routers that draw.
    assert state.tolist() == Random().initial_state(range(5, 205)).tolist()


CLUSTER_CONDITIONS = [
    Condition("steady", CLUSTER),
    Condition("eight", CLUSTER.replace(replicas=8, rate_per_s=880)),
]


def test_the_runner_plays_cluster_routers(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are those of episodes played by hand; several rows at once or one after the other."""
    register(monkeypatch, cluster__learned="routing_agents.learned:Learned")
    router = Router("learned", "cluster/learned", {"path": str(folders["cluster"])})
    seeds = [30_000, 30_001]
    results = list(run_jobs(make_jobs([router], CLUSTER_CONDITIONS, seeds)))
    assert len(results) == 4
    for result in results:
        env = gym.make("routing_gym/InferenceCluster-v0", config=result.job.condition.config)
        policy = Learned(path=folders["cluster"])
        policy.configure([result.job.condition.config])
        seen, info = env.reset(seed=result.job.seed)
        over = False
        while not over:
            action, _ = policy.predict(seen, action_masks=info["action_mask"])
            seen, _, _, over, info = env.step(int(action))
        assert same_metrics(result.metrics, info["episode_metrics"])
        assert result.metrics["invalid_actions"] == 0
        assert result.metrics["completed"] > 0


@pytest.mark.parametrize(
    ("name", "condition"), [("mlp", CLUSTER), ("admission", ADMISSION)], ids=["mlp", "admission"]
)
def test_the_runner_plays_the_others_too(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, condition: ClusterConfig
) -> None:
    register(monkeypatch, cluster__learned="routing_agents.learned:Learned")
    router = Router("learned", "cluster/learned", {"path": str(folders[name])})
    (result,) = run_jobs(make_jobs([router], [Condition("one", condition)], [30_000]))
    assert result.metrics["invalid_actions"] == 0
    assert result.metrics["arrivals"] > 100


@pytest.mark.parametrize("name", ["cloud_edge", "cloud_edge mlp"])
def test_the_runner_plays_batches_request_by_request(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    register(monkeypatch, cloud_edge__learned="routing_agents.learned:CloudEdgeLearned")
    router = Router("learned", "cloud_edge/learned", {"path": str(folders[name])})
    (result,) = run_jobs(make_jobs([router], [Condition("one", CLOUD_EDGE)], [30_000]))
    env = gym.make("routing_gym/CloudEdgeRequest-v0", config=CLOUD_EDGE)
    policy = CloudEdgeLearned(path=folders[name])
    policy.configure([CLOUD_EDGE])
    seen, info = env.reset(seed=30_000)
    over, steps = False, 0
    while not over:
        action, _ = policy.predict(seen, action_masks=info["action_mask"])
        seen, _, _, over, info = env.step(int(action))
        steps += 1
    assert steps == 4 * 9
    assert same_metrics(result.metrics, info["episode_metrics"])
    assert result.metrics["invalid_actions"] == 0


BIGGER = CLUSTER.replace(replicas=5)
REFUSED: list[tuple[str, type, Any, str]] = [
    (
        "cluster",
        Learned,
        ADMISSION,
        "was trained with admission = False; the environment has admission = True",
    ),
    (
        "admission",
        Learned,
        CLUSTER,
        "was trained with admission = True; the environment has admission = False",
    ),
    (
        "mlp",
        Learned,
        BIGGER,
        "its network is an mlp of elements = 3; the environment has replicas = 5",
    ),
    (
        "cluster",
        Learned,
        CLOUD_EDGE,
        "was trained for routing_gym/InferenceCluster-v0; this condition is a CloudEdgeConfig",
    ),
    (
        "cloud_edge",
        CloudEdgeLearned,
        CLUSTER,
        "was trained for routing_gym/CloudEdgeRequest-v0; this condition is a ClusterConfig",
    ),
    (
        "cloud_edge mlp",
        CloudEdgeLearned,
        CloudEdgeConfig.create(),
        "its network is an mlp of elements = 6; the environment has destination_count = 11",
    ),
]


@pytest.mark.parametrize(("name", "router", "config", "told"), REFUSED)
def test_a_condition_that_does_not_fit_is_refused(
    folders: dict[str, Path], name: str, router: type, config: Any, told: str
) -> None:
    policy = router(path=folders[name])
    fitting = {"cluster": CLUSTER, "mlp": CLUSTER, "admission": ADMISSION}.get(name, CLOUD_EDGE)
    policy.configure([fitting, fitting])
    with pytest.raises(LearnedError, match=told) as caught:
        policy.configure([fitting, config])
    assert str(caught.value).startswith(str(folders[name]))


def test_an_mlp_refuses_observations_of_another_size(folders: dict[str, Path]) -> None:
    with pytest.raises(LearnedError, match="is an mlp of elements = 3; the environment has replicas = 2"):
        Learned(path=folders["mlp"]).predict(observation(outstanding=[0, 0]))


def test_a_router_of_the_other_family_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(LearnedError, match="family = 'cloud_edge'; a cluster/learned needs 'cluster'"):
        Learned(path=folders["cloud_edge"])
    with pytest.raises(LearnedError, match="family = 'cluster'; a cloud_edge/learned needs 'cloud_edge'"):
        CloudEdgeLearned(path=folders["mlp"])


def test_shipped_routers_go_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "SHIPPED", tmp_path)
    with pytest.raises(LearnedError, match="name = 'mine': no learned cluster router of that name ships"):
        Learned("mine")
    with pytest.raises(
        LearnedError, match=r"none\); train one with `routing-gym train cloud-edge-ppo --export FO"
    ):
        CloudEdgeLearned()
    save_random(tmp_path / "cluster" / "mine", CLUSTER, seed=1)
    save_random(tmp_path / "cluster" / "admission", ADMISSION, seed=2)
    (tmp_path / "cluster" / "notes").mkdir()
    assert learned.shipped("cluster") == ["admission", "mine"]
    assert learned.shipped("cloud_edge") == []
    assert not Learned("mine").manifest.admission
    assert Learned("admission").manifest.admission
    with pytest.raises(LearnedError, match=r"name = '\.\./cluster/mine': .* admission, mine\)"):
        Learned("../cluster/mine")
    with pytest.raises(LearnedError, match="name = 'mine' and path = 'x': give one of the two"):
        Learned("mine", "x")


def test_the_default_suits_the_condition() -> None:
    """Where no router is named, `configure` takes what was trained for such conditions; a named one stays."""
    known, hidden, rejecting = (
        ClusterConfig.create(observation="router", **fields)
        for fields in ({}, {"prediction_sigma": None}, {"admission": True})
    )
    names = learned.default_names("cluster")
    router = Learned()
    assert router.folder.name == names["predicted"]
    for configs, kind in (
        ([hidden, hidden], "hidden"),
        ([known, hidden], "predicted"),
        ([rejecting], "admission"),
        ([known], "predicted"),
    ):
        router.configure(configs)
        assert router.folder.name == names[kind]
    named = Learned(names["predicted"])
    named.configure([hidden])
    assert named.folder.name == names["predicted"]
    with pytest.raises(LearnedError, match="admission = False; the environment has admission = True"):
        named.configure([rejecting])
    batches = CloudEdgeLearned()
    for name, shipped in learned.default_names("cloud_edge").items():
        batches.configure([CloudEdgeConfig.create(name), CloudEdgeConfig.create(name, replicate=2)])
        assert batches.folder.name == shipped


def test_the_default_is_the_same_whatever_is_played_beside_it() -> None:
    """A condition's episodes do not depend on the other conditions of a run."""
    short = {"warmup_s": 1.0, "measured_s": 3.0, "rate_per_s": 220.0, "observation": "router"}
    conditions = [
        Condition(str(sigma), ClusterConfig.create(prediction_sigma=sigma, **short)) for sigma in (None, 0.5)
    ]
    router = [Router("learned", "cluster/learned")]

    def played(chosen: list[Condition]) -> dict[Any, Any]:
        return {r.job.key: r.metrics for r in run_jobs(make_jobs(router, chosen, range(30_000, 30_003)))}

    np.testing.assert_equal(played(conditions), played(conditions[:1]) | played(conditions[1:]))


@pytest.mark.parametrize("family", ["cluster", "cloud_edge"])
def test_what_ships_is_whole_and_the_best_is_the_default(family: str) -> None:
    """Every router loads, is below 1 MB, reads what a proxy knows, and was chosen on development seeds."""
    cls: Any = {"cluster": Learned, "cloud_edge": CloudEdgeLearned}[family]
    higher = family == "cluster"
    measure = "attainment" if higher else "objective"
    scores: dict[str, float] = {}
    for name in learned.shipped(family):
        router = cls(name)
        files = sorted(path.name for path in router.folder.iterdir())
        assert files == ["README.md", "manifest.json", "weights.safetensors"]
        assert sum(path.stat().st_size for path in router.folder.iterdir()) < 1_000_000
        assert router.manifest.observation == ("router" if higher else "request")
        score = router.manifest.scores["development seeds, this router"][measure]
        assert score is not None
        scores[name] = score if higher else -score
    assert len(scores) >= 3
    for name in learned.default_names(family).values():
        assert name in scores
        same = [score for other, score in scores.items() if other.split("-")[0] == name.split("-")[0]]
        assert len(same) == 3
        assert scores[name] == max(same)


def test_registered_as_any_other_router(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, cluster__learned="routing_agents.learned:Learned")
    router = routing_gym.make_policy("cluster/learned", path=str(folders["cluster"]))
    assert (router.family, router.role, router.acts_on) == ("cluster", "router", "request")
    assert (CloudEdgeLearned.family, CloudEdgeLearned.acts_on) == ("cloud_edge", "request")


WITHOUT = """
import sys
for name in ("torch", "stable_baselines3", "sb3_contrib", "tensorboard", "matplotlib"):
    sys.modules[name] = None
import numpy as np
from routing_agents.learned import CloudEdgeLearned, Learned
from tests.baselines.states import random_observation
batch = random_observation(np.random.default_rng(0), (4,), 3)
print(Learned(path=sys.argv[1]).predict(batch)[0].tolist(), CloudEdgeLearned(path=sys.argv[2]).family)
"""


def test_routers_need_the_core_install_only(folders: dict[str, Path]) -> None:
    paths = [str(folders[name]) for name in ("cluster", "cloud_edge")]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *paths], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    batch = random_observation(np.random.default_rng(0), (4,), 3)
    due = Learned(path=folders["cluster"]).predict(batch)[0].tolist()
    assert done.stdout == f"{due} cloud_edge\n"
