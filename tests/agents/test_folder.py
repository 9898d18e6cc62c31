"""Folders of trained routers: round trips, every kind of damage, and what a card tells."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_agents import folder as folders
from routing_agents.card import card
from routing_agents.folder import CARD, MANIFEST, WEIGHTS, load, save
from routing_agents.inference import weight_shapes
from routing_agents.manifest import FAMILIES, LearnedError, Manifest
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.distribution import ClusterDistribution
from routing_gym.cluster.features import REWARD_FEATURES
from routing_gym.common.config import ConfigError, config_hash
from tests.agents.trained import describe, random_weights, save_random

ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
CONFIGS = {
    "cluster": ClusterConfig.create(observation="router"),
    "admission": ClusterDistribution.create(admission=True, observation="router"),
    "cloud_edge": CloudEdgeConfig.create("testbed-6node"),
}
NETWORKS: dict[str, dict[str, Any]] = {"set": {}, "mlp": {"network": "mlp", "elements": 3}}
CASES = [(config, network) for config in CONFIGS for network in NETWORKS]
cases = pytest.mark.parametrize(("config", "network"), CASES)


@cases
def test_what_is_saved_is_loaded(tmp_path: Path, config: str, network: str) -> None:
    manifest = describe(CONFIGS[config], **NETWORKS[network])
    weights = random_weights(manifest.sizes)
    save(tmp_path / "new" / "router", manifest, weights)
    found, same = load(tmp_path / "new" / "router")
    assert found == manifest
    assert weights.keys() == same.keys()
    assert all(weights[name].tobytes() == array.tobytes() for name, array in same.items())
    assert all(array.shape == weights[name].shape for name, array in same.items())
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["router"]
    assert {path.name for path in (tmp_path / "new" / "router").iterdir()} == {WEIGHTS, MANIFEST, CARD}


def test_the_same_router_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_random(tmp_path / name, CONFIGS["cluster"])
    for file in (WEIGHTS, MANIFEST, CARD):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("config", CONFIGS)
def test_a_router_of_the_usual_width_is_well_under_a_megabyte(tmp_path: Path, config: str) -> None:
    folder = save_random(tmp_path / "router", CONFIGS[config], hidden=64)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 400_000


def test_family_features_and_admission_follow_from_the_config() -> None:
    cluster, admission, cloud_edge = (describe(CONFIGS[name]) for name in CONFIGS)
    assert (cluster.family, cluster.admission, cluster.observation) == ("cluster", False, "router")
    assert (admission.family, admission.admission) == ("cluster", True)
    assert (cloud_edge.family, cloud_edge.admission, cloud_edge.observation) == (
        "cloud_edge",
        False,
        "request",
    )
    for manifest in (cluster, cloud_edge):
        family = FAMILIES[manifest.family]
        assert manifest.context_features == family.context_features
        assert manifest.element_features == family.element_features
        assert manifest.environment == family.environment
        assert manifest.sizes[2:4] == (len(family.context_features), len(family.element_features))
    assert cluster.config_hash == config_hash(CONFIGS["cluster"])
    assert ClusterConfig.create(cluster.config) == CONFIGS["cluster"]
    assert ClusterDistribution.create(admission.config) == CONFIGS["admission"]
    assert CloudEdgeConfig.create(cloud_edge.config) == CONFIGS["cloud_edge"]
    assert {"routing-gym", "numpy"} == cluster.versions.keys()
    assert "pydantic" in describe(CONFIGS["cluster"], packages=["pydantic"]).versions


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"network": "mlp"}, "Manifest: elements = None: an mlp needs a number; a set fits any, null"),
        ({"elements": 3}, "Manifest: elements = 3: an mlp needs a number"),
        ({"network": "rnn"}, "network = 'rnn': Input should be 'set' or 'mlp'"),
        ({"hidden": 0}, "hidden = 0: Input should be greater than or equal to 1"),
        ({"scores": {"development": {"attainment": math.nan}}}, "scores.development.attainment = nan: "),
        ({"scores": {"development": 0.8}}, "scores.development = 0.8: Input should be a valid dictionary"),
    ],
)
def test_what_cannot_be_described(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        describe(CONFIGS["cluster"], **fields)


def test_a_router_that_is_told_what_is_paid(tmp_path: Path) -> None:
    """Its context ends with the five weights, all of them and in this order."""
    manifest = describe(CONFIGS["cluster"], reward_features=True)
    plain = describe(CONFIGS["cluster"])
    assert manifest.reward_features and not plain.reward_features
    assert manifest.context_features == (*plain.context_features, *REWARD_FEATURES)
    assert manifest.sizes.context == plain.sizes.context + 5
    folder = tmp_path / "router"
    save(folder, manifest, random_weights(manifest.sizes))
    assert load(folder)[0] == manifest
    assert f"{manifest.sizes.context} of the rest" in (folder / CARD).read_text()
    whole = list(manifest.context_features)
    for context, told in (
        (whole[:-1], "context_features are not those of this version: it does not know weight_outstanding; "),
        (
            [*whole[:-2], whole[-1], whole[-2]],
            "context_features[15] = 'weight_outstanding'; in this version ",
        ),
        ([*whole[-5:], *whole[:-5]], "context_features[0] = 'weight_on_time'; in this version it is 'deadl"),
    ):
        edit(folder, lambda content, context=context: content.update(context_features=context))
        refused(folder, told)


@pytest.fixture
def router(tmp_path: Path) -> Path:
    return save_random(tmp_path / "router", CONFIGS["cluster"])


def refused(folder: Path, told: str) -> None:
    with pytest.raises(LearnedError) as caught:
        load(folder)
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(folder))


@pytest.mark.parametrize("name", [WEIGHTS, MANIFEST])
def test_a_missing_file(router: Path, name: str) -> None:
    (router / name).unlink()
    refused(router, f"{name}: cannot be read: No such file or directory")


def test_what_is_no_folder(router: Path) -> None:
    refused(router / "gone", "gone: there is no such folder")
    refused(router / WEIGHTS, f"{WEIGHTS}: there is no such folder")


def test_the_card_is_for_readers_only(router: Path) -> None:
    (router / CARD).unlink()
    assert load(router)[0].family == "cluster"


@ONE_FOLDER
@given(data=st.data())
def test_truncated_weights(router: Path, data: st.DataObject) -> None:
    whole = safetensors.numpy.save(load_weights(router))
    kept = data.draw(st.integers(0, len(whole) - 1))
    (router / WEIGHTS).write_bytes(whole[:kept])
    refused(router, f"{WEIGHTS}: is damaged: it has {kept} bytes with sha256 ")
    refused(router, f"{MANIFEST} says {len(whole)} bytes with sha256 {hashlib.sha256(whole).hexdigest()}")


@ONE_FOLDER
@given(data=st.data())
def test_a_flipped_bit_of_the_weights(router: Path, data: st.DataObject) -> None:
    whole = bytearray(safetensors.numpy.save(load_weights(router)))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (router / WEIGHTS).write_bytes(whole)
    refused(router, f"{WEIGHTS}: is damaged: it has {len(whole)} bytes with sha256 ")


def load_weights(router: Path) -> dict[str, np.ndarray]:
    return random_weights(describe(CONFIGS["cluster"]).sizes)


def test_any_flipped_bit_of_the_manifest_is_refused_or_changes_nothing(router: Path) -> None:
    """White space between tokens is all that may change."""
    whole, sound = (router / MANIFEST).read_bytes(), load(router)[0]
    unnoticed = 0
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        (router / MANIFEST).write_bytes(damaged)
        try:
            found = load(router)[0]
        except LearnedError:
            continue
        assert found == sound
        assert whole[position : position + 1].isspace()
        unnoticed += 1
    assert unnoticed < len(whole) / 70


def test_a_truncated_manifest(router: Path) -> None:
    whole = (router / MANIFEST).read_bytes()
    for kept in range(0, len(whole.rstrip()), 11):
        (router / MANIFEST).write_bytes(whole[:kept])
        refused(router, f"{MANIFEST}: is not valid JSON: ")


def edit(router: Path, change: Callable[[dict[str, Any]], object], rehash: bool = True) -> None:
    """Change a manifest, as someone would who knows how it is hashed."""
    content = json.loads((router / MANIFEST).read_text())
    change(content)
    if rehash:
        del content["sha256"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (router / MANIFEST).write_text(json.dumps(content))


def test_every_field_of_the_manifest_is_under_its_hash(router: Path) -> None:
    whole = (router / MANIFEST).read_text()
    content = json.loads(whole)
    assert content.keys() == {*Manifest.model_fields, "format", "weights", "sha256"}
    due = content["sha256"]
    for name in content.keys() - {"format", "sha256"}:
        (router / MANIFEST).write_text(whole)
        edit(router, lambda content, name=name: content.update({name: "other"}), rehash=False)  # type: ignore[misc]
        refused(router, f"{MANIFEST}: was changed: its sha256 is ")
        refused(router, f"it says {due}")


def test_how_the_manifest_is_laid_out_does_not_matter(router: Path) -> None:
    sound = load(router)[0]
    edit(router, lambda content: None, rehash=False)
    assert load(router)[0] == sound


NAMES = FAMILIES["cluster"].element_features
WIDTH = len(NAMES) + len(FAMILIES["cluster"].context_features)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "format = 2; this version of routing-gym reads format 1"),
        ({"format": None}, "format = None; this version of routing-gym reads format 1"),
        ({"sha256": None}, f"{MANIFEST}: was changed: its sha256 is "),
        ({"family": "grid"}, "family = 'grid': Input should be 'cluster' or 'cloud_edge'"),
        ({"hidden": "wide"}, "hidden = 'wide': Input should be a valid integer"),
        ({"colour": "red"}, "colour is not a field"),
        ({"elements": 3}, "elements = 3: an mlp needs a number; a set fits any, null"),
        (
            {"hidden": 13},
            f"{WEIGHTS}: encoder_in.weight has shape (12, {WIDTH}); after the manifest it must ",
        ),
        ({"admission": True}, "rejecter.weight has shape none; after the manifest it must be (12, "),
        ({"network": "mlp", "elements": 3}, "first.weight has shape none; after the manifest it must be "),
        ({"weights": None}, f"{MANIFEST} says None"),
        ({"weights": "abc"}, f"{MANIFEST} says 'abc'"),
        (
            {"element_features": [*NAMES[:-1], "speed"]},
            f"element_features are not those of this version: it needs speed; it does not know {NAMES[-1]}",
        ),
        (
            {"element_features": NAMES[:-2]},
            f"element_features are not those of this version: it does not know {NAMES[-2]}, {NAMES[-1]}; ",
        ),
        ({"context_features": ["hour"]}, "context_features are not those of this version: it needs hour; it"),
        (
            {"element_features": [NAMES[1], NAMES[0], *NAMES[2:]]},
            f"element_features[0] = {NAMES[1]!r}; in this version it is {NAMES[0]!r}: train it again",
        ),
        (
            {"element_features": [*NAMES, NAMES[0]]},
            f"element_features[{len(NAMES)}] = {NAMES[0]!r}; in this version it is None: train it again",
        ),
        (
            {"environment": "routing_gym/InferenceCluster-v1"},
            "environment = 'routing_gym/InferenceCluster-v1'; in this version it is 'routing_gym/InferenceCl",
        ),
        ({"observation": "request"}, "observation = 'request'; in this version it is 'router'"),
        (
            {
                "family": "cloud_edge",
                "environment": "routing_gym/CloudEdgeRequest-v0",
                "observation": "request",
            },
            "context_features are not those of this version: it needs deadline, ",
        ),
    ],
)
def test_a_manifest_that_does_not_fit(router: Path, change: dict[str, Any], told: str) -> None:
    edit(router, lambda content: content.update(change), rehash="sha256" not in change)
    refused(router, told)


@pytest.mark.parametrize("field", Manifest.model_fields)
def test_a_manifest_that_lacks_a_field(router: Path, field: str) -> None:
    edit(router, lambda content: content.pop(field))
    refused(router, f"{field} is missing in ")


@pytest.mark.parametrize(
    ("text", "told"), [("[1]", "must hold an object, not list"), ("[" * 200_000, "JSON")]
)
def test_a_manifest_of_something_else(router: Path, text: str, told: str) -> None:
    (router / MANIFEST).write_text(text)
    refused(router, told)


def put(router: Path, data: bytes) -> None:
    """Replace the weights and the manifest's idea of them."""
    (router / WEIGHTS).write_bytes(data)
    due = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(router, lambda content: content.update(weights=due))


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 8, b"\xff" * 64, b"\x80\x04N.", b"\x02" + b"\x00" * 7 + b"[]"]
)
def test_weights_in_another_format(router: Path, data: bytes) -> None:
    put(router, data)
    refused(router, f"{WEIGHTS}: is no safetensors file: ")


