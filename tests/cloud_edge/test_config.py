"""Cloud–edge configs: what is refused and how it is said, what merges, and the catalogues of the design."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from routing_gym.cloud_edge.catalogue import physics_table
from routing_gym.cloud_edge.config import CloudEdgeConfig, resolve
from routing_gym.common.config import ConfigError, config_hash, config_names, configs_folder

FOLDER = configs_folder() / "cloud_edge"
NODE = {"name": "N", "tier": "edge", "tflops": 10.0, "power_w": 100.0, "models": ["m"]}
MODEL = {"parameters_b": 7.0, "price_in_usd": 0.2, "price_out_usd": 0.4}


def changed(**fields: Any) -> dict[str, Any]:
    """Return the shipped catalogue with some fields changed."""
    return {**yaml.safe_load((FOLDER / "routerbench-5node.yaml").read_text())["catalogue"], **fields}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"weights": (0.5, -0.1, 0.3, 0.3)}, r"weights = .*must not be negative"),
        ({"weights": (0, 0, 0, 0)}, r"weights = .*one must be above 0"),
        ({"weights": (0.5, 0.5)}, r"weights"),
        ({"max_requests": 0}, r"max_requests = 0: .*greater than or equal to 1"),
        ({"max_requests": 129}, r"max_requests = 129: .*less than or equal to 128"),
        ({"windows": 0}, r"windows = 0"),
        ({"window_s": 0.0}, r"window_s = 0.0: .*greater than 0"),
        ({"rate_per_s": -1.0}, r"rate_per_s = -1.0"),
        ({"rate_per_s": None}, r"rate_per_s = None: .*give a rate"),
        ({"requests": 5, "trace": "x.csv"}, r"requests = 5: a trace brings its own arrivals"),
        ({"rate_per_s": 0.0, "trace": "x.csv"}, r"rate_per_s = 0: a trace needs a rate above 0"),
        ({"reward_on": "hope"}, r"reward_on = 'hope': .*'actual' or 'predicted'"),
        ({"replicate": 0}, r"replicate = 0"),
        ({"edge_only_share": 1.5}, r"edge_only_share = 1.5"),
        ({"outage_probability": -0.5}, r"outage_probability = -0.5"),
        ({"outage_mean_windows": 0.5}, r"outage_mean_windows = 0.5"),
        ({"rtt_sigma": float("nan")}, r"rtt_sigma = nan"),
        ({"config": 5}, r"config is not a field"),
        (
            {"outages": [{"node": "H200", "window": 0, "windows": 1}]},
            r"outages: no node is named 'H200'; there are H100, A100",
        ),
        (
            {"outages": [{"node": "H100", "window": 60, "windows": 1}]},
            r"outages: window 60 is after the episode's last, 59",
        ),
        ({"rate": 5}, r"rate is not a field \(did you mean .*rate_per_s"),
        ({"catalogue": {"efficiency": 0.0}}, r"catalogue.efficiency = 0.0"),
        ({"catalogue": {"speedup": 0.5}}, r"catalogue.speedup = 0.5"),
        ({"catalogue": changed(nodes=[])}, r"catalogue.nodes"),
        ({"catalogue": changed(nodes=[NODE], models={})}, r"'N' hosts 'm'; models has"),
        (
            {"catalogue": changed(nodes=[NODE | {"tflops": None}], models={"m": MODEL})},
            r"node 'N' needs either tflops, or both",
        ),
        (
            {"catalogue": changed(nodes=[NODE | {"single_tflops": 1.0}], models={"m": MODEL})},
            r"node 'N' needs either tflops, or both",
        ),
        (
            {"catalogue": changed(nodes=[NODE, NODE], models={"m": MODEL})},
            r"'N' is listed twice",
        ),
        (
            {"catalogue": changed(nodes=[NODE | {"models": ["m", "m"]}], models={"m": MODEL})},
            r"'N' lists a model twice",
        ),
        (
            {"catalogue": changed(nodes=[NODE | {"tier": "fog"}], models={"m": MODEL})},
            r"tier = 'fog': .*'cloud' or 'edge'",
        ),
    ],
)
def test_a_bad_config_is_refused_with_one_clear_error(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        CloudEdgeConfig.create(**fields)


def test_copies_must_not_share_a_name() -> None:
    """An outage would take both down."""
    nodes = [NODE, NODE | {"name": "N#2"}]
    with pytest.raises(ConfigError, match=r"replicate = 2: would name two nodes 'N#2'; rename one"):
        CloudEdgeConfig.create(catalogue=changed(nodes=nodes, models={"m": MODEL}), replicate=2)


def test_edge_only_requests_need_an_edge_node() -> None:
    nodes = [NODE | {"tier": "cloud"}]
    with pytest.raises(ConfigError, match=r"edge_only_share = 0.1: the catalogue has no edge node"):
        CloudEdgeConfig.create(catalogue=changed(nodes=nodes, models={"m": MODEL}), edge_only_share=0.1)


@pytest.mark.parametrize("given", [5, None, [1]])
def test_what_is_no_config_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be a config, a name, a path or a mapping"):
        resolve(given)


def test_a_catalogue_without_a_path_to_a_tier_is_refused() -> None:
    catalogue = changed()
    del catalogue["network"]["edge"]
    with pytest.raises(ConfigError, match=r"network: has no path to tier 'edge', which node 'A10' is in"):
        CloudEdgeConfig.create({"catalogue": catalogue})


@pytest.mark.parametrize("given", [(1, 1, 1, 1), (2, 0, 0, 0), (0.3, 0.3, 0.3, 0.3)])
def test_weights_are_normalised_and_that_is_said(given: tuple[float, ...]) -> None:
    with pytest.warns(UserWarning, match=r"weights = .* sum to .*; normalised to \("):
        config = CloudEdgeConfig.create(weights=given)
    assert sum(config.weights) == pytest.approx(1.0, abs=1e-15)
    assert config.weights == pytest.approx([weight / sum(given) for weight in given])
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        assert config.replace(windows=3).weights == config.weights


def test_names_paths_mappings_and_objects_resolve_alike(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((FOLDER / "testbed-6node.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    config = CloudEdgeConfig.create("testbed-6node", windows=5)
    for given in (path, str(path), yaml.safe_load(path.read_text()), CloudEdgeConfig.create("testbed-6node")):
        assert resolve(given, windows=5) == config
    assert resolve(config) is config
    assert CloudEdgeConfig.create() == resolve() == resolve("routerbench-5node")
    assert CloudEdgeConfig.create("default") == CloudEdgeConfig.create()  # as it says nothing of a catalogue
    assert config_names("cloud_edge") == ["default", "routerbench-5node", "testbed-6node"]


@pytest.mark.parametrize("name", ["routerbench-5node", "testbed-6node"])
def test_json_gives_back_an_equal_config(name: str) -> None:
    config = CloudEdgeConfig.create(
        name, outages=[{"node": config_nodes(name)[0], "window": 1, "windows": 2}]
    )
    again = CloudEdgeConfig.create(json.loads(config.model_dump_json()))
    assert again == config and config_hash(again) == config_hash(config)
    assert config_hash(config.replace(windows=3)) != config_hash(config)


def config_nodes(name: str) -> tuple[str, ...]:
    return CloudEdgeConfig.create(name).catalogue.node_names()


def test_a_part_of_a_catalogue_changes_the_default_and_a_whole_one_stands_for_itself() -> None:
    config = CloudEdgeConfig.create(catalogue={"speedup": 3.0})
    assert config.catalogue.speedup == 3.0 and len(config.destinations) == 11
    own = changed(nodes=[NODE], models={"m": MODEL})
    config = CloudEdgeConfig.create({"catalogue": own})
    assert [d.name for d in config.destinations] == ["N/m"]


def test_the_five_nodes_of_the_design() -> None:
    """Eleven destinations; throughput is efficiency · TFLOPS, and speed-up times that."""
    config = CloudEdgeConfig.create()
    efficiency, speedup = config.catalogue.efficiency, config.catalogue.speedup
    tflops = {"H100": 312, "A100": 312, "A100-250": 250, "A10": 125, "T4": 65}
    power = {"H100": 300, "A100": 300, "A100-250": 250, "A10": 150, "T4": 70}
    hosted = {"H100": 2, "A100": 3, "A100-250": 2, "A10": 2, "T4": 2}
    nodes = [d.node for d in config.destinations]
    assert {node: nodes.count(node) for node in nodes} == hosted
    for d in config.destinations:
        assert d.single_flops == pytest.approx(efficiency * tflops[d.node] * 1e12)
        assert d.speedup == pytest.approx(speedup)
        assert d.power_w == power[d.node]
        assert d.is_cloud == (d.node not in ("A10", "T4"))
        low, high = (40, 60) if d.is_cloud else (5, 8)
        assert low <= d.path.rtt_ms <= high
    prices = {d.model: (d.price.price_in_usd, d.price.price_out_usd) for d in config.destinations}
    assert prices == {
        "gpt-4": (10, 30),
        "claude-v2": (8, 24),
        "gpt-3.5": (1, 2),
        "claude-v1": (8, 24),
        "claude-instant": (0.8, 2.4),
        "llama-2-70b": (0.9, 0.9),
        "mixtral-8x7b": (0.6, 0.6),
        "yi-34b": (0.8, 0.8),
        "code-llama-34b": (0.776, 0.776),
        "wizardlm-13b": (0.3, 0.3),
        "mistral-7b": (0.2, 0.2),
    }


def test_the_six_nodes_of_the_design() -> None:
    config = CloudEdgeConfig.create("testbed-6node")
    assert [(d.single_flops / 1e12, d.batch_flops / 1e12, d.is_cloud) for d in config.destinations] == [
        (4.02, 287.5, True),
        (1.47, 82.9, False),
        (1.70, 167.0, False),
        (2.23, 158.6, False),
        (2.22, 167.4, False),
        (0.682, 36.37, True),
    ]
    assert config.destinations[-1].path.rtt_ms == 197
    assert all(d.token_price == 0 for d in config.destinations)


@pytest.mark.parametrize("copies", [2, 4, 8])
def test_a_catalogue_is_replicated_whole(copies: int) -> None:
    one, many = CloudEdgeConfig.create(), CloudEdgeConfig.create(replicate=copies)
    assert many.destination_count == 11 * copies
    assert len({d.name for d in many.destinations}) == 11 * copies
    tables = [physics_table(c.destinations, c.catalogue.hosted) for c in (one, many)]
    for copy in range(copies):
        assert tables[1][11 * copy : 11 * copy + 11].tobytes() == tables[0].tobytes()
    assert many.destinations[11].name == "H100#2/gpt-4"


def test_our_own_constants_are_marked() -> None:
    """Every field that the source leaves open says so in its line."""
    text = (FOLDER / "default.yaml").read_text(encoding="utf-8")
    marked = {line.partition(":")[0] for line in text.splitlines() if "# ours" in line}
    assert marked == {
        "windows",
        "max_requests",
        "rate_per_s",
        "reward_on",
        "credit",
        "rtt_sigma",
        "edge_only_share",
        "outages",
        "outage_probability",
        "outage_mean_windows",
    }
