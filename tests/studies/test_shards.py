"""Shards: every episode is in one of them, whoever asks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.evaluation.results import ResultsError
from routing_gym.evaluation.runner import Condition, Router, make_jobs
from routing_gym.policy import policy_class
from routing_gym.studies.shards import ROWS, TIMED_ROWS, Player, Shards
from tests.evaluation.runs import condition, router

pytest.importorskip("pyarrow", reason="needs the extra `studies`")

ROUTERS = [router("round_robin"), router("adaptive"), router("clairvoyant"), router("bound")]
CONDITIONS = [
    condition("a", replicas=2),
    condition("b", replicas=3),
    condition("c", replicas=2, rate_per_s=90.0),
    condition("d", replicas=3, scenario="burst"),
]
BATCHES = [Condition(f"{n}", CloudEdgeConfig.create("testbed-6node", requests=n), {}) for n in (2, 5)]
BATCH_ROUTERS = [Router(name, f"cloud_edge/{name}") for name in ("round_robin", "greedy", "cema")]


@given(
    routers=st.lists(st.sampled_from(ROUTERS), min_size=1, unique_by=lambda r: r.label),
    conditions=st.lists(st.sampled_from(CONDITIONS), min_size=1, unique_by=lambda c: c.name),
    seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=300, unique=True),
)
def test_every_episode_is_in_one_shard(
    routers: list[Router], conditions: list[Condition], seeds: list[int]
) -> None:
    shards = Shards(routers, conditions, seeds)
    listed = [shards.jobs(number) for number in range(len(shards))]
    assert Counter(job.key for jobs in listed for job in jobs) == Counter(
        job.key for job in make_jobs(routers, conditions, seeds)
    )
    for number, jobs in enumerate(listed):
        assert len(jobs) == shards.episodes(number)
        assert len({(job.router.label, job.condition.config.space_key) for job in jobs}) == 1
        assert len(jobs) <= min(ROWS, policy_class(jobs[0].router.name).max_rows)
        assert [job.router for job in jobs[:1]] == list(shards.group(number).routers)


@given(seeds=st.integers(1, 40))
def test_where_decisions_are_timed_every_router_plays_an_episode_in_turn(seeds: int) -> None:
    shards = Shards(BATCH_ROUTERS, BATCHES, range(seeds))
    found = Counter()
    for number in range(len(shards)):
        jobs = shards.jobs(number)
        assert len(jobs) == shards.episodes(number) <= TIMED_ROWS * len(BATCH_ROUTERS)
        for first in range(0, len(jobs), len(BATCH_ROUTERS)):
            turn = jobs[first : first + len(BATCH_ROUTERS)]
            assert [job.router for job in turn] == BATCH_ROUTERS
            assert len({(job.condition.name, job.seed) for job in turn}) == 1
        found.update(job.key for job in jobs)
    assert found == Counter(job.key for job in make_jobs(BATCH_ROUTERS, BATCHES, range(seeds)))


def test_there_are_no_more_than_there_are() -> None:
    shards = Shards(ROUTERS[:1], CONDITIONS[:1], range(3))
    assert len(shards) == 1
    with pytest.raises(IndexError, match="there are 1 shards"):
        shards.jobs(1)


def test_what_is_planned_for_a_billion_episodes_is_not_listed() -> None:
    """A billion jobs would take hundreds of gigabytes; any shard of them is still at hand."""
    shards = Shards(ROUTERS[:1], CONDITIONS[:1], range(10**9))
    assert len(shards) == -(-(10**9) // ROWS)
    last = shards.jobs(len(shards) - 1)
    assert last[-1].seed == 10**9 - 1
    assert last[0].seed == (len(shards) - 1) * ROWS


def test_another_version_does_not_play_part_of_a_study() -> None:
    jobs = Shards(ROUTERS[:1], CONDITIONS[:1], range(1)).jobs(0)
    with pytest.raises(ResultsError, match=r"cannot play part.*numpy 0\.1, here"):
        Player(curves=False, gap=False, versions=(("numpy", "0.1"),), files=())(jobs)