def changed(**arrays: np.ndarray | None) -> dict[str, np.ndarray]:
    weights = random_weights(describe(CONFIGS["cluster"]).sizes) | {
        name.replace("__", "."): array for name, array in arrays.items()
    }
    return {name: array for name, array in weights.items() if array is not None}


BAD_WEIGHTS = [
    ({"logit__bias": None}, "logit.bias has shape none; after the manifest it must be (1,)"),
    ({"reject__bias": np.zeros(1, np.float32)}, "reject.bias has shape (1,); after the manifest it must be "),
    (
        {"logit__bias": np.zeros(2, np.float32)},
        "logit.bias has shape (2,); after the manifest it must be (1,",
    ),
    (
        {"logit__bias": np.zeros((1, 1), np.float32)},
        "logit.bias has shape (1, 1); after the manifest it must",
    ),
    ({"logit__bias": np.zeros(1)}, "logit.bias is of type float64; it must be float32"),
    ({"logit__bias": np.array([np.nan], np.float32)}, "logit.bias holds numbers that are not finite"),
    ({"logit__bias": np.array([-np.inf], np.float32)}, "logit.bias holds numbers that are not finite"),
]


@pytest.mark.parametrize(("arrays", "told"), BAD_WEIGHTS)
def test_weights_that_do_not_fit(router: Path, tmp_path: Path, arrays: dict[str, Any], told: str) -> None:
    weights = changed(**arrays)
    put(router, safetensors.numpy.save(weights))
    refused(router, told)
    with pytest.raises(LearnedError, match=r"new: ") as caught:
        save(tmp_path / "new", describe(CONFIGS["cluster"]), weights)
    assert told in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["router"]


