"""Catalogues: what the physics is told of a destination, by hand; copies, and paths of a node's own.

What is refused, and the shipped catalogues' figures, are in test_config.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from routing_gym.cloud_edge.catalogue import Catalogue, physics_table
from routing_gym.cloud_edge.evaluator import pair_parts

CLOUD = {"rtt_ms": 50.0, "up_mbps": 8.0, "down_mbps": 16.0, "transmit_w": 2.0, "receive_w": 1.0}
EDGE = {"rtt_ms": 5.0, "up_mbps": 32.0, "down_mbps": 64.0, "transmit_w": 0.5, "receive_w": 0.25}
LARGE = {"parameters_b": 10.0, "price_in_usd": 3.0, "price_out_usd": 5.0, "fee_usd": 0.002}
SMALL = {"parameters_b": 1.0, "price_in_usd": 0.0, "price_out_usd": 0.5}


def make_catalogue(**fields: Any) -> Catalogue:
    """Return a rack in the cloud with two models, and a box at the edge with one of them, measured."""
    usual = {
        "efficiency": 0.2,
        "speedup": 5.0,
        "utilisation": 0.75,
        "network": {"cloud": CLOUD | {"price_gb_usd": 0.5}, "edge": EDGE | {"price_gb_usd": 0.0}},
        "nodes": [
            {
                "name": "rack",
                "tier": "cloud",
                "tflops": 100.0,
                "power_w": 200.0,
                "models": ["large", "small"],
            },
            {
                "name": "box",
                "tier": "edge",
                "single_tflops": 2.0,
                "batch_tflops": 50.0,
                "power_w": 80.0,
                "models": ["small"],
            },
        ],
        "models": {"unused": SMALL, "small": SMALL, "large": LARGE},
    }
    return Catalogue.model_validate(usual | fields)


def records(catalogue: Catalogue, replicate: int = 1) -> np.ndarray:
    return physics_table(catalogue.destinations(replicate), catalogue.hosted)


def test_a_destination_of_listed_throughput_by_hand() -> None:
    """100 TFLOPS: a request gets 20 of them, a full batch five times that."""
    record = records(make_catalogue())[0]
    expected = {
        "prefill_s": 2 * 10e9 / 100e12,
        "decode_s": 2 * 10e9 / 20e12,
        "up_s": 32 / 8e6,
        "down_s": 32 / 16e6,
        "price_in": 3e-6,
        "price_out": 5e-6,
        "price_traffic": 4e-9 * 0.5,
        "fee": 0.002,
        "power_w": 150.0,
        "transmit_w": 2.0,
        "receive_w": 1.0,
        "speedup": 5.0,
        "token_price": 4.0,
        "model": 0,
        "is_cloud": 1,
    }
    assert set(record.dtype.names) == set(expected)
    for name, value in expected.items():
        assert record[name] == pytest.approx(value, rel=1e-14), name


def test_a_destination_of_measured_throughput_by_hand() -> None:
    """The catalogue's efficiency and speed-up are not asked; no fee unless there is one."""
    record = records(make_catalogue())[2]
    assert record["prefill_s"] == pytest.approx(2e9 / 50e12)
    assert record["decode_s"] == pytest.approx(2e9 / 2e12)
    assert (record["speedup"], record["power_w"]) == (25.0, 60.0)
    assert (record["fee"], record["price_traffic"], record["price_in"]) == (0.0, 0.0, 0.0)
    assert (record["token_price"], record["is_cloud"], record["model"]) == (0.25, 0, 1)


def test_a_request_by_hand() -> None:
    """1000 tokens in and 200 out, over a path of 50 ms now.

    T_infer = 0.2 + 0.2; up 4 ms and down 0.4 ms; 0.003 + 0.001 and 0.002 USD, and 4800 bytes at 0.5 USD/GB;
    0.4 s at 150 W, 4 ms at 2 W, 0.4 ms at 1 W.
    """
    infer, transfer, cost, energy = pair_parts(records(make_catalogue())[0], 1000.0, 200.0, 0.05)
    assert infer == pytest.approx(0.4)
    assert transfer == pytest.approx(0.0544)
    assert cost == pytest.approx(0.006 + 4800e-9 * 0.5)
    assert energy == pytest.approx(60.0 + 0.008 + 0.0004)


def test_destinations_are_node_by_node_and_model_by_model() -> None:
    catalogue = make_catalogue()
    destinations = catalogue.destinations()
    assert [d.name for d in destinations] == ["rack/large", "rack/small", "box/small"]
    assert [d.node for d in destinations] == ["rack", "rack", "box"]
    assert [d.model for d in destinations] == ["large", "small", "small"]
    assert [d.is_cloud for d in destinations] == [True, True, False]
    assert catalogue.hosted == ("large", "small")  # in the order of destinations; nobody hosts the third
    assert records(catalogue)["model"].tolist() == [0, 1, 1]


def test_copies_have_names_of_their_own_and_nothing_else() -> None:
    catalogue = make_catalogue()
    assert catalogue.node_names(3) == ("rack", "box", "rack#2", "box#2", "rack#3", "box#3")
    assert catalogue.node_names() == ("rack", "box")
    destinations = catalogue.destinations(3)
    assert [d.node for d in destinations] == [
        node for copy in ("", "#2", "#3") for node in (f"rack{copy}", f"rack{copy}", f"box{copy}")
    ]
    assert destinations[5].name == "box#2/small"
    for k, d in enumerate(destinations):
        original = destinations[k % 3]
        assert d._replace(name=original.name, node=original.node) == original


def test_a_node_s_own_round_trip_replaces_the_tier_s() -> None:
    """Of that node alone; bandwidths and prices stay the tier's."""
    nodes = make_catalogue().model_dump()["nodes"]
    far = nodes[0] | {"name": "far", "rtt_ms": 197.0}
    here = nodes[1] | {"name": "here", "rtt_ms": 0.0}
    destinations = make_catalogue(nodes=[*nodes, far, here]).destinations()
    rtt = {d.node: d.path.rtt_ms for d in destinations}
    assert rtt == {"rack": 50.0, "box": 5.0, "far": 197.0, "here": 0.0}
    by_node = {d.node: d for d in destinations}
    for own, usual in (("far", "rack"), ("here", "box")):
        path = by_node[own].path.model_copy(update={"rtt_ms": by_node[usual].path.rtt_ms})
        assert path == by_node[usual].path
    table = physics_table(destinations, ("large", "small"))
    assert table[3].tolist() == table[0].tolist()  # round trips are drawn, and are no part of it
