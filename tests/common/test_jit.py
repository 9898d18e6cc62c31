"""Compilation works where nothing can be written: a read-only install under a read-only home."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from routing_gym.common import jit

ONE_EPISODE = """
import errno, sys, tempfile

def refuse(*args, **kwargs):
    raise OSError(errno.EROFS, "Read-only file system")

tempfile.TemporaryFile = refuse  # Numba tries with it whether a cache folder can be written

import gymnasium as gym, routing_gym

env = gym.make("routing_gym/InferenceCluster-v0", measured_s=0.25, warmup_s=0.0, rate_per_s=300.0)
env.reset(seed=1)
over = False
while not over:
    *_, over, info = env.step(0)
print(info["episode_metrics"]["arrivals"])
"""


def plus_one(number: int) -> int:
    """Be compiled."""
    return number + 1


def refuse(*args: Any, **kwargs: Any) -> None:
    """Be a file system that takes nothing."""
    raise PermissionError("Permission denied")


def test_compiles_without_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Numba refuses to cache is compiled all the same."""
    # The tests may run as root, whom no permission stops.
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(RuntimeError, match="cannot cache function"):
        numba.njit(cache=True)(plus_one)
    assert jit.njit(plus_one)(2) == 3


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a missing cache folder is made up for."""

    def fail(cache: bool) -> Callable[..., None]:
        raise RuntimeError("something else")

    monkeypatch.setattr(numba, "njit", fail)
    with pytest.raises(RuntimeError, match="something else"):
        jit.njit(plus_one)


@pytest.mark.slow
def test_an_episode_under_a_read_only_home(tmp_path: Path) -> None:
    """Nothing can be written, neither beside the package nor at home; no warning is given."""
    blocked = tmp_path / "file"
    blocked.touch()
    below = str(blocked / "folder")  # no folder can be made below a file
    environment = {**os.environ, "HOME": below, "XDG_CACHE_HOME": below, "NUMBA_CACHE_DIR": below}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-B", "-c", ONE_EPISODE],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


def test_a_change_of_what_is_called_makes_the_cache_out_of_date(tmp_path: Path) -> None:
    """Numba itself does not notice a callee in another file, and would go on with the old code."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    header = "from routing_gym.common.jit import njit\n"
    (package / "outer.py").write_text(
        f"{header}from kernels.inner import number\n@njit\ndef twice():\n    return 2 * number()\n"
    )
    code = (
        "from kernels.outer import twice\n"
        "print(twice(), sum(twice.stats.cache_hits.values()), sum(twice.stats.cache_misses.values()))"
    )
    seen = []
    for number in (1, 1, 5):
        (package / "inner.py").write_text(f"{header}@njit\ndef number():\n    return {number}\n")
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-B", "-c", code], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        seen.append(done.stdout.split())
    assert seen == [["2", "0", "1"], ["2", "1", "0"], ["10", "0", "1"]]