def test_a_folder_is_not_replaced_unasked(router: Path) -> None:
    manifest = describe(CONFIGS["admission"])
    weights = random_weights(manifest.sizes)
    with pytest.raises(LearnedError, match="router: is there already; overwrite replaces a folder saved ear"):
        save(router, manifest, weights)
    assert not load(router)[0].admission
    save(router, manifest, weights, overwrite=True)
    assert load(router)[0] == manifest
    assert [path.name for path in router.parent.iterdir()] == ["router"]


def test_what_is_no_router_is_never_replaced(router: Path, tmp_path: Path) -> None:
    manifest = describe(CONFIGS["cluster"])
    weights = random_weights(manifest.sizes)
    (router / "thesis.txt").write_text("years of work")
    with pytest.raises(
        LearnedError, match=r"router: holds thesis\.txt, which no saved router does; it is no"
    ):
        save(router, manifest, weights, overwrite=True)
    assert (router / "thesis.txt").read_text() == "years of work"
    (tmp_path / "file").write_text("more")
    with pytest.raises(LearnedError, match=r"file: holds file, which no saved router does; it is not"):
        save(tmp_path / "file", manifest, weights, overwrite=True)
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", manifest, weights, overwrite=True)
    assert load(tmp_path / "empty")[0] == manifest


