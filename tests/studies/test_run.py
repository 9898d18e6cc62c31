"""Studies from start to finish: the same episodes each, each once, whatever happens in between."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

pytest.importorskip("pyarrow", reason="needs the extra `studies`")
pytest.importorskip("joblib", reason="needs the extra `studies`")

from routing_gym.common.config import ConfigError, load_yaml, validate
from routing_gym.evaluation.compare import compare
from routing_gym.evaluation.results import ResultsError, read_episodes, read_plan
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS, VALIDATION_SEEDS, Router, make_jobs
from routing_gym.studies import run as module
from routing_gym.studies import sizes
from routing_gym.studies.config import Study
from routing_gym.studies.engines import Engine
from routing_gym.studies.results import KEY, read_part, read_parts
from routing_gym.studies.shards import Player
from routing_gym.studies.storage import rows_in, shard_files
from tests.evaluation.runs import assert_same_metrics, hide_matplotlib
from tests.studies.runs import cloud_edge_part, cluster_part, played, some_shards, study_of, table_of

CHOSEN = {"candidates": [{"adaptive": {"c": [0.0, 0.35, 2.0]}}], "reference": None}
STUDY = study_of(a=cluster_part(), b=cloud_edge_part())


@pytest.fixture(scope="module", autouse=True)
def short_samples() -> Iterator[None]:
    """How long a study takes is told from longer samples than these tests have time for."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sizes, "SAMPLE_S", 0.0)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, played without anything in between."""
    out = tmp_path_factory.mktemp("whole")
    played(STUDY, out)
    return out


