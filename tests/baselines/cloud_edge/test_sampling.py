"""The router that draws: uniform over legal destinations, one independent state per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_baselines.cloud_edge.sampling import Random
from routing_baselines.splitmix import uniform
from routing_gym.evaluation.runner import Router, make_jobs, run_jobs
from tests.cloud_edge.observations import batches, make_observation, pairs, row
from tests.evaluation.cloud_edge_runs import several

SHAPES = st.sampled_from([(), (0,), (4,), (2, 3)])


@given(drawn=batches(SHAPES), seed=st.integers(0, 2**64))
def test_it_does_as_a_plain_loop(drawn: Any, seed: int) -> None:
    """One output of SplitMix64 per request that is there, in order, window after window."""
    batch, shape = drawn
    rows = int(np.prod(shape))
    state = Random().initial_state(range(seed, seed + rows))
    words = {index: state[k : k + 1] for k, index in enumerate(np.ndindex(shape))}
    for _ in range(2):
        actions, state = Random().predict(batch, state)
        for index in np.ndindex(shape):
            shown = row(batch, index)
            chosen = [0] * len(shown["active"])
            for r in range(int(shown["active"].sum())):
                options = np.flatnonzero(pairs(shown, "legal")[r])
                words[index], u = uniform(words[index])
                chosen[r] = int(options[int(u[0] * len(options))])
            assert actions[index].tolist() == chosen
            assert state[index] == words[index][0]


@pytest.mark.parametrize("legal", [[1, 1, 1], [0, 1, 1, 0, 1], [1, 0, 1]])
def test_it_is_uniform_over_the_legal(legal: list[int]) -> None:
    """Over the requests of a batch, over windows and over rows; the 0.1 % points of χ²."""
    limit, wanted = {2: 10.8, 3: 13.8}[sum(legal)], 4000 / sum(legal)
    batch = make_observation(40, len(legal), legal=legal)
    state, windows = Random().initial_state([5]), []
    for _ in range(100):
        actions, state = Random().predict({name: each[None] for name, each in batch.items()}, state)
        windows.append(actions)
    one = {
        name: np.stack([each] * 4000) for name, each in make_observation(1, len(legal), legal=legal).items()
    }
    for chosen in (np.array(windows), Random().predict(one, Random().initial_state(range(4000)))[0]):
        counts = np.bincount(chosen.ravel(), minlength=len(legal))
        assert (counts[np.array(legal) == 0] == 0).all()
        assert ((counts[np.array(legal) == 1] - wanted) ** 2 / wanted).sum() < limit


def test_padding_and_what_is_shown_beside_do_not_change_the_draws() -> None:
    state = Random().initial_state([8])
    rng = np.random.default_rng(1)
    usual, after = Random().predict(make_observation(6, 5), state[0])
    busy = make_observation(6, 5, 9, infer_s=rng.random((6, 5)), outstanding=[0, 9, 2, 4, 1])
    padded, same = Random().predict(busy, state[0])
    assert padded[:6].tolist() == usual.tolist()
    assert after == same


def test_without_a_state_row_i_gets_the_router_s_seed_plus_i() -> None:
    batch = {name: np.stack([each] * 50) for name, each in make_observation(3, 6).items()}
    given_state = Random().initial_state(range(9, 59))
    assert Random(seed=9).predict(batch)[0].tolist() == Random().predict(batch, given_state)[0].tolist()
    assert Random(seed=9).predict(batch)[0].tolist() != Random(seed=8).predict(batch)[0].tolist()


def test_it_plays_episodes_that_its_seed_decides() -> None:
    """Its own seed follows from the episode's: alone or among others, an episode comes out the same."""
    condition = several()
    random = Router("random", "cloud_edge/random")
    both = [result.metrics["objective"] for result in run_jobs(make_jobs([random], [condition], [3, 4]))]
    alone = [result.metrics for result in run_jobs(make_jobs([random], [condition], [4]))]
    assert both[1] == alone[0]["objective"] != both[0]
    assert alone[0]["invalid_actions"] == 0
