"""Engines: the same shards whoever plays them, and lost workers are made up for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("pyarrow", reason="needs the extra `studies`")
pytest.importorskip("joblib", reason="needs the extra `studies`")

from routing_gym.evaluation.results import ResultsError
from routing_gym.studies import shards as shards_module
from routing_gym.studies.engines import LOSSES, Engine, Play
from routing_gym.studies.shards import Player, Shards
from routing_gym.studies.storage import write_shard
from tests.studies.runs import (
    IN_PROCESS,
    PLAYER,
    Dying,
    cluster_part,
    played,
    some_shards,
    study_of,
    table_of,
)

TWO = Engine("joblib", 2)


def rows_of(shards: Shards, engine: Engine, player: Play, folder: Path) -> list[dict[str, object]]:
    """Return the episodes of all shards, each of which is played once."""
    numbers = range(len(shards))
    found = list(engine.play(player, shards, numbers))
    assert sorted(number for number, _ in found) == list(numbers)
    for number, data in found:
        write_shard(folder / "shards" / "0000" / f"{number:08d}.parquet", data)
    rows: list[dict[str, object]] = table_of(folder).to_pylist()
    return rows


def test_processes_play_what_one_process_plays(tmp_path: Path) -> None:
    shards = some_shards()
    alone = rows_of(shards, IN_PROCESS, PLAYER, tmp_path / "alone")
    assert len(alone) == 20
    assert rows_of(shards, TWO, PLAYER, tmp_path / "two") == alone


def test_what_a_lost_worker_had_in_hand_is_played_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.mkdir()
    shards = some_shards()
    alone = rows_of(shards, IN_PROCESS, PLAYER, tmp_path / "alone")
    rows = rows_of(shards, TWO, Dying(count, "adaptive", LOSSES - 1), tmp_path / "two")
    assert len(list(count.iterdir())) == LOSSES - 1
    assert rows == alone


@pytest.mark.slow
def test_a_shard_that_always_loses_its_worker_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first of 40; only one that is played beside it again and again is lost with it."""
    monkeypatch.setattr(shards_module, "ROWS", 8)
    shards = some_shards(80)
    dying = Dying(tmp_path, "round_robin", 99, seed=shards.jobs(0)[0].seed)
    assert len(shards) == 40 and shards.jobs(0)[0].condition.name == "two"
    finished = set()
    with pytest.raises(ResultsError, match=rf"lost {LOSSES} times in a row with [1-4] shards left"):
        for number, _ in TWO.play(dying, shards, range(len(shards))):
            finished.add(number)
    assert 0 not in finished and len(finished) >= 36
    assert len(list(tmp_path.iterdir())) <= 4 * LOSSES


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["first", "later"])
def test_an_interrupt_ends_a_study_and_its_workers(moment: str, tmp_path: Path) -> None:
    """Ctrl-C goes to the whole group of processes; workers leave it to the command, and print nothing."""
    slow = {"documented": ["adaptive"], "yardsticks": ["clairvoyant"]}
    parts = {"a": cluster_part(fields={}, routers=slow)}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump({"title": "Long", "parts": parts}), encoding="utf-8")
    command = [sys.executable, "-m", "routing_gym.cli", "study", "long.yaml", "--workers", "2"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        command, cwd=tmp_path, start_new_session=True, preexec_fn=_heed_interrupts, **pipes
    ) as process:
        least = 1 if moment == "later" else 0
        deadline = time.monotonic() + 120.0
        while not (tmp_path / "results/long/a/config.yaml").is_file() or (
            len(list(tmp_path.rglob("*.parquet"))) < least
        ):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        time.sleep(0.3)  # workers start, or play
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith("interrupted; finished shards are in results/long") and err.count("\n") == 1
    assert "Traceback" not in out


def test_a_shard_that_always_loses_its_worker_ends_the_study(tmp_path: Path) -> None:
    shards = some_shards()
    finished = []
    with pytest.raises(ResultsError, match=rf"lost {LOSSES} times in a row.*the same command goes on"):
        for number, _ in TWO.play(Dying(tmp_path, "adaptive", 99), shards, range(len(shards))):
            finished.append(number)
    assert len(set(finished)) == len(finished) < len(shards)
    assert {shards.group(number).routers[0].label for number in finished} <= {"round_robin"}


@pytest.mark.parametrize("engine", [IN_PROCESS, TWO], ids=["one", "two"])
def test_what_goes_wrong_in_a_shard_is_told(engine: Engine) -> None:
    player = Player(curves=False, gap=False, versions=(("numba", "0.0"),), files=())
    with pytest.raises(ResultsError, match=r"numba 0\.0, here"):
        list(engine.play(player, some_shards(), [0, 1]))


@pytest.mark.slow
def test_a_study_on_ray_is_the_same_though_a_worker_is_killed(tmp_path: Path) -> None:
    """A real Ray of two workers on this machine, one killed while it plays."""
    pytest.importorskip("ray", reason="needs the extra `scale`")
    if not Path("/proc").is_dir():
        pytest.skip("finds Ray's workers in /proc")
    study = study_of(
        a=cluster_part(fields={"warmup_s": 3.0}, routers={"documented": ["round_robin", "adaptive"]})
    )
    played(study, tmp_path / "alone", seeds="24")
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        while not over.is_set() and not killed:
            on_disk = list((tmp_path / "ray").glob("a/shards/*/*.parquet"))
            for process in _players() if on_disk else []:
                os.kill(process, signal.SIGKILL)
                killed.append(process)
                break
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        played(study, tmp_path / "ray", Engine("ray", 2), seeds="24")
    finally:
        over.set()
        killer.join()
    assert killed
    alone, ray = (table_of(tmp_path / name / "a") for name in ("alone", "ray"))
    assert ray.num_rows == 4 * 24 * 2
    assert ray.equals(alone)


def _players() -> list[int]:
    """Return the processes of Ray's workers that play a shard now."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if file.read_bytes().startswith(b"ray::_play_shard"):
                found.append(int(file.parent.name))
        except OSError:
            continue  # it has ended
    return found


def _heed_interrupts() -> None:
    """Do so even where these tests run in the background of a shell, which ignores them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
def test_workers_end_with_a_study_that_is_killed(tmp_path: Path) -> None:
    """Otherwise they would go on for nobody, and slow down the one that goes on."""
    if not Path("/proc").is_dir():
        pytest.skip("finds processes in /proc")
    script = (
        "import os, time\n"
        "from pathlib import Path\n"
        "from routing_gym.studies.engines import Engine\n"
        "from tests.studies.runs import some_shards\n"
        "class Slow:\n"
        "    def __call__(self, jobs):\n"
        f"        Path({str(tmp_path)!r}, str(os.getpid())).touch()\n"
        "        time.sleep(60)\n"
        "shards = some_shards()\n"
        "list(Engine('joblib', 2).play(Slow(), shards, range(len(shards))))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2]) as process:
        deadline = time.monotonic() + 60.0
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        workers = [int(file.name) for file in tmp_path.iterdir()]
        assert len(workers) == 2
        process.kill()
    deadline = time.monotonic() + 20.0
    while any(Path(f"/proc/{worker}").is_dir() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [worker for worker in workers if Path(f"/proc/{worker}").is_dir()] == []