def test_a_save_that_fails_leaves_what_was_there(router: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in router.iterdir()}

    def full(manifest: Manifest) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "card", full)
    manifest = describe(CONFIGS["cluster"], hidden=7)
    with pytest.raises(OSError, match="No space left"):
        save(router, manifest, random_weights(manifest.sizes), overwrite=True)
    assert {path.name: path.read_bytes() for path in router.iterdir()} == before
    assert [path.name for path in router.parent.iterdir()] == ["router"]


@cases
def test_the_card_tells_what_it_is(tmp_path: Path, config: str, network: str) -> None:
    manifest = describe(CONFIGS[config], **NETWORKS[network])
    save(tmp_path / "router", manifest, random_weights(manifest.sizes))
    text = (tmp_path / "router" / CARD).read_text()
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("#")][1:] == [
        "## Use",
        "## Training",
        "## Scores",
        "## Limits",
    ]
    assert f'routing_gym.make_policy("{manifest.family}/learned", path="this/folder")' in text
    assert "routing-gym train made-up --seed 7" in lines
    assert "| steps | 1000 |" in lines
    assert manifest.config_hash in text
    assert manifest.environment in text
    assert ["|  | attainment | p99_all_ms |", "| --- | --- | --- |", "| development | 0.8125 | — |"] == lines[
        lines.index("## Scores") + 2 :
    ][:3]
    assert ("needs `admission: true`" in text) == manifest.admission
    assert ("needs `admission: false`" in text) == (config == "cluster")
    assert ("fit 3 " in text) == (network == "mlp")


