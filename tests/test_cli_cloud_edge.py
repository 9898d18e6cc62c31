"""`routing-gym compare cloud-edge`: its defaults are the source's study, wrong input is one clear line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from routing_gym import cli
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.evaluation.results import read_curves, read_plan
from routing_gym.evaluation.runner import Condition, Router
from routing_gym.policy import full_name
from tests.cloud_edge.outcome_files import CATALOGUE, COLUMNS, Files, rows, write
from tests.evaluation.cloud_edge_runs import cells, without_solver, without_times
from tests.evaluation.runs import hide_matplotlib

ROUTERS = [
    "round_robin",
    "least_loaded",
    "cloud_only",
    "edge_only",
    "uniroute",
    "greedy",
    "local_search",
    "priced_search",
    "cema",
    "cema:normalisation=fixed",
    "optimal",
]
QUICK = ["--routers", "round_robin,uniroute,cema", "--seeds", "2", "--workers", "1"]


class Answer(NamedTuple):
    """What a command ended with and printed."""

    status: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Type `compare cloud-edge` in an empty folder, in a terminal of the usual width."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ROUTING_GYM_TRACEBACK", raising=False)

    def typed(*arguments: object, command: str = "cloud-edge") -> Answer:
        monkeypatch.setattr(sys, "argv", ["routing-gym", "compare", command, *map(str, arguments)])
        status = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        return Answer(status, *capsys.readouterr())

    return typed


class Compared(NamedTuple):
    """What the command asked `compare` for, and what it said meanwhile."""

    family: str
    routers: list[Router]
    conditions: list[Condition]
    seeds: list[int]
    out: Path
    how: dict[str, Any]
    notes: str

    @property
    def names(self) -> list[str]:
        return [condition.name for condition in self.conditions]

    def field(self, name: str) -> list[Any]:
        return [getattr(condition.config, name) for condition in self.conditions]


@pytest.fixture
def asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Compared]:
    """Type `compare cloud-edge` and return what would be compared, without playing it."""
    calls: list[tuple[Any, ...]] = []

    def keep(*what: Any, **how: Any) -> None:
        calls.append((*what, how))

    monkeypatch.setattr("routing_gym.evaluation.compare.compare", keep)

    def typed(*arguments: object) -> Compared:
        answer = run(*arguments)
        assert answer.status == 0, answer.err
        return Compared(*calls.pop(), answer.err)

    return typed


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_matplotlib(monkeypatch)


# What it offers


def test_the_help_names_every_option(run: Run) -> None:
    status, out, err = run("--help")
    assert (status, err) == (0, "")
    for option in (
        "catalogue requests rate windows replicate max-requests weights reward-on routers seeds set gap "
        "no-gap reference out workers resume overwrite again"
    ).split():
        assert f"--{option} " in out, option


@pytest.mark.parametrize(
    "command", [["-m", "routing_gym.cli"], ["-c", "from routing_gym.cli import main; main()"]]
)
def test_it_can_be_run_as_a_module_and_by_its_entry_point(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "compare", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "cluster" in done.stdout and "cloud-edge" in done.stdout


# What it asks for


def test_the_defaults_are_the_sources_controlled_study(asked: Callable[..., Compared]) -> None:
    compared = asked()
    assert compared.family == "cloud_edge"
    assert [one.label for one in compared.routers] == ROUTERS
    assert [one.name for one in compared.routers] == [
        f"cloud_edge/{label.partition(':')[0]}" for label in ROUTERS
    ]
    assert [one.params for one in compared.routers] == [
        {"normalisation": "fixed"} if ":" in label else {} for label in ROUTERS
    ]
    assert compared.seeds == list(range(30_000, 30_050))
    [place] = compared.conditions
    assert place.config == CloudEdgeConfig.create("routerbench-5node", requests=30, windows=1)
    assert place.name == "routerbench-5node, 30 requests"
    assert place.labels["destinations"] == 11 and place.labels["windows"] == 1
    assert (compared.how["reference"], compared.how["gap"]) == ("cema", True)
    assert compared.out == Path("results/cloud-edge")
    assert not compared.notes


def test_requests_and_copies_are_crossed(asked: Callable[..., Compared]) -> None:
    compared = asked("--requests", "10, 30", "--replicate", "1,2,8")
    fields = zip(compared.field("requests"), compared.field("replicate"), strict=True)
    assert list(fields) == [(r, k) for r in (10, 30) for k in (1, 2, 8)]
    assert [place.labels["destinations"] for place in compared.conditions] == [11, 22, 88] * 2
    assert compared.names[:2] == ["routerbench-5node, 10 requests", "routerbench-5node × 2, 10 requests"]
    assert len(set(compared.names)) == 6


def test_catalogues_are_names_or_paths(asked: Callable[..., Compared], tmp_path: Path) -> None:
    shipped = CloudEdgeConfig.create().model_dump(mode="json")
    mine = {"catalogue": {**shipped["catalogue"], "speedup": 3.0}, "workload": shipped["workload"]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    compared = asked("--catalogue", "routerbench-5node,mine.yaml")
    assert compared.names == ["routerbench-5node, 30 requests", "mine, 30 requests"]
    assert [catalogue.speedup for catalogue in compared.field("catalogue")][1] == 3.0
    assert [place.labels["catalogue"] for place in compared.conditions] == ["routerbench-5node", "mine"]


def test_a_rate_brings_longer_episodes_and_fewer_seeds(asked: Callable[..., Compared]) -> None:
    compared = asked("--rate", "10,20.5")
    assert compared.field("rate_per_s") == [10.0, 20.5]
    assert compared.field("requests") == [None, None]
    assert compared.field("windows") == [60, 60]
    assert len(compared.seeds) == 10
    assert compared.names == ["routerbench-5node, 10/s, 60 windows", "routerbench-5node, 20.5/s, 60 windows"]
    assert asked("--rate", "10", "--windows", "1").names == ["routerbench-5node, 10/s"]
    assert len(asked("--rate", "10", "--windows", "1").seeds) == 50


def test_windows_may_be_asked_for(asked: Callable[..., Compared]) -> None:
    compared = asked("--requests", "30", "--windows", "60")
    assert compared.field("windows") == [60] and len(compared.seeds) == 10
    assert compared.names == ["routerbench-5node, 30 requests, 60 windows"]
    assert asked("--set", "windows=3").field("windows") == [3]
    assert asked("--requests", "30", "--set", "windows=3").field("windows") == [3]


def test_a_batch_fits_into_as_many_slots_as_it_needs(asked: Callable[..., Compared]) -> None:
    assert asked("--requests", "10,32,50,128").field("max_requests") == [32, 32, 50, 128]
    assert asked("--requests", "50", "--max-requests", "40").field("max_requests") == [40]
    assert asked("--requests", "50", "--set", "max_requests=8").field("max_requests") == [8]
    assert asked("--rate", "50").field("max_requests") == [32]


def test_arrivals_that_a_config_sets_are_kept(asked: Callable[..., Compared], tmp_path: Path) -> None:
    assert asked("--set", "rate_per_s=5").field("rate_per_s") == [5]
    assert asked("--set", "rate_per_s=5").field("windows") == [60]
    assert asked("--set", "requests=7").field("requests") == [7]
    (tmp_path / "mine.yaml").write_text("rate_per_s: 5.0\nwindows: 9\n")
    compared = asked("--catalogue", "mine.yaml")
    assert (compared.field("rate_per_s"), compared.field("windows")) == ([5], [9])
    assert asked("--catalogue", "mine.yaml", "--requests", "3").field("windows") == [9]
    rows = [f"{k / 8},{10 + k},{5 + k}" for k in range(800)]
    (tmp_path / "trace.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    [place] = asked("--set", "trace=trace.csv", "--rate", "10").conditions
    assert place.config.trace == "trace.csv" and place.config.requests is None
    assert place.labels["trace_s"] == pytest.approx(799 / 10, rel=0.01)
    assert place.labels["cutoff_s"] == 60.0


def test_weights_are_normalised_and_that_is_said(asked: Callable[..., Compared]) -> None:
    compared = asked("--weights", "2,1,1,0")
    assert compared.field("weights") == [(0.5, 0.25, 0.25, 0.0)]
    assert compared.notes.startswith("note: weights = (2.0, 1.0, 1.0, 0.0) sum to 4; normalised to (0.5, ")
    assert compared.notes.count("\n") == 1
    several = asked("--weights", "2,1,1,0", "--requests", "1,2,3")
    assert several.notes == compared.notes, "once is enough"
    compared = asked("--weights", ".7,.1,.1,.1")
    assert compared.field("weights") == [(0.7, 0.1, 0.1, 0.1)] and not compared.notes


def test_what_is_paid_and_other_fields_can_be_set(asked: Callable[..., Compared]) -> None:
    compared = asked("--reward-on", "predicted", "--set", "catalogue={speedup: 5.0}", "--set", "rtt_sigma=0")
    assert compared.field("reward_on") == ["predicted"]
    assert compared.field("rtt_sigma") == [0.0]
    assert compared.conditions[0].config.catalogue.speedup == 5.0


def test_a_bare_name_is_of_this_family_first(asked: Callable[..., Compared]) -> None:
    compared = asked("--routers", "round_robin,cloud_edge/cema,cema:generations=3")
    assert [one.name for one in compared.routers] == [
        "cloud_edge/round_robin",
        "cloud_edge/cema",
        "cloud_edge/cema",
    ]
    assert [one.label for one in compared.routers] == ["round_robin", "cema", "cema:generations=3"]
    assert full_name("round_robin", "cluster") == "cluster/round_robin"
    assert full_name("adaptive", "cloud_edge") == "cluster/adaptive", "where it is unique"
    assert full_name("cluster/round_robin", "cloud_edge") == "cluster/round_robin"
    with pytest.raises(
        ValueError, match="'round_robin' is ambiguous: write cloud_edge/round_robin or cluster/"
    ):
        full_name("round_robin")


def test_without_its_solver_the_optimum_is_left_out_unless_asked_for(
    asked: Callable[..., Compared], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_solver(monkeypatch)
    monkeypatch.setattr(
        "routing_gym.cli.cloud_edge.missing_solver", lambda: "the exact optimum needs highspy"
    )
    compared = asked()
    assert [one.label for one in compared.routers] == ROUTERS[:-1]
    assert compared.notes == "note: left out cloud_edge/optimal: the exact optimum needs highspy\n"
    assert [one.label for one in asked("--routers", "optimal").routers] == ["optimal"]


# What is wrong

WRONG: dict[str, tuple[Any, ...]] = {  # what is typed, and what must be answered
    "unknown catalogue": (["--catalogue", "routerbench"], "no cloud_edge config is named 'routerbench'"),
    "missing catalogue": (["--catalogue", "my.yaml"], "cannot read the config my.yaml: No such file"),
    "catalogue twice": (["--catalogue", "routerbench-5node,routerbench-5node"], "is listed twice"),
    "no catalogue": (["--catalogue", ","], "lists nothing"),
    "part of a request": (
        ["--requests", "2.5"],
        "--requests 2.5: must be whole numbers, separated by commas",
    ),
    "requests that are none": (["--requests", "many"], "--requests many: must be whole numbers"),
    "negative requests": (["--requests", "-3"], "requests = -3", "greater than or equal to 0"),
    "requests and rate": (["--requests", "3", "--rate", "4"], "--rate 4:", "give one of the two"),
    "rate that is none": (["--rate", "fast"], "--rate fast: must be numbers"),
    "negative rate": (["--rate", "-1"], "rate_per_s = -1.0"),
    "part of a copy": (["--replicate", "1.5"], "--replicate 1.5: must be whole numbers"),
    "no copy": (["--replicate", "0"], "replicate = 0", "greater than or equal to 1"),
    "no window": (["--windows", "0"], "windows = 0"),
    "three weights": (["--weights", "1,2,3"], "weights"),
    "negative weight": (["--weights", "2,-1,0,0"], "weights", "must not be negative"),
    "weights of nothing": (["--weights", "0,0,0,0"], "weights", "one must be above 0"),
    "weights that are none": (["--weights", "a,b,c,d"], "--weights a,b,c,d: must be numbers"),
    "unknown reward": (["--reward-on", "hope"], "reward_on = 'hope'", "'actual' or 'predicted'"),
    "unknown router": (["--routers", "round_robn"], "did you mean cloud_edge/round_robin"),
    "router of the cluster": (
        ["--routers", "adaptive"],
        "router 'adaptive' is one of cluster, not of cloud_edge",
    ),
    "unknown parameter": (["--routers", "cema:x=1"], "router 'cloud_edge/cema' with x = 1:"),
    "parameter out of range": (["--routers", "cema:crossover=2"], "crossover = 2"),
    "unknown field": (["--set", "request=5"], "request is not a field (did you mean requests"),
    "unknown reference": (["--reference", "best", "--routers", "cema"], "reference = 'best': must be one of"),
    "seeds twice": (["--seeds", "4,4"], "--seeds 4,4: must be"),
    "resume and overwrite": (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
    "again of nothing": (["--again", "gone"], "cannot read the plan gone"),
    "again and more": (["--again", "gone", "--no-gap"], "--gap: --again takes it from gone"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_what_is_wrong_is_one_clear_line_and_nothing_is_written(case: str, run: Run, tmp_path: Path) -> None:
    arguments, *words = WRONG[case]
    if "--routers" not in arguments and "--again" not in arguments:
        arguments = [*arguments, "--routers", "round_robin,cema"]
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1, err
    for word in words:
        assert word in err, err
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: Any, **how: Any) -> None:
        raise ImportError("the exact optimum needs highspy")

    monkeypatch.setattr("routing_gym.evaluation.compare.compare", missing)
    assert run(*QUICK) == Answer(2, "", "error: the exact optimum needs highspy\n")


# From start to finish


@pytest.mark.usefixtures("no_plots")
def test_a_comparison_is_printed_kept_run_again_and_taken_up(run: Run, tmp_path: Path) -> None:
    arguments = [*QUICK, "--requests", "5", "--weights", "1,1,1,2"]
    status, out, err = run(*arguments, "--out", "first")
    assert (status, err.count("\n")) == (0, 1) and err.startswith("note: weights")
    assert "routerbench-5node, 5 requests" in out and "Results in first: episodes.csv" in out
    assert "Δ to cema, J" in " ".join(out.split())
    first = [without_times(row) for row in cells(tmp_path / "first")]
    assert len(first) == 6
    assert read_plan(tmp_path / "first")["command"].startswith("routing-gym compare cloud-edge --routers")
    for plan in ("first", "first/config.yaml"):
        out_folder = f"again-{Path(plan).name}"
        status, _, err = run("--again", plan, "--workers", 1, "--out", out_folder)
        assert (status, err) == (0, ""), "weights are normalised already"
        assert [without_times(row) for row in cells(tmp_path / out_folder)] == first
        assert read_plan(tmp_path / out_folder)["run"] == read_plan(tmp_path / "first")["run"]
    refused = run(*arguments, "--out", "first")
    assert refused.status == 2 and "go on with --resume, or --overwrite it" in refused.err
    before = (tmp_path / "first" / "episodes.csv").read_bytes()
    resumed = run(*arguments, "--out", "first", "--resume")
    assert resumed.status == 0 and "6 of 6 episodes" in resumed.out
    assert (tmp_path / "first" / "episodes.csv").read_bytes() == before
    assert run(*arguments, "--out", "first", "--overwrite", "--no-gap").status == 0
    assert {row["gap"] for row in cells(tmp_path / "first")} == {""}
    status, _, err = run("--again", "first", "--workers", 1, "--out", "gapless")
    assert (status, err) == (0, "")
    assert {row["gap"] for row in cells(tmp_path / "gapless")} == {""}


@pytest.mark.usefixtures("no_plots")
def test_a_run_of_another_command_is_not_run_again_by_this_one(run: Run, tmp_path: Path) -> None:
    assert run(*QUICK, "--requests", "2", "--no-gap", "--out", "batches").status == 0
    answer = run("--again", "batches", "--out", "out", command="cluster")
    assert answer == Answer(2, "", "error: batches describes a run of another command: compare cloud-edge\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_plots")
def test_longer_episodes_carry_their_backlog(run: Run, tmp_path: Path) -> None:
    arguments = [*QUICK, "--rate", "6", "--windows", "5", "--set", "catalogue={speedup: 1.0}", "--no-gap"]
    status, out, err = run(*arguments, "--out", "out")
    assert (status, err) == (0, "")
    assert "routerbench-5node, 6/s, 5 windows" in out
    curves = read_curves(tmp_path / "out")
    assert all(len(curve["backlog_s"]) == 5 for curve in curves)
    assert max(max(curve["backlog_s"]) for curve in curves if curve["router"] == "round_robin") > 0


# Recorded outcomes


TABLE = ["--table", "outcomes.csv", "--columns", "columns.yaml"]
MINE = ["--catalogue", "mine.yaml"]
MEAN = ["--prediction", "mean"]


@pytest.fixture
def outcomes(tmp_path: Path) -> None:
    """Put a table of outcomes, its columns and a catalogue into the folder that commands are typed in."""
    Files(tmp_path, rows())
    (tmp_path / "columns.yaml").write_text(yaml.safe_dump(COLUMNS), encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"catalogue": CATALOGUE}), encoding="utf-8")


def test_a_table_is_named_by_options(asked: Callable[..., Compared], outcomes: None) -> None:
    compared = asked(*MINE, *TABLE, "--prediction", "mean,perfect", "--drop", "tiny")
    assert [config.prediction for config in compared.field("workload")] == ["mean", "perfect"]
    assert compared.names == [
        f"mine, 30 requests, outcomes rows, prediction {known}" for known in ("mean", "perfect")
    ]
    assert compared.field("drop") == [("tiny",)] * 2
    labels = compared.conditions[0].labels
    assert (labels["dropped"], labels["table"], labels["stand_ins"]) == ("tiny", "outcomes.csv", "")
    assert labels["prompts"] > 20
    lengths = asked(*MINE, *TABLE, *MEAN, "--set", "workload={lengths: perfect}")
    assert lengths.names == ["mine, 30 requests, outcomes rows, prediction mean, lengths perfect"]


def test_a_workload_is_named_by_a_file_or_a_kind(
    asked: Callable[..., Compared], outcomes: None, tmp_path: Path
) -> None:
    workload = {"table": "outcomes.csv", "columns": "columns.yaml", "rows": "validation", "lengths": "mean"}
    for name, fields in {"plain.yaml": workload, "nested.yaml": {"workload": workload}}.items():
        (tmp_path / name).write_text(yaml.safe_dump(fields), encoding="utf-8")
        (found,) = asked(*MINE, *MEAN, "--workload", name).field("workload")
        assert (found.kind, found.rows, found.table) == ("outcomes", "validation", "outcomes.csv")
    chosen = asked(*MINE, *TABLE, "--workload", "outcomes", "--set", "workload={prediction: mean}")
    assert [(found.kind, found.prediction) for found in chosen.field("workload")] == [("outcomes", "mean")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--table", "outcomes.csv"], "--table outcomes.csv: --columns FILE.yaml must say"),
        (["--prediction", "store"], "--prediction store: is of recorded outcomes; --table names them"),
        ([*MINE, *TABLE, *MEAN, "--set", "workload={stand_ins: {hugo: small}}"], "hugo is no model"),
        (["--workload", "routerbanch"], "workload.kind = 'routerbanch': must be one of"),
        (["--drop", "hugo"], "no node hosts hugo"),
        ([*TABLE, *MEAN], "has no outcomes of gpt-4, claude-v2"),
        ([*MINE, *TABLE, *MEAN, "--table", "gone.csv"], "cannot read the table gone.csv"),
        ([*MINE, *TABLE], "embeddings = None"),
    ],
)
def test_what_is_wrong_with_outcomes_is_one_line(
    run: Run, outcomes: None, options: list[str], words: str
) -> None:
    status, _, err = run(*options)
    assert status == 2 and words in " ".join(err.split()) and err.count("\n") == 1


def test_tables_say_whose_outcomes_they_are_of(run: Run, outcomes: None, no_plots: None) -> None:
    stand_in = "workload={prediction: mean, stand_ins: {large: small}}"
    options = [*MINE, *TABLE, "--set", stand_in, "--drop", "tiny", "--no-gap", "--requests", "3"]
    answer = run(*options, *QUICK, "--out", "out")
    assert answer.status == 0, answer.err
    for text in (answer.out, Path("out/summary.md").read_text(encoding="utf-8")):
        said = " ".join(text.split())
        assert "test prompts of outcomes.csv, with the outcomes recorded there" in said
        assert "qualities are each model's mean" in said
        assert "take another's outcomes: large answers as small" in said
        assert "Left out of mine: tiny" in said
    assert "outcomes rows with stand-ins" in answer.out


def test_tables_say_what_reading_assumed(run: Run, outcomes: None, no_plots: None) -> None:
    """Such as that tokens were estimated; and that there are fewer prompts than requests."""
    listed = [row | {"tiny length": 0} if k < 3 else row for k, row in enumerate(rows(60))]
    write(Path("outcomes.csv"), listed)
    answer = run(*MINE, *TABLE, *MEAN, "--no-gap", "--requests", "40", *QUICK, "--out", "out")
    assert answer.status == 0, answer.err
    said = " ".join(Path("out/summary.md").read_text(encoding="utf-8").split())
    assert "outcomes.csv: " in said and "taken as 1" in said
    assert "has 40 requests and there are" in said and "some come more than once" in said


def test_a_run_is_not_repeated_on_another_table(run: Run, outcomes: None, no_plots: None) -> None:
    options = [*MINE, *TABLE, *MEAN, "--no-gap", "--requests", "3", *QUICK]
    assert run(*options, "--out", "out").status == 0
    assert "table_sha256" in read_plan("out")["run"]["conditions"][0]
    assert run("--again", "out", "--out", "same").status == 0
    write(Path("outcomes.csv"), rows(seed=9))
    status, _, err = run("--again", "out", "--out", "other")
    assert status == 2 and "table = outcomes.csv: is not the file that out was made with" in err