@pytest.fixture
def shards_played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The shards that are played from here on, by stage."""
    found: list[tuple[str, int]] = []
    play = Engine.play

    def watched(self: Engine, player: Any, shards: Any, numbers: Any) -> Any:
        for number, data in play(self, player, shards, numbers):
            found.append((shards.jobs(number)[0].condition.config.__class__.__name__, number))
            yield number, data

    monkeypatch.setattr(Engine, "play", watched)
    return found


def assert_whole(out: Path, whole: Path) -> None:
    """Assert that every episode is there once, and as it is when nothing comes in between."""
    for name, part in STUDY.parts.items():
        table = table_of(out / name)
        keys = Counter(zip(*(table[key].to_pylist() for key in KEY), strict=True))
        jobs = make_jobs(
            [router for routers in part.groups().values() for router in routers],
            part.conditions_played(),
            part.seeds_played("3"),
        )
        assert keys == Counter(job.key for job in jobs)
        assert table.equals(table_of(whole / name))


def test_two_workers_play_what_one_plays(whole: Path, tmp_path: Path) -> None:
    played(STUDY, tmp_path, Engine("joblib", 2))
    assert_whole(tmp_path, whole)


def test_a_study_plays_what_a_comparison_plays(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    for name, part in STUDY.parts.items():
        routers = [router for routers in part.groups().values() for router in routers]
        conditions = part.conditions_played()
        compare(part.family, routers, conditions, part.seeds_played("3"), tmp_path / name, gap=False)
        compared, mine = read_part(tmp_path / name), read_part(whole / name)
        assert compared.complete() and mine.complete()
        assert (compared.routers, compared.seeds, compared.roles) == (mine.routers, mine.seeds, mine.roles)
        for metric in read_episodes(tmp_path / name)[0]:
            if metric in ("replica_shares", "destination_shares", "config_hash", "decision_ms"):
                continue
            if metric in KEY or "decision_ms" in metric or metric in conditions[0].labels:
                continue
            assert (compared.scores(metric) == mine.scores(metric)).all() or _both_undefined(
                compared.scores(metric), mine.scores(metric)
            )
        for condition in conditions:
            place = {tuple(row[key] for key in KEY): row for row in compared.rows(condition.name)}
            for row in mine.rows(condition.name):
                other = place[tuple(row[key] for key in KEY)]
                shared = [m for m in row if m in other and "decision_ms" not in m]
                assert len(shared) > 15
                assert_same_metrics({m: row[m] for m in shared}, {m: other[m] for m in shared})


def _both_undefined(a: Any, b: Any) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def test_a_study_that_is_played_is_not_played_again(
    whole: Path, shards_played: list[tuple[str, int]]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.parquet")}
    played(STUDY, whole)
    assert shards_played == []
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.parquet")} == before


def test_an_interrupted_study_plays_only_what_is_left(
    whole: Path, tmp_path: Path, shards_played: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after every shard in turn."""
    write, left = module.write_shard, len(shard_files(whole / "a")) + len(shard_files(whole / "b"))
    interrupts = 0

    def interrupted(path: Path, data: bytes) -> None:
        write(path, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_shard", interrupted)
    while interrupts <= left:
        try:
            played(STUDY, tmp_path)
            break
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == left
    assert len(shards_played) == len(set(shards_played)) == left
    assert_whole(tmp_path, whole)


def test_a_damaged_or_missing_shard_is_played_again(
    whole: Path, tmp_path: Path, shards_played: list[tuple[str, int]]
) -> None:
    played(STUDY, tmp_path)
    first, second, *_ = shard_files(tmp_path / "a")
    first.write_bytes(first.read_bytes()[:-100])
    second.unlink()
    shards_played.clear()
    played(STUDY, tmp_path)
    assert [number for _, number in shards_played] == [0, 1]
    assert_whole(tmp_path, whole)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_a_killed_study_goes_on(shards: int, whole: Path, tmp_path: Path) -> None:
    """Killed with no warning while two workers play, once so many shards are on disk."""
    parts = {name: part.model_dump(mode="json") for name, part in STUDY.parts.items()}
    file = tmp_path / "short.yaml"
    file.write_text(yaml.safe_dump({"title": "Short", "parts": parts}, sort_keys=False), encoding="utf-8")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "routing_gym.cli", "study", str(file), "--seeds", "3"]
    command += ["--out", str(out), "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120.0
        while len(list(out.rglob("*.parquet"))) < shards and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert rows_in(shard_files(out / "a")[0])
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert_whole(out, whole)


def test_another_run_is_not_gone_on_with(whole: Path) -> None:
    for changed, what in (
        (cluster_part(reference="round_robin"), "reference differ"),
        (cluster_part(fields={"warmup_s": 0.125, "measured_s": 0.5}), "conditions differ"),
        (cluster_part(curves=True), "curves differ"),
    ):
        with pytest.raises(ResultsError, match=what):
            played(study_of(a=changed), whole)
    with pytest.raises(ResultsError, match="seeds differ"):
        played(STUDY, whole, seeds="2")


def test_a_study_begun_by_another_version_is_not_gone_on_with(whole: Path, tmp_path: Path) -> None:
    played(study_of(a=cluster_part()), tmp_path, seeds="1")
    file = tmp_path / "a" / "config.yaml"
    file.write_text(file.read_text().replace("numba: ", "numba: 0."), encoding="utf-8")
    with pytest.raises(ResultsError, match=r"numba 0\..*, here"):
        played(study_of(a=cluster_part()), tmp_path, seeds="1")


def test_a_part_with_a_selection_is_not_gone_on_with_as_another_run(tmp_path: Path) -> None:
    played(study_of(a=cluster_part(**CHOSEN)), tmp_path, seeds="1")
    more = {"documented": ["round_robin", "least_queue"]}
    with pytest.raises(ResultsError, match="routers"):
        played(study_of(a=cluster_part(**CHOSEN, routers=more)), tmp_path, seeds="1")


def test_a_selection_of_an_earlier_run_is_none_of_this_one(tmp_path: Path) -> None:
    """What it chose may be named as the reference afterwards: the same run, but nothing was chosen in it."""
    (first,) = played(study_of(a=cluster_part(**CHOSEN)), tmp_path, seeds="1")
    assert first.selection is not None
    (again,) = played(study_of(a=cluster_part(reference=first.reference)), tmp_path, seeds="1")
    assert again.selection is None and again.plan["run"] == first.plan["run"]


def test_overwriting_throws_away_a_study_and_nothing_else(tmp_path: Path) -> None:
    played(study_of(a=cluster_part(**CHOSEN)), tmp_path, seeds="2")
    (tmp_path / "a" / "notes.txt").write_text("mine", encoding="utf-8")
    results = played(study_of(a=cluster_part()), tmp_path, seeds="1", overwrite=True)
    assert results[0].seeds == list(VALIDATION_SEEDS[:1]) and results[0].selection is None
    assert results[0].complete()
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_matplotlib(monkeypatch)
    part = STUDY.parts["a"]
    routers, conditions = part.groups()["documented"], part.conditions_played()[:1]
    compare(part.family, routers, conditions, [1], tmp_path / "a")
    with pytest.raises(ResultsError, match="holds a comparison"):
        played(STUDY, tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.yaml").write_text("name: mine\n", encoding="utf-8")
    with pytest.raises(ResultsError, match=r"is not the config\.yaml of a results folder"):
        played(study_of(b=cloud_edge_part()), tmp_path, overwrite=True)
    assert (tmp_path / "b" / "config.yaml").read_text() == "name: mine\n"


def test_sizes_are_stated_before_anything_is_played(tmp_path: Path) -> None:
    console = Console(record=True, width=140, file=io.StringIO())
    assert played(STUDY, tmp_path / "out", console=console, sizes_only=True) == []
    assert not (tmp_path / "out").exists()
    text = console.export_text()
    lines = {line.split()[1]: line.split() for line in text.splitlines() if line.startswith("│ ")}
    # routers, conditions, seeds, episodes, left
    assert lines["a"][3:12:2] == ["4", "4", "3", "48", "48"]
    assert lines["b"][3:12:2] == ["3", "2", "3", "18", "18"]
    assert "66 episodes take about" in text


# Selection


def test_selection_sees_development_seeds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does it play others, nor do others change what is chosen."""
    (results,) = played(study_of(a=cluster_part(**CHOSEN)), tmp_path, seeds="24")
    assert results.selection is not None
    for found, seeds in ((results.selection, DEVELOPMENT_SEEDS), (results, VALIDATION_SEEDS)):
        assert found.seeds == list(seeds)
        assert set(table_of(found.folder)["seed"].to_pylist()) == set(seeds)
    means = results.selection.scores("attainment").mean(axis=(1, 2))
    assert results.selection.routers == ["adaptive:c=0.0", "adaptive:c=0.35", "adaptive:c=2.0"]
    best = results.selection.routers[int(means.argmax())]
    assert results.reference == best
    assert results.part["groups"]["fixed"] == ["random", best]


def test_the_best_candidate_is_chosen_by_the_sign_of_the_score(tmp_path: Path) -> None:
    candidates = ["round_robin", "greedy", "local_search"]
    (results,) = played(study_of(b=cloud_edge_part(candidates=candidates, reference=None)), tmp_path)
    assert results.selection is not None
    means = dict(zip(candidates, results.selection.scores("objective").mean(axis=(1, 2)), strict=True))
    assert results.reference == min(means, key=lambda label: means[label])
    assert results.reference != "round_robin"


@pytest.mark.parametrize(
    "seeds", [f"{DEVELOPMENT_SEEDS[0]}-{DEVELOPMENT_SEEDS[-1]}", "1000000-1000003", "20000,10007"]
)
def test_what_is_reported_is_never_of_seeds_that_something_was_chosen_by(seeds: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="may have been seen in training or selection"):
        played(STUDY, tmp_path, seeds=seeds)
    with pytest.raises(ConfigError, match="may have been seen in training or selection"):
        study_of(a=cluster_part(seeds=seeds))


@pytest.mark.slow
def test_a_selection_that_was_interrupted_chooses_what_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(a=cluster_part(**CHOSEN))
    (expected,) = played(study, tmp_path / "whole")
    write, writes = module.write_shard, 0

    def interrupted(path: Path, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == 3:
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(module, "write_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        played(study, tmp_path / "cut")
    (found,) = played(study, tmp_path / "cut")
    assert found.reference == expected.reference
    assert found.plan["run"] == expected.plan["run"]
    for part in ("a", "a/selection"):
        assert table_of(tmp_path / "cut" / part).equals(table_of(tmp_path / "whole" / part))


# What cannot be played is said before anything is


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (cluster_part(reference="nobody"), "nobody"),
        (cluster_part(reference="cloud_edge/greedy"), "is one of cloud_edge, not of cluster"),
        (cluster_part(conditions={"rate_per_s": [100, 100]}), "is listed twice"),
        (cluster_part(axis="lod"), r"axis = 'lod': must be a number, load, rate_per_s, replicas"),
        (cluster_part(conditions={"replicsa": [2]}), "replicsa is not a field"),
        (cluster_part(routers={"fixed": ["adaptive:c=much"]}), "c"),
        (cluster_part(reference="adaptive,random"), "reference = 'adaptive,random': must be one router"),
        (cluster_part(candidates=["adaptive"]), "reference = 'adaptive': the candidates choose it"),
        (cluster_part(published={"adptive": 0.7}), r"published\.adptive: does not play"),
        (cluster_part(routers={"fixed": ["bound"]}), "fixed: bound is a yardstick, not a router"),
        (cluster_part(routers={"yardsticks": ["random"]}), "yardsticks: random is a router, not a yardstick"),
        (cluster_part(candidates=["bound"], reference=None), "bound is a yardstick, not a router"),
        (cluster_part(gap=True), "gap = true: is of cloud_edge"),
        (
            cluster_part(conditions={"scenario": ["steady"]}, axis="scenario"),
            "axis = 'scenario': must be a number",
        ),
    ],
)
def test_errors_name_what_is_wrong(part: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        played(study_of(a=cluster_part(), z=part), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "", ".", "a/b", "selection", "shards", "figures"])
def test_a_part_is_named_as_a_folder_can_be(name: str) -> None:
    with pytest.raises(ConfigError, match="is the name of a folder"):
        validate(Study, {"title": "Short", "parts": {name: cluster_part()}})


def test_a_key_that_stands_twice_is_not_overlooked(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("title: One\nparts: {}\ntitle: Two\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="'title' stands twice"):
        Study.create(file)
    # What a merge brings may be laid over, at any depth, and merged again.
    text = "a: {b: &b {x: 1, y: 1}, c: &c {<<: *b, y: 2}}\nd: {<<: *c, x: 3}\n"
    file.write_text(text, encoding="utf-8")
    assert load_yaml("studies", file) == yaml.safe_load(text)


@pytest.mark.slow
def test_two_at_once_end_with_the_same(whole: Path, tmp_path: Path) -> None:
    """Both play everything, and neither spoils what the other has written."""
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(played, STUDY, tmp_path) for _ in range(2)]:
            one.result()
    assert_whole(tmp_path, whole)
    assert not list(tmp_path.rglob("*.part"))


def test_weights_that_have_changed_are_noticed_where_they_are_played(tmp_path: Path) -> None:
    jobs = some_shards().jobs(0)
    player = Player(False, False, (), (), fingerprints=(("weights", "of the beginning"),))
    assert player(jobs)  # a router without files has none to differ
    learned = [job._replace(router=Router("mine", "cluster/learned", {})) for job in jobs]
    with pytest.raises(ResultsError, match="the files of mine are others than where this was begun"):
        player(learned)


def test_a_study_tells_its_parts_in_its_own_order(tmp_path: Path) -> None:
    study = study_of(z=cluster_part(), a=cluster_part())
    played(study, tmp_path, seeds="1")
    about = yaml.safe_load((tmp_path / "study.yaml").read_text(encoding="utf-8"))
    assert about == {"title": "Short", "about": "", "parts": ["z", "a"]}
    assert [part.name for part in read_parts(tmp_path, about["parts"])] == ["z", "a"]
    assert read_plan(tmp_path / "z")["part"]["groups"]["yardsticks"] == ["bound"]


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"routing-gym\[studies\]"):
        played(STUDY, tmp_path, Engine("joblib", 2))
    with pytest.raises(ImportError, match=r"routing-gym\[scale\]"):
        played(STUDY, tmp_path, Engine("ray", 2))
    assert list(tmp_path.iterdir()) == []
