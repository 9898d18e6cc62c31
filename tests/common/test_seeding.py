"""Seeds: independent streams that depend on the episode's seed alone, one seed per row."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils import seeding
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.common.seeding import EpisodeStreams, new_generator, spread_seeds

STREAMS = 6
seeds = st.integers(0, 2**63 - 1)


@given(seeds)
def test_streams_are_the_children_of_the_episode_seed(seed: int) -> None:
    streams = EpisodeStreams(new_generator(seed))
    entropy = int(new_generator(seed).integers(2**63))
    for k, child in enumerate(np.random.SeedSequence(entropy).spawn(STREAMS)):
        expected = np.random.Generator(np.random.PCG64(child))
        assert streams[k].bit_generator.state == expected.bit_generator.state
        assert streams[k].random(3).tobytes() == expected.random(3).tobytes()


@given(
    seeds, st.permutations(range(STREAMS)), st.lists(st.integers(0, 50), min_size=STREAMS, max_size=STREAMS)
)
def test_a_stream_does_not_depend_on_what_others_draw(seed: int, order: list[int], sizes: list[int]) -> None:
    alone = EpisodeStreams(new_generator(seed))
    mixed = EpisodeStreams(new_generator(seed))
    for k in order:
        mixed[k].random(sizes[k])
    for k in range(STREAMS):
        assert alone[k].random(sizes[k] + 2)[-2:].tobytes() == mixed[k].random(2).tobytes()


def test_an_episode_takes_one_draw() -> None:
    used, counted = new_generator(3), new_generator(3)
    streams = EpisodeStreams(used)
    counted.integers(2**63)
    assert used.bit_generator.state == counted.bit_generator.state
    streams[0].random(100)
    assert used.bit_generator.state == counted.bit_generator.state


def test_streams_and_episodes_differ() -> None:
    rng = new_generator(0)
    episodes = [EpisodeStreams(rng), EpisodeStreams(rng)]
    draws = [float(streams[k].random()) for streams in episodes for k in range(STREAMS)]
    assert len(set(draws)) == 2 * STREAMS


def test_streams_are_uncorrelated() -> None:
    """64 000 pairs per two streams: a correlation beyond 5/√n is no chance."""
    rng = new_generator(0)
    draws = [
        [streams[k].random(1000) for k in range(STREAMS)]
        for streams in (EpisodeStreams(rng) for _ in range(64))
    ]
    correlation = np.corrcoef(np.array(draws).swapaxes(0, 1).reshape(STREAMS, -1))
    assert np.abs(correlation - np.eye(STREAMS)).max() < 5 / np.sqrt(64_000)


@given(st.integers(0, 2**40), st.integers(0, 20))
def test_row_i_of_an_integer_seed_gets_that_plus_i(seed: int, rows: int) -> None:
    assert spread_seeds(seed, rows) == [seed + row for row in range(rows)]
    spread = spread_seeds(np.int64(seed), rows)
    assert spread == spread_seeds(seed, rows)
    assert all(type(entry) is int for entry in spread)


def test_other_forms_of_seeds() -> None:
    assert spread_seeds(None, 3) == [None, None, None]
    assert spread_seeds([5, None, 7], 3) == [5, None, 7]
    assert spread_seeds((5, 6), 2) == [5, 6]


@pytest.mark.parametrize("given_seeds", [[1, 2], [1, 2, 3, 4], []])
def test_as_many_seeds_as_rows(given_seeds: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"seed has {len(given_seeds)} entries; there are 3 rows"):
        spread_seeds(given_seeds, 3)


@given(st.integers(0, 2**63))
def test_the_generator_is_the_one_that_gymnasium_makes(seed: int) -> None:
    assert new_generator(seed).bit_generator.state == seeding.np_random(seed)[0].bit_generator.state
