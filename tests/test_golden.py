"""Notices a change of an environment's behaviour: a hash of fixed episodes for each id.

A hash proves nothing else. `python -m tests.test_golden` prints the file anew with the present hashes, for
a new version of an id; those of a version that was released never change.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.environments import IDS, episode, log

PATH = Path(__file__).with_name("golden.json")
GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(PATH.read_text(encoding="utf-8"))
SEED = 20


def whole(values: Any) -> bytes:
    """Return numbers as whole thousandths, -1 where undefined: platforms differ by an ulp in exp and log."""
    numbers = np.asarray(values, dtype=np.float64)
    thousandths = np.where(np.isnan(numbers), -1000.0, numbers * 1000.0)
    return np.rint(thousandths).astype("<i8").tobytes()


def trajectory_hash(env_id: str, arguments: dict[str, Any]) -> str:
    """Return the SHA-256 of an episode: observations, masks, rewards, and the request log at its end.

    The k-th decision takes the k-th valid action, counted around.
    """
    env = gym.make(env_id, **arguments).unwrapped
    digest = hashlib.sha256()
    for observation, *outcome in episode(env, seed=SEED):
        for name in sorted(observation):
            digest.update(name.encode() + whole(observation[name]))
        digest.update(whole(outcome[-1]["action_mask"]))
        if len(outcome) > 1:
            digest.update(whole(outcome[0]))
    requests = log(env)
    for name in requests.dtype.names:
        digest.update(name.encode() + whole(requests[name]))
    return digest.hexdigest()


def test_every_id_has_a_hash() -> None:
    """Of the defaults, and of episodes in which more happens."""
    assert sorted(GOLDEN) == IDS
    assert all(entries[0]["arguments"] == {} for entries in GOLDEN.values())


@pytest.mark.parametrize(
    ("env_id", "entry"),
    [
        pytest.param(env_id, entry, id=f"{env_id}-{k}")
        for env_id, entries in GOLDEN.items()
        for k, entry in enumerate(entries)
    ],
)
def test_behaviour_is_that_of_the_version(env_id: str, entry: dict[str, Any]) -> None:
    """Episodes of a released version of an id never change."""
    assert trajectory_hash(env_id, entry["arguments"]) == entry["sha256"], (
        f"{env_id} with {entry['arguments']} behaves differently than before. A change of behaviour is a new "
        "version number: register a new id beside this one, with hashes of its own in tests/golden.json"
    )


if __name__ == "__main__":
    for env_id, entries in GOLDEN.items():
        for entry in entries:
            entry["sha256"] = trajectory_hash(env_id, entry["arguments"])
    print(json.dumps(GOLDEN, indent=2))