TRAINED_FOR: list[tuple[Any, dict[str, Any], str]] = [
    (
        CONFIGS["cluster"],
        {},
        "It was trained on 3 replicas, at 180 requests/s. Output lengths were predicted, with a log-error of "
        "0.5; requests could not be rejected.",
    ),
    (
        ClusterDistribution.create(
            admission=True, observation="router", prediction_sigma=None, service_ms=[11.0]
        ),
        {},
        "It was trained on 1 replica, at 80 to 280 requests/s. Output lengths were hidden; requests could be "
        "rejected.",
    ),
    (
        ClusterDistribution.create(observation="router", load=[0.5, 0.9], prediction_sigma=0.0),
        {"reward_features": True},
        "It was trained on 3 replicas, at a load of 0.5 to 0.9. Output lengths were known exactly; requests "
        "could not be rejected. It is told the weights of the reward (`reward=…`).",
    ),
    (
        ClusterConfig.create(observation="router"),
        {"training": {"vary": {"prediction_sigma": [None, 0.5], "load": [None, 0.7]}}},
        "It was trained on 3 replicas, at a load of 0.7 or 180 requests/s. Output lengths were hidden or "
        "predicted, with a log-error of 0.5; requests could not be rejected.",
    ),
    (
        ClusterConfig.create(observation="router", trace="a.csv"),
        {"training": {"vary": {"service_ms": [[8.0, 16.0], [16.0, 8.0]]}}},
        "It was trained on 2 replicas, at a trace's own rate. Output lengths were predicted, with a "
        "log-error of 0.5; requests could not be rejected.",
    ),
    (
        CloudEdgeConfig.create("testbed-6node", rate_per_s=10, windows=20),
        {"training": {"vary": {"rate_per_s": [10, 20, 50]}}},
        "It was trained on 6 nodes with 6 models, in episodes of 20 windows of 1 s, at 10 to 50 requests/s.",
    ),
    (
        CloudEdgeConfig.create("testbed-6node", requests=30, windows=20, drop=["mistral-7b"], replicate=2),
        {},
        "It was trained on 10 nodes with 5 models, in episodes of 20 windows of 1 s, at 30 requests a "
        "window.",
    ),
    (
        CloudEdgeConfig.create("testbed-6node", trace="a.csv", rate_per_s=None, windows=20),
        {},
        "It was trained on 6 nodes with 6 models, in episodes of 20 windows of 1 s, at a trace's own rate.",
    ),
]


@pytest.mark.parametrize(("config", "fields", "told"), TRAINED_FOR)
def test_the_card_tells_what_it_was_trained_for(config: Any, fields: dict[str, Any], told: str) -> None:
    assert told in card(describe(config, **fields)).splitlines()


def test_the_card_tells_how_it_was_trained() -> None:
    training = {
        "vary": {"rate_per_s": [10, 20]},
        "reward_features": True,
        "algorithm": "PPO",
        "hyperparameters": {"learning_rate": "lin_1e-3", "gamma": 0.995},
        "normalise_reward": False,
    }
    table = (
        "| --- | --- |\n| vary rate_per_s | [10, 20] |\n| reward_features | true |\n| algorithm | PPO |\n"
        "| learning_rate | lin_1e-3 |\n| gamma | 0.995 |\n| normalise_reward | false |\n\n"
    )
    assert table in card(describe(CONFIGS["cluster"], training=training))
    training = {"vary": {}, "reward_features": False, "algorithm": "PPO"}
    assert "| --- | --- |\n| algorithm | PPO |\n\n" in card(describe(CONFIGS["cluster"], training=training))


def test_the_card_says_that_its_scores_flatter() -> None:
    said = "The checkpoint was chosen by these episodes"
    assert said in card(describe(CONFIGS["cluster"]))
    assert said not in card(describe(CONFIGS["cluster"], scores={}))


def test_the_card_s_tables_hold_any_text(tmp_path: Path) -> None:
    scores = {"a | b": {"on time": 0.5}, "c": {"p99": 51.25}}
    save_random(tmp_path / "router", CONFIGS["cluster"], scores=scores)
    text = (tmp_path / "router" / CARD).read_text()
    assert "|  | on time | p99 |\n| --- | --- | --- |\n| a \\| b | 0.5 | — |\n| c | — | 51.25 |\n" in text
    save_random(tmp_path / "other", CONFIGS["cluster"], scores={})
    assert "None were recorded." in (tmp_path / "other" / CARD).read_text()


def test_shapes_are_the_weights_own() -> None:
    """A folder's weights are checked against shapes that inference needs, so both must be one list."""
    manifest = describe(CONFIGS["admission"])
    assert random_weights(manifest.sizes).keys() == weight_shapes(manifest.sizes).keys()
