"""Shards on disk: whole or not there, and what comes back is what was put in."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra `studies`")

from routing_gym.evaluation.runner import Job, Result
from routing_gym.studies import storage
from routing_gym.studies.storage import (
    encode,
    read_table,
    rows_in,
    seconds_of,
    shard_files,
    shard_path,
    write_shard,
)
from tests.evaluation.runs import condition, router

METRICS = {
    "arrivals": 17,
    "attainment": 1.0 / 3.0,
    "p99_all_ms": math.inf,
    "undefined": None,
    "replica_shares": np.array([0.25, 0.75]),
}
CURVES = {"latency_cdf": [0.0, 0.5, 1.0], "convergence": [[0.1, 0.5], [0.2, 0.25]]}


def result(seed: int, **metrics: object) -> Result:
    return Result(Job(router("adaptive"), condition(), seed), {**METRICS, **metrics}, dict(CURVES))


def test_an_episode_comes_back_as_it_was(tmp_path: Path) -> None:
    path = shard_path(tmp_path, 3)
    write_shard(path, encode([result(7), result(8, undefined=0.5)], seconds=1.25))
    first, second = read_table([path]).to_pylist()
    assert first == {
        "router": "adaptive",
        "condition": "steady",
        "seed": 7,
        **METRICS,
        "replica_shares": [0.25, 0.75],
        **{f"curve.{name}": curve for name, curve in CURVES.items()},
    }
    assert second["seed"] == 8 and second["undefined"] == 0.5
    assert rows_in(path) == 2
    assert seconds_of(path) == 1.25
    assert shard_files(tmp_path) == [path]


def test_shards_that_differ_in_what_is_defined_are_read_together(tmp_path: Path) -> None:
    """A column without a value has no type, and a count may be a float elsewhere."""
    write_shard(shard_path(tmp_path, 0), encode([result(0, arrivals=3)]))
    write_shard(shard_path(tmp_path, 1), encode([result(1, undefined=2.5, arrivals=None)]))
    bare = Result(Job(router("bound"), condition(), 2), {"attainment": 0.5}, {})
    write_shard(shard_path(tmp_path, 2), encode([bare]))
    table = read_table(shard_files(tmp_path))
    assert table["undefined"].to_pylist() == [None, 2.5, None]
    assert table["arrivals"].to_pylist() == [3, None, None]
    assert table["curve.latency_cdf"].to_pylist() == [CURVES["latency_cdf"]] * 2 + [None]
    few = read_table(shard_files(tmp_path), ["seed", "undefined"])
    assert few.column_names == ["seed", "undefined"] and few["seed"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_an_interrupted_write_leaves_no_shard(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shard_path(tmp_path, 0)
    data = encode([result(k) for k in range(50)])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "write":
            patch.setattr(storage.os, "fsync", interrupted)
            data_here = data[: len(data) // 2]
        else:
            owner = storage.os if moment == "fsync" else Path
            patch.setattr(owner, moment, interrupted)
            data_here = data
        with pytest.raises(KeyboardInterrupt):
            write_shard(path, data_here)
    assert rows_in(path) is None
    assert shard_files(tmp_path) == list(path.parent.iterdir()) == []
    write_shard(path, data)
    assert rows_in(path) == 50
    assert shard_files(tmp_path) == [path]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_damaged_shard_counts_for_nothing(kept: float, tmp_path: Path) -> None:
    path = shard_path(tmp_path, 0)
    data = encode([result(k) for k in range(5)])
    path.parent.mkdir(parents=True)
    path.write_bytes(data[: int(kept * len(data))])
    assert rows_in(path) is None


def test_files_are_spread_over_folders(tmp_path: Path) -> None:
    paths = [shard_path(tmp_path, number) for number in (0, 999, 1000, 123_456)]
    assert [path.parent.name for path in paths] == ["0000", "0000", "0001", "0123"]
    assert paths == sorted(paths)
