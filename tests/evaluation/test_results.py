"""Result folders: what is written comes back exactly, and an interrupted run loses no finished episode."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.metrics import METRICS
from routing_gym.common.config import config_hash
from routing_gym.evaluation import results
from routing_gym.evaluation.results import (
    CURVES,
    EPISODES,
    PLAN,
    SUMMARIES,
    ResultFolder,
    ResultsError,
    read_curves,
    read_episodes,
    read_plan,
    strict_json,
)
from routing_gym.evaluation.runner import Job, Router
from tests.evaluation.runs import condition, made_up, made_up_run, plan_of, read_bytes, router, same


def fill(path: Path, plan: dict[str, Any], jobs: Sequence[Job], **how: bool) -> ResultFolder:
    """Put the made-up results of a run into a folder, those that it lacks."""
    folder = ResultFolder(path, plan, **how)
    for job in jobs:
        if job.key not in folder.done:
            folder.add(made_up(job))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished made-up run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole")
    plan, jobs = made_up_run()
    fill(path, plan, jobs).finish()
    return path


# What is written comes back


def test_every_metric_comes_back_exactly(tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    folder = fill(tmp_path, plan, jobs)
    for rows in (read_episodes(tmp_path), folder.finish(), read_episodes(tmp_path)):
        found = {(row["router"], row["condition"], row["seed"]): row for row in rows}
        assert found.keys() == {job.key for job in jobs}
        for job in jobs:
            row, metrics = found[job.key], made_up(job).metrics
            assert [name for name in METRICS if not same(row[name], metrics[name])] == []
            assert row["config_hash"] == config_hash(job.condition.config)
            assert {name: row[name] for name in job.condition.labels} == job.condition.labels


def test_cells_are_what_a_reader_expects(tmp_path: Path) -> None:
    plan, [job, *_] = made_up_run()
    result = made_up(job, unfinished=None, arrivals=3, p99_all_ms=float("inf"), mean_latency_ms=0.1 + 0.2)
    ResultFolder(tmp_path, plan).add(result)
    with open(tmp_path / EPISODES, newline="", encoding="utf-8") as file:
        [row] = csv.DictReader(file)
    assert row["condition"] == 'place 0, "quoted", 5/s'
    assert (row["unfinished"], row["arrivals"], row["p99_all_ms"]) == ("", "3", "inf")
    assert row["mean_latency_ms"] == "0.30000000000000004"
    assert json.loads(row["replica_shares"]) == result.metrics["replica_shares"].tolist()


def test_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    one = router("least_queue", label="007")
    plan = plan_of([one], [condition("1e5")], [1])
    folder = fill(tmp_path, plan, [Job(one, condition("1e5"), 1)])
    [row] = folder.finish()
    assert (row["router"], row["condition"], row["seed"]) == ("007", "1e5", 1)


def test_numpy_numbers_are_written_as_numbers(tmp_path: Path) -> None:
    plan, [job, *_] = made_up_run()
    folder = ResultFolder(tmp_path, plan)
    folder.add(made_up(job, arrivals=np.int64(2**53 + 1), attainment=np.float64(0.1)))
    [row] = folder.finish()
    assert (row["arrivals"], row["attainment"]) == (2**53 + 1, 0.1)


def test_conditions_may_have_columns_of_their_own(tmp_path: Path) -> None:
    one, plain = router("least_queue"), condition("plain")
    places = [plain, type(plain)("other", plain.config, {"replicas": 3})]
    jobs = [Job(one, place, 1) for place in places]
    rows = fill(tmp_path, plan_of([one], places, [1]), jobs).finish()
    assert [row["replicas"] for row in rows] == [None, 3]
    assert [row["scenario"] for row in rows] == ["steady", None]


def test_curves_come_back_and_a_yardstick_has_none(tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    fill(tmp_path, plan, jobs).finish()
    found = {(c["router"], c["condition"], c["seed"]): c for c in read_curves(tmp_path)}
    assert found.keys() == {job.key for job in jobs if job.router.label != "bound"}
    for job in jobs:
        for name, values in made_up(job).curves.items():
            assert found[job.key][name] == values


def test_the_same_run_gives_the_same_bytes_in_whatever_order_it_is_played(
    tmp_path: Path, whole: Path
) -> None:
    plan, jobs = made_up_run()
    rng = np.random.default_rng(3)
    for k in range(3):
        order = [jobs[i] for i in rng.permutation(len(jobs))]
        fill(tmp_path / str(k), plan, order).finish()
        assert read_bytes(tmp_path / str(k), EPISODES, CURVES) == read_bytes(whole, EPISODES, CURVES)


def test_rows_are_in_the_plans_order(whole: Path) -> None:
    keys = [(row["condition"][:7], row["router"], row["seed"]) for row in read_episodes(whole)]
    listed = ["least_queue", "bound"]
    expected = [(f"place {k}", name, 30_000 + seed) for k in (0, 1) for name in listed for seed in (0, 1)]
    assert keys == expected


def test_finishing_twice_changes_nothing(tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    folder = fill(tmp_path, plan, jobs)
    folder.finish()
    before = read_bytes(tmp_path, EPISODES, CURVES)
    folder.finish()
    assert read_bytes(tmp_path, EPISODES, CURVES) == before
    assert {path.name for path in tmp_path.iterdir()} == {EPISODES, CURVES, PLAN}, "nothing else is left over"


# Interrupted and taken up again


@pytest.mark.parametrize("name", [EPISODES, CURVES])
def test_a_file_that_ends_anywhere_is_taken_up(name: str, whole: Path, tmp_path: Path) -> None:
    """Whatever part of a file a crash has left, the episodes that are not whole are played again."""
    plan, jobs = made_up_run()
    fill(tmp_path / "first", plan, jobs)  # as they were played: curves before rows, nothing sorted
    content = (tmp_path / "first" / name).read_bytes()
    ends = {*range(0, len(content), max(1, len(content) // 14)), len(content) - 1, len(content) - 2}
    replayed = []
    for end in sorted(ends):
        path = tmp_path / str(end)
        shutil.copytree(tmp_path / "first", path)
        (path / name).write_bytes(content[:end])
        folder = ResultFolder(path, plan, resume=True)
        left = [job for job in jobs if job.key not in folder.done]
        replayed.append(len(left))
        assert left or end >= len(content) - 1
        for job in left:
            folder.add(made_up(job))
        folder.finish()
        assert read_bytes(path, EPISODES, CURVES) == read_bytes(whole, EPISODES, CURVES)
    assert replayed[0] >= 4
    assert sorted(replayed, reverse=True) == replayed, "a longer file holds more episodes"


def test_an_episode_is_done_only_with_its_row_and_its_curves(tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    folder = fill(tmp_path, plan, jobs)
    assert folder.done == {job.key for job in jobs}
    first, second = jobs[:2]
    rows = (tmp_path / EPISODES).read_bytes().splitlines(keepends=True)
    (tmp_path / EPISODES).write_bytes(b"".join([rows[0], *rows[2:]]))  # curves without a row
    lines = (tmp_path / CURVES).read_bytes().splitlines(keepends=True)
    (tmp_path / CURVES).write_bytes(b"".join([lines[0], *lines[2:]]))  # a row without curves
    folder = ResultFolder(tmp_path, plan, resume=True)
    assert folder.done == {job.key for job in jobs} - {first.key, second.key}
    assert {(row["router"], row["condition"], row["seed"]) for row in read_episodes(tmp_path)} == folder.done
    assert len(read_curves(tmp_path)) == 2, "the lonely curves are gone"


def test_a_run_without_curves_needs_none(tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    plan["run"]["curves"] = False
    folder = ResultFolder(tmp_path, plan)
    for job in jobs[:3]:
        folder.add(made_up(job, curves=False))
    assert ResultFolder(tmp_path, plan, resume=True).done == {job.key for job in jobs[:3]}


def test_an_episode_kept_twice_counts_once(tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    folder = fill(tmp_path, plan, jobs)
    folder.add(made_up(jobs[0]))
    folder = ResultFolder(tmp_path, plan, resume=True)
    assert len(folder.finish()) == len(jobs)


def test_resuming_what_is_finished_leaves_nothing_to_do(tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    fill(tmp_path, plan, jobs).finish()
    before = read_bytes(tmp_path, EPISODES, CURVES)
    folder = ResultFolder(tmp_path, plan, resume=True)
    assert folder.done == {job.key for job in jobs}
    folder.finish()
    assert read_bytes(tmp_path, EPISODES, CURVES) == before


def test_resuming_where_nothing_is_begins(tmp_path: Path, whole: Path) -> None:
    plan, jobs = made_up_run()
    fill(tmp_path / "new" / "folder", plan, jobs, resume=True).finish()
    assert read_bytes(tmp_path / "new" / "folder", EPISODES) == read_bytes(whole, EPISODES)


def test_a_run_interrupted_before_its_first_episode_is_taken_up(tmp_path: Path, whole: Path) -> None:
    plan, jobs = made_up_run()
    ResultFolder(tmp_path, plan)
    fill(tmp_path, plan, jobs, resume=True).finish()
    assert read_bytes(tmp_path, EPISODES) == read_bytes(whole, EPISODES)


def other_plans() -> dict[str, dict[str, Any]]:
    """Plans that differ from that of `made_up_run`, by what differs."""
    plan, _ = made_up_run()
    listed = [router("least_queue"), router("bound")]
    places = [condition(f'place {k}, "quoted", 5/s', rate_per_s=float(k + 1)) for k in range(2)]
    seeds = plan["run"]["seeds"]
    hotter = [places[0], condition(places[1].name, rate_per_s=2.5)]
    older = {**plan, "versions": {**plan["versions"], "numpy": "1.0"}}
    return {
        "seeds": plan_of(listed, places, [*seeds, 5]),
        "routers": plan_of([Router("least_queue", "cluster/adaptive"), listed[1]], places, seeds),
        "conditions": plan_of(listed, hotter, seeds),
        "reference": plan_of(listed, places, seeds, reference="bound"),
        "curves": plan_of(listed, places, seeds, curves=False),
        "numpy 1.0": older,
    }


@pytest.mark.parametrize("difference", list(other_plans()))
def test_another_run_is_not_taken_up(difference: str, tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    fill(tmp_path, other_plans()[difference], jobs[:1])
    before = read_bytes(tmp_path, EPISODES, CURVES, PLAN)
    with pytest.raises(ResultsError, match="holds another run") as raised:
        ResultFolder(tmp_path, plan, resume=True)
    message = str(raised.value)
    named = [name for name in other_plans() if name in message]
    expected = [difference] if difference != "numpy 1.0" else ["numpy 1.0"]
    assert named == expected, message
    assert "--overwrite" in message
    assert read_bytes(tmp_path, EPISODES, CURVES, PLAN) == before, "a refusal touches nothing"


def test_where_or_by_what_command_a_run_was_begun_does_not_matter(tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    fill(tmp_path, {**plan, "command": "another", "machine": "another", "python": "3.0"}, jobs[:3])
    assert len(ResultFolder(tmp_path, plan, resume=True).done) == 3


# Folders that are not what they should be


@pytest.mark.parametrize("name", [EPISODES, CURVES, PLAN])
def test_what_a_folder_holds_is_not_overwritten_unasked(name: str, tmp_path: Path) -> None:
    plan, _ = made_up_run()
    (tmp_path / name).write_text("precious\n")
    with pytest.raises(ResultsError, match=r"already holds a run; go on with --resume, or --overwrite"):
        ResultFolder(tmp_path, plan)
    assert (tmp_path / name).read_text() == "precious\n"


def test_other_files_are_no_run_and_stay(tmp_path: Path) -> None:
    plan, jobs = made_up_run()
    (tmp_path / "notes.txt").write_text("mine")
    fill(tmp_path, plan, jobs).finish()
    fill(tmp_path, plan, jobs, overwrite=True).finish()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_overwriting_throws_away_all_that_was_made_of_the_old_run(tmp_path: Path, whole: Path) -> None:
    _, jobs = made_up_run()
    fill(tmp_path, other_plans()["seeds"], jobs[:1])
    for name in SUMMARIES:
        (tmp_path / name).write_text("of the old run")
    plan, jobs = made_up_run()
    folder = fill(tmp_path, plan, jobs, overwrite=True)
    assert not [name for name in SUMMARIES if (tmp_path / name).exists()]
    folder.finish()
    assert read_bytes(tmp_path, EPISODES, CURVES) == read_bytes(whole, EPISODES, CURVES)


def test_a_config_that_is_no_plan_is_never_thrown_away(tmp_path: Path) -> None:
    plan, _ = made_up_run()
    (tmp_path / PLAN).write_text("rate_per_s: 100\n")
    for how in ({"overwrite": True}, {"resume": True}):
        with pytest.raises(ResultsError, match=r"config\.yaml is not the config\.yaml of a results folder"):
            ResultFolder(tmp_path, plan, **how)
        assert (tmp_path / PLAN).read_text() == "rate_per_s: 100\n"


def test_results_without_a_plan_are_not_taken_up(tmp_path: Path, whole: Path) -> None:
    plan, jobs = made_up_run()
    fill(tmp_path, plan, jobs)
    (tmp_path / PLAN).unlink()
    with pytest.raises(ResultsError, match=r"without config\.yaml; --overwrite"):
        ResultFolder(tmp_path, plan, resume=True)
    fill(tmp_path, plan, jobs, overwrite=True).finish()
    assert read_bytes(tmp_path, EPISODES) == read_bytes(whole, EPISODES)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    plan, _ = made_up_run()
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="file is a file; results need a folder"):
        ResultFolder(tmp_path / "file", plan)
    with pytest.raises(ResultsError, match=r"cannot write results to .*below: Not a directory"):
        ResultFolder(tmp_path / "file" / "below", plan)


@pytest.mark.parametrize(
    "text", ["", "1", "[]", "a: 1", "run: 3", "run: {}", "run: {family: cluster, routers: [], seeds: []}"]
)
def test_what_is_not_a_plan_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / PLAN).write_text(text)
    with pytest.raises(ResultsError, match=r"is not the config\.yaml of a results folder"):
        read_plan(tmp_path)


@pytest.mark.parametrize("content", [b"[1", b"\xff\xfe\x00", b"a: b: c"])
def test_what_cannot_be_read_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / PLAN).write_bytes(content)
    for path in (tmp_path, tmp_path / PLAN, tmp_path / "absent"):
        with pytest.raises(ResultsError, match="cannot read the plan"):
            read_plan(path)


# The plan


def test_the_plan_is_enough_to_run_it_again(tmp_path: Path) -> None:
    routers = [router("adaptive", "adaptive:c=.2", c=0.2), router("bound")]
    events = [{"time_s": 0.25, "kind": "slowdown", "replica": 2, "factor": 1.1}]
    places = [condition("a", events=events, load=1 / 3), condition("b", reward=[0.1, -1, 0, 0, 0])]
    plan = plan_of(routers, places, [3, 1])
    ResultFolder(tmp_path, plan)
    for path in (tmp_path, tmp_path / PLAN):
        run = read_plan(path)["run"]
        assert [Router(**entry) for entry in run["routers"]] == routers
        for entry, place in zip(run["conditions"], places, strict=True):
            config = ClusterConfig.create(entry["config"])
            assert config == place.config
            assert config_hash(config) == entry["config_hash"]
            assert (entry["name"], entry["labels"]) == (place.name, place.labels)
        assert run["seeds"] == [3, 1]


def test_the_plan_names_ids_versions_hashes_seeds_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/routing-gym", "compare", "--set", "reward=[1, 0]"])
    plan, _ = made_up_run()
    ResultFolder(tmp_path, plan)
    kept = yaml.safe_load((tmp_path / PLAN).read_text(encoding="utf-8"))
    assert kept["run"]["environment"] == "routing_gym/InferenceCluster-v0"
    assert kept["command"] == "routing-gym compare --set 'reward=[1, 0]'", "a shell must read it back"
    assert {"routing-gym", "gymnasium", "numpy", "numba"} <= kept["versions"].keys()
    assert kept["versions"]["numpy"] == np.__version__
    assert all(len(entry["config_hash"]) == 16 for entry in kept["run"]["conditions"])


def test_two_configs_never_share_a_hash_in_a_run() -> None:
    plan, _ = made_up_run(conditions=4)
    assert len({entry["config_hash"] for entry in plan["run"]["conditions"]}) == 4


# JSON


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_json_knows_no_infinity_and_no_nan() -> None:
    inf, nan = float("inf"), float("nan")
    value = {"a": inf, "b": [1.5, -inf, (nan, None, "inf")], "c": {"d": np.float64("inf"), "e": 3, "f": True}}
    text = json.dumps(strict_json(value), allow_nan=False)
    assert json.loads(text, parse_constant=refuse) == {
        "a": "inf",
        "b": [1.5, "-inf", [None, None, "inf"]],
        "c": {"d": "inf", "e": 3, "f": True},
    }


def test_files_of_lines_are_strict_json(whole: Path) -> None:
    for line in (whole / CURVES).read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    assert results.read_curves(whole)
