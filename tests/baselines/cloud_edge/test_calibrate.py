"""The constants that are ours come near what is published; the command that shows it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from routing_baselines.cloud_edge.calibrate import (
    TABLE_V,
    Comparison,
    app,
    compare_to_table_v,
    sample_fit,
)
from routing_gym.cloud_edge.config import CloudEdgeConfig


def test_static_routers_come_near_table_v() -> None:
    """Energy and time within 25 %, quality and cost within two standard errors of a mean of five batches."""
    found = compare_to_table_v(CloudEdgeConfig.create(), 400)
    assert {(line.router, line.term) for line in found} == {
        (r, t) for r, terms in TABLE_V.items() for t in terms
    }
    assert [line for line in found if not line.near] == []


def test_other_constants_would_not() -> None:
    """The check is no formality: the hardware's full throughput is far off."""
    config = CloudEdgeConfig.create(catalogue={"efficiency": 1.0})
    assert any(not line.near for line in compare_to_table_v(config, 20))


@pytest.mark.parametrize(
    ("term", "ratio", "z", "near"),
    [
        ("energy_j", 1.25, 9.0, True),
        ("completion_s", 0.74, 0.0, False),
        ("cost_usd", 9.0, -2.0, True),
        ("quality_loss", 1.0, 2.1, False),
    ],
)
def test_what_is_near(term: str, ratio: float, z: float, near: bool) -> None:
    assert Comparison("cloud_only", term, 1.0, 1.0, ratio, z).near is near


def test_the_sample_is_held_against_every_model() -> None:
    rows = sample_fit(CloudEdgeConfig.create("testbed-6node"), 2000)
    qualities = {row.of: row for row in rows if row.quantity == "quality"}
    for model in CloudEdgeConfig.create("testbed-6node").catalogue.hosted:
        assert qualities[model].sample == pytest.approx(qualities[model].published, abs=0.05)


@pytest.mark.parametrize("catalogue", ["routerbench-5node", "testbed-6node"])
def test_the_command_prints_both_tables(catalogue: str) -> None:
    arguments = ["--catalogue", catalogue, "--batches", "20", "--requests", "2000"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "Synthetic workload" in result.output
    assert ("Table V" in result.output) and ("cloud_only" in result.output) == (
        catalogue == "routerbench-5node"
    )
