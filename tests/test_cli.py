"""The command line: its defaults are the protocol, and what is wrong is answered in one clear line."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

import routing_gym
from routing_gym import cli
from routing_gym.cluster.config import ClusterConfig
from routing_gym.evaluation.results import read_plan
from routing_gym.evaluation.runner import Condition
from tests.evaluation.runs import hide_matplotlib, install, read_bytes

SHORT = ["--set", "warmup_s=0.125", "--set", "measured_s=0.375", "--workers", "1"]


class Answer(NamedTuple):
    """What a command ended with and printed."""

    status: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Type a command in an empty folder, in a terminal of the usual width."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ROUTING_GYM_TRACEBACK", raising=False)

    def typed(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["routing-gym", *map(str, arguments)])
        status = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        return Answer(status, *capsys.readouterr())

    return typed


class Compared(NamedTuple):
    """What the command asked `compare` for."""

    family: str
    routers: list[Any]
    conditions: list[Condition]
    seeds: list[int]
    out: Path
    how: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return [condition.name for condition in self.conditions]

    def field(self, name: str) -> list[Any]:
        return [getattr(condition.config, name) for condition in self.conditions]


@pytest.fixture
def asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Compared]:
    """Type `compare cluster` and return what would be compared, without playing it."""
    calls: list[Compared] = []

    def keep(
        family: str, routers: list[Any], conditions: list[Condition], seeds: list[int], out: Path, **how: Any
    ) -> None:
        calls.append(Compared(family, routers, conditions, seeds, out, how))

    monkeypatch.setattr("routing_gym.evaluation.compare.compare", keep)

    def typed(*arguments: object) -> Compared:
        answer = run("compare", "cluster", *arguments)
        assert answer.status == 0, answer.err
        return calls.pop()

    return typed


def write_trace(path: Path, rows: Sequence[Sequence[object]], header: str) -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


GENERIC = "arrival_s,prompt_tokens,output_tokens"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """300 arrivals in about 2.3 s, at times that both formats hold exactly, tokens all over the place."""
    rows = [(k / 128, 1 + 37 * k % 501, 1 + 53 * k % 199) for k in range(300)]
    return write_trace(tmp_path / "generic.csv", rows, GENERIC)


# What it offers


@pytest.mark.parametrize("command", [[], ["compare"], ["compare", "cluster"], ["routers"], ["bench"]])
def test_every_command_has_help(command: list[str], run: Run) -> None:
    status, out, err = run(*command, "--help")
    assert (status, err) == (0, "")
    assert out.strip().startswith("Usage: ")


def test_the_help_names_every_option_of_a_comparison(run: Run) -> None:
    out = run("compare", "cluster", "--help").out
    for option in (
        "scenario rate heterogeneity routers seeds config set trace trace-full load admission reference out "
        "workers resume overwrite again"
    ).split():
        assert f"--{option} " in out


@pytest.mark.parametrize("command", [[], ["compare"]])
def test_a_bare_command_shows_its_help(command: list[str], run: Run) -> None:
    answer = run(*command)
    assert (answer.out + answer.err).strip().startswith("Usage: ")


def test_routers_lists_every_router_with_its_role_and_first_line(run: Run) -> None:
    status, out, err = run("routers")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == len(routing_gym.list_policies())
    for line, name in zip(lines, routing_gym.list_policies(), strict=True):
        cls = routing_gym.policy.policy_class(name)
        assert cls.__doc__ is not None
        assert line == f"{name} ({cls.role}): {cls.__doc__.strip().splitlines()[0]}"


def test_routers_of_others_are_listed_as_they_are(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, half="Half", undocumented="Stubborn")
    monkeypatch.setattr("tests.evaluation.runs.Stubborn.__doc__", None)
    out = run("routers").out
    assert "cluster/half (yardstick): Claims that half of the arrivals can be on time." in out
    assert "cluster/undocumented (router): (no description)" in out


def test_other_packages_mount_their_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    other = typer.Typer()

    @other.command()
    def hello() -> None:
        """Say hello."""
        print("hello")

    @other.command()
    def goodbye() -> None:
        """Say goodbye."""

    class Entry:
        name = "train"

        def load(self) -> typer.Typer:
            return other

    monkeypatch.setattr(
        cli, "entry_points", lambda group: [Entry()] if group == "routing_gym.commands" else []
    )
    monkeypatch.setattr(cli.app, "registered_groups", list(cli.app.registered_groups))
    assert run("train", "hello") == Answer(0, "hello\n", "")


# What it asks for


def test_the_defaults_are_the_sources_protocol(asked: Callable[..., Compared]) -> None:
    compared = asked()
    assert compared.family == "cluster"
    documented = ["round_robin", "least_queue", "latency_aware", "adaptive"]
    ours = ["least_work", "deadline_aware", "learned", "clairvoyant", "bound"]
    assert [one.label for one in compared.routers] == documented + ours
    assert [one.name for one in compared.routers] == [f"cluster/{name}" for name in documented + ours]
    assert all(one.params == {} for one in compared.routers)
    assert compared.seeds == list(range(30_000, 30_010))
    scenarios = ["steady", "burst", "straggler", "failure"]
    assert compared.conditions == [
        Condition(place.name, ClusterConfig.create(scenario=scenario), place.labels)
        for place, scenario in zip(compared.conditions, scenarios, strict=True)
    ]
    assert compared.how["reference"] == "adaptive"
    assert compared.how["workers"] == os.cpu_count()
    assert not compared.how["resume"] and not compared.how["overwrite"]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", [30_000, 30_001, 30_002]), ("5-7", [5, 6, 7]), ("9-9", [9]), ("4,2", [4, 2]), ("12,", [12])],
)
def test_seeds_are_a_number_a_range_or_a_list(
    text: str, seeds: list[int], asked: Callable[..., Compared]
) -> None:
    assert asked("--seeds", text).seeds == seeds


def test_axes_are_crossed_and_every_condition_has_its_name(asked: Callable[..., Compared]) -> None:
    compared = asked("--scenario", "failure,steady", "--rate", "100, 250", "--heterogeneity", "0.5,1")
    fields = zip(*map(compared.field, ("scenario", "rate_per_s", "heterogeneity")), strict=True)
    assert list(fields) == [(s, r, h) for s in ("failure", "steady") for r in (100, 250) for h in (0.5, 1)]
    assert len(set(compared.names)) == 8
    first = compared.conditions[0]
    assert first.name == "failure, 100/s, load 0.37, heterogeneity 0.5"
    assert first.labels["scenario"] == "failure" and first.labels["rate_per_s"] == 100
    assert first.labels["heterogeneity"] == 0.5 and first.labels["cutoff_s"] == 15.0


def test_a_load_sets_the_rate(asked: Callable[..., Compared]) -> None:
    [half, full] = asked("--scenario", "steady", "--load", "0.45,0.9").conditions
    assert (half.labels["load"], full.labels["load"]) == (0.45, 0.9)
    assert full.labels["rate_per_s"] == pytest.approx(2 * half.labels["rate_per_s"], rel=1e-4)


def test_fields_are_set_in_yaml_and_admission_is_a_flag(asked: Callable[..., Compared]) -> None:
    fields = ["--set", "demand={base_ms: 2.0}", "--set", "replicas=5", "--set", "prediction_sigma=null"]
    compared = asked(*fields, "--admission")
    assert set(compared.field("replicas")) == {5}
    assert {demand.base_ms for demand in compared.field("demand")} == {2.0}
    assert set(compared.field("prediction_sigma")) == {None}
    assert set(compared.field("admission")) == {True}
    assert len(compared.conditions) == 4


def test_a_scenario_that_is_set_is_not_replaced_by_the_default_ones(asked: Callable[..., Compared]) -> None:
    assert asked("--set", "scenario=burst").field("scenario") == ["burst"]
    assert asked("--set", "scenario=burst", "--scenario", "steady").field("scenario") == ["steady"]


def test_a_config_file_brings_its_own_scenario(asked: Callable[..., Compared], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("rate_per_s: 50\nscenario: straggler\n")
    (tmp_path / "open.yaml").write_text("rate_per_s: 50\n")
    assert asked("--config", "mine.yaml").field("scenario") == ["straggler"]
    assert asked("--config", "mine.yaml", "--scenario", "steady").field("scenario") == ["steady"]
    compared = asked("--config", "open.yaml")
    assert len(compared.field("scenario")) == 4 and set(compared.field("rate_per_s")) == {50}


def test_routers_take_parameters_and_full_names(asked: Callable[..., Compared]) -> None:
    compared = asked("--routers", "cluster/least_queue, adaptive:c=.2,adaptive:c=0:ceiling_ms=80")
    assert [one.label for one in compared.routers] == [
        "least_queue",
        "adaptive:c=.2",
        "adaptive:c=0:ceiling_ms=80",
    ]
    assert [one.params for one in compared.routers] == [{}, {"c": 0.2}, {"c": 0, "ceiling_ms": 80}]
    assert compared.how["reference"] is None, "then it is the first"


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("3", 3), ("0", os.cpu_count())])
def test_workers_are_processes_and_0_is_one_per_cpu(
    text: str, count: int, asked: Callable[..., Compared]
) -> None:
    assert asked("--workers", text).how["workers"] == count


def test_a_trace_has_no_burst_and_its_time_is_scaled(asked: Callable[..., Compared], trace: Path) -> None:
    compared = asked("--trace", trace, *SHORT)
    assert compared.field("scenario") == ["steady", "straggler", "failure"]
    assert set(compared.field("trace")) == {str(trace)}
    assert {place.labels["rate_per_s"] for place in compared.conditions} == {128.0}
    loaded = asked("--trace", trace, *SHORT, "--load", "0.5,0.9", "--scenario", "steady")
    assert [place.labels["load"] for place in loaded.conditions] == [0.5, 0.9]
    whole = asked("--trace", trace, *SHORT, "--trace-full", "--scenario", "steady")
    assert whole.field("trace_full") == [True]
    assert whole.conditions[0].labels["cutoff_s"] == pytest.approx(299 / 128 + 0.05, abs=0.0005)


# What is wrong

WRONG: dict[str, tuple[Any, ...]] = {  # what is typed, and what must be answered
    "unknown router": (
        ["--routers", "round_robn"],
        "named 'round_robn'; did you mean cluster/round_robin",
    ),
    "no router": (["--routers", " , "], "lists nothing"),
    "router twice": (["--routers", "bound,bound"], "router 'bound' is listed twice"),
    "unknown parameter": (["--routers", "adaptive:d=1"], "router 'cluster/adaptive' with d = 1:"),
    "parameter without value": (["--routers", "adaptive:c"], "--routers adaptive:c: must be NAME=VALUE"),
    "parameter that is no YAML": (["--routers", "adaptive:c=[1"], "'[1' is not valid YAML"),
    "parameter out of range": (["--routers", "adaptive:c=-1"], "c = -1: must not be negative"),
    "parameter of a wrong type": (["--routers", "adaptive:c=x"], "router 'cluster/adaptive' with c = 'x'"),
    "unknown scenario": (["--scenario", "stragler"], "scenario = 'stragler'", "(did you mean straggler?)"),
    "scenario twice": (
        ["--scenario", "steady,steady"],
        "'steady, 180/s, load 0.65' is listed twice",
    ),
    "rate that is no number": (["--rate", "abc"], "--rate abc: must be numbers, separated by commas"),
    "rates with a gap": (["--rate", "100;200"], "--rate 100;200: must be numbers"),
    "negative rate": (["--rate", "-5"], "rate_per_s = -5.0: Input should be greater than or equal to 0"),
    "infinite rate": (["--rate", "inf"], "rate_per_s = inf: Input should be a finite number"),
    "rate and load": (["--rate", "5", "--load", ".9"], "--rate 5: the rate follows from the load"),
    "rate and a load set": (["--rate", "5", "--set", "load=.9"], "--rate 5: the rate follows from the load"),
    "zero load": (["--load", "0"], "load = 0.0: Input should be greater than 0"),
    "load that is no number": (["--load", "high"], "--load high: must be numbers"),
    "too much heterogeneity": (["--heterogeneity", "9"], "heterogeneity = 9.0", "must be above 0"),
    "no seeds": (["--seeds", "0"], "--seeds 0: must be a number of episodes, a range such as 30000-30009"),
    "seeds backwards": (["--seeds", "5-3"], "--seeds 5-3: must be"),
    "negative seeds": (["--seeds", "-3"], "--seeds -3: must be"),
    "seeds twice": (["--seeds", "4,4"], "--seeds 4,4: must be", "distinct"),
    "seeds that are no numbers": (["--seeds", "1-2-3"], "--seeds 1-2-3: must be"),
    "seeds that look like markup": (["--seeds", "[/x]"], "--seeds [/x]: must be"),
    "unknown field": (["--set", "rate=5"], "rate is not a field (did you mean", "rate_per_s?)"),
    "field without value": (["--set", "replicas"], "--set replicas: must be NAME=VALUE"),
    "value that is no YAML": (["--set", "reward=[1, 2"], "--set reward=[1, 2: '[1, 2' is not valid YAML"),
    "value of a wrong type": (
        ["--set", "replicas=many"],
        "replicas = 'many': Input should be a valid",
    ),
    "a distribution": (["--config", "training"], "--config training: is a distribution of conditions"),
    "scenario that does not happen": (
        ["--scenario", "failure"],
        "scenario = 'failure': its first event is at 6 s, after the episode's end at 0.5 s",
    ),
    "resume and overwrite": (
        ["--resume", "--overwrite"],
        "--resume and --overwrite exclude each other",
    ),
    "unknown config": (["--config", "defualt"], "no cluster config is named 'defualt'; there are default"),
    "missing config": (["--config", "my.yaml"], "cannot read the config my.yaml: No such file"),
    "unknown reference": (["--reference", "best"], "reference = 'best': must be one of the routers"),
    "missing trace": (["--trace", "my.csv"], "cannot read the trace my.csv: No such file or directory"),
    "trace that is a folder": (["--trace", "."], "cannot read the trace .: Is a directory"),
    "trace with a rate": (
        ["--trace", "generic.csv", "--rate", "9"],
        "--rate 9: the rate follows from the trace",
    ),
    "trace with a burst": (["--trace", "generic.csv", "--scenario", "burst"], "no rate event is allowed"),
    "trace too short": (
        ["--trace", "generic.csv", "--load", "99"],
        "generic.csv: lasts 0.0 s",
        "Lower the load",
    ),
    "whole trace of none": (["--trace-full"], "--trace-full: needs --trace"),
    "too many replicas": (["--set", "replicas=1000"], "replicas = 1000", "less than or equal to 256"),
    "folder under a file": (["--out", "generic.csv/x"], "cannot write results to generic.csv/x: Not a dir"),
    "folder that is a file": (["--out", "generic.csv"], "generic.csv is a file; results need a folder"),
    "again of nothing": (["--again", "gone"], "cannot read the plan gone"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_what_is_wrong_is_one_clear_line_and_nothing_is_written(
    case: str, run: Run, trace: Path, tmp_path: Path
) -> None:
    arguments, *words = WRONG[case]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    status, out, err = run("compare", "cluster", *(SHORT if case != "again of nothing" else []), *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1, err
    for word in words:
        assert word in err, err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("rows", "header", "words"),
    [
        ([(1, 2, 3), (0.5, 1, 1)], GENERIC, "line 3: arrival_s = '0.5' is before the line above"),
        ([(1, 2, 3), (2, -1, 1)], GENERIC, "line 3: prompt_tokens = -1: must be between 0 and"),
        ([(1, 2, 3), (2, 1, "")], GENERIC, "line 3: output_tokens = '': must be a whole number"),
        ([(1, 2, 3), (2, 1)], GENERIC, "line 3: has 2 fields; the header has 3"),
        ([("today", 2, 3)], GENERIC, "line 2: arrival_s = 'today': must be a number of seconds"),
        ([("16.11.2023 18:15:46", 2, 3)], AZURE, "line 2: TIMESTAMP = '16.11.2023 18:15:46': must look like"),
        ([(1, 2, 3)], "a,b,c", "line 1: the columns are a, b, c; a trace has TIMESTAMP"),
        ([(1, 2, 3)], GENERIC, "has 1 arrivals; a trace needs two at different times"),
    ],
)
def test_a_malformed_trace_is_named_with_its_line(
    rows: list[tuple], header: str, words: str, run: Run, tmp_path: Path
) -> None:
    write_trace(tmp_path / "bad.csv", rows, header)
    status, out, err = run("compare", "cluster", *SHORT, "--trace", "bad.csv", "--out", "out")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "bad.csv" in err and words in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["compare", "nonsense"],
        ["compare", "cluster", "--nonsense"],
        ["compare", "cluster", "--workers", "-1"],
        ["compare", "cluster", "--workers", "many"],
        ["bench", "--repeats", "0"],
        ["bench", "--seconds", "0"],
    ],
)
def test_what_is_no_command_is_refused_with_a_hint(arguments: list[str], run: Run) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("Usage: ") and "Error" in err and "Traceback" not in err


def test_a_traceback_can_be_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTING_GYM_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no router is named"):
        run("compare", "cluster", "--routers", "nobody")


# From start to finish, in this process


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_matplotlib(monkeypatch)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with open(folder / "episodes.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("no_plots")
def test_a_comparison_is_printed_kept_run_again_and_taken_up(run: Run, tmp_path: Path) -> None:
    arguments = [*SHORT, "--seeds", 3, "--routers", "adaptive:c=.2,random,bound", "--scenario", "steady"]
    status, out, err = run("compare", "cluster", *arguments, "--set", "queue_capacity=20", "--out", "first")
    assert (status, err) == (0, "")
    assert "steady, 180/s, load 0.65" in out and "Results in first: episodes.csv" in out
    assert "Δ to adaptive:c=.2, points" in out
    assert len(rows_of(tmp_path / "first")) == 9
    command = read_plan(tmp_path / "first")["command"]
    assert command.startswith("routing-gym compare cluster --set warmup_s=0.125")

    files = ("episodes.csv", "curves.jsonl", "summary.json")
    for plan in ("first", "first/config.yaml"):
        out_folder = f"again-{Path(plan).name}"
        assert run("compare", "cluster", "--again", plan, "--workers", 1, "--out", out_folder).status == 0
        assert read_bytes(tmp_path / out_folder, *files) == read_bytes(tmp_path / "first", *files)

    before = read_bytes(tmp_path / "first", *files)
    refused = run("compare", "cluster", *arguments, "--set", "queue_capacity=20", "--out", "first")
    assert refused.status == 2 and "go on with --resume, or --overwrite it" in refused.err
    other = run("compare", "cluster", *arguments, "--out", "first", "--resume")
    assert other.status == 2 and "first holds another run (conditions differ)" in other.err
    assert read_bytes(tmp_path / "first", *files) == before
    resumed = run(
        "compare", "cluster", *arguments, "--set", "queue_capacity=20", "--out", "first", "--resume"
    )
    assert resumed.status == 0 and "9 of 9 episodes" in resumed.out
    assert read_bytes(tmp_path / "first", *files) == before
    replaced = run("compare", "cluster", *arguments, "--out", "first", "--overwrite")
    assert replaced.status == 0
    assert read_bytes(tmp_path / "first", *files) != before


@pytest.mark.parametrize(
    "option",
    [
        ["--rate", "5"],
        ["--seeds", "10"],
        ["--set", "replicas=2"],
        ["--trace-full"],
        ["--admission"],
        ["--reference", "random"],
    ],
)
def test_a_run_again_takes_nothing_from_elsewhere(option: list[str], run: Run, tmp_path: Path) -> None:
    status, out, err = run("compare", "cluster", "--again", "somewhere", *option)
    assert (status, out) == (2, "")
    assert err == f"error: {option[0]}: --again takes it from somewhere\n"


@pytest.mark.parametrize(
    "run_part",
    [
        "family: cluster, routers: [{nobody: 1}], conditions: [], seeds: [1], reference: x",
        "family: cluster, routers: [], conditions: [{name: x}], seeds: [1], reference: x",
        "family: cluster, routers: [], conditions: [], seeds: [1], reference: x",
    ],
)
def test_a_plan_that_is_not_whole_is_refused(run_part: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"run: {{{run_part}}}\n")
    status, _, err = run("compare", "cluster", "--again", "config.yaml", "--out", "out")
    assert status == 2 and err.startswith("error: ") and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_plots")
def test_both_formats_of_a_trace_give_the_same_episodes(run: Run, trace: Path, tmp_path: Path) -> None:
    with open(trace, newline="") as file:
        rows = list(csv.reader(file))[1:]
    azure = [
        (f"2023-11-16 18:15:{46 + int(float(time)):02d}.{round(float(time) % 1 * 10**7):07d}", prompt, output)
        for time, prompt, output in rows
    ]
    write_trace(tmp_path / "azure.csv", azure, AZURE)
    numbers = []
    for name in ("generic", "azure"):
        arguments = ["--trace", f"{name}.csv", "--load", "0.9", "--routers", "adaptive,random,bound"]
        status, out, err = run("compare", "cluster", *SHORT, *arguments, "--seeds", 2, "--out", name)
        assert (status, err) == (0, "")
        assert "load 0.90" in out
        numbers.append([{k: v for k, v in r.items() if k != "config_hash"} for r in rows_of(tmp_path / name)])
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) == 3 * 3 * 2
    assert {row["scenario"] for row in numbers[0]} == {"steady", "straggler", "failure"}
    assert all(int(row["arrivals"]) > 0 for row in numbers[0])


@pytest.mark.usefixtures("no_plots")
def test_a_whole_trace_is_replayed_alike_for_every_seed(run: Run, trace: Path, tmp_path: Path) -> None:
    arguments = ["--trace", trace, "--trace-full", "--scenario", "steady", "--routers", "least_queue"]
    assert run("compare", "cluster", *SHORT, *arguments, "--seeds", 2, "--out", "out").status == 0
    arrivals = {row["arrivals"] for row in rows_of(tmp_path / "out")}
    # Those at (0.125 s, the end], of 300 arrivals 1/128 s apart from 0 on.
    assert arrivals == {str(300 - 17)}


@pytest.mark.usefixtures("no_plots")
def test_folders_named_like_markup_are_shown_as_they_are(run: Run) -> None:
    arguments = [*SHORT, "--seeds", 1, "--routers", "least_queue", "--scenario", "steady"]
    assert "Results in [x]: episodes.csv" in run("compare", "cluster", *arguments, "--out", "[x]").out


def test_an_interrupt_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **how: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("routing_gym.evaluation.compare.compare", interrupted)
    answer = run("compare", "cluster", "--out", "folder")
    assert answer == Answer(130, "", "interrupted; 0 finished episodes are in folder, --resume goes on\n")


def test_a_full_disk_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **how: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("routing_gym.evaluation.compare.compare", full)
    assert run("compare", "cluster") == Answer(2, "", "error: [Errno 28] No space left on device\n")


# Real signals to a real process

COMMAND = [sys.executable, "-m", "routing_gym.cli", "compare", "cluster", "--workers", "2"]
LINE_UP = "round_robin,adaptive,clairvoyant:horizon=60,bound"
WORK = ["--seeds", "4", "--routers", LINE_UP, "--scenario", "steady,failure"]
FILES = ("episodes.csv", "summary.json", "curves.jsonl")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    subprocess.run([*COMMAND, *WORK, "--out", str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison in its own process group, whose first episodes are on disk and others are not."""
    if not hasattr(os, "killpg"):
        pytest.skip("needs process groups")
    process = subprocess.Popen(
        [*COMMAND, *WORK, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 120
        while not (tmp_path / "out" / "episodes.csv").exists():
            assert process.poll() is None and time.monotonic() < end, "no episode was finished"
            time.sleep(0.01)
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def group_is_gone(leader: int, seconds: float = 20.0) -> bool:
    """Tell whether every process of a group ends by itself."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.killpg(leader, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_signal_loses_no_finished_episode_and_leaves_no_process(
    name: str, started: subprocess.Popen[str], uninterrupted: Path, tmp_path: Path
) -> None:
    if name == "SIGINT":
        os.killpg(started.pid, signal.SIGINT)  # as a terminal's Ctrl-C does, workers included
    else:
        started.send_signal(getattr(signal, name))
    _, err = started.communicate(timeout=60)
    if name == "SIGINT":
        assert started.returncode == 130
        assert "--resume goes on" in err and "Traceback" not in err
    else:
        assert started.returncode == -getattr(signal, name)
    assert group_is_gone(started.pid), "workers outlive their parent"
    kept = len(rows_of(tmp_path / "out"))
    assert not (tmp_path / "out" / "summary.json").exists(), "the run was over before the signal came"
    subprocess.run(
        [*COMMAND, *WORK, "--resume", "--out", str(tmp_path / "out")], check=True, capture_output=True
    )
    assert 0 < kept < len(rows_of(tmp_path / "out")) == 32
    assert read_bytes(tmp_path / "out", *FILES) == read_bytes(uninterrupted, *FILES)


def workers_of(leader: int) -> list[Path]:
    """Return the folders in /proc of the workers that a process has started."""
    listed = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
    folders = [Path(f"/proc/{child}") for child in listed]
    return [folder for folder in folders if b"spawn_main" in (folder / "cmdline").read_bytes()]


def ignores_interrupts(process: Path) -> bool:
    """Tell whether a process ignores SIGINT, or has it blocked."""
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    masks = int(status["SigIgn"], 16) | int(status["SigBlk"], 16)
    return bool(masks & 1 << (signal.SIGINT - 1))


@pytest.mark.slow
def test_an_interrupt_while_workers_start_is_quiet(tmp_path: Path) -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc")
    process = subprocess.Popen(
        [*COMMAND, *WORK, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (workers := workers_of(process.pid)):
        assert process.poll() is None
        time.sleep(0.001)
    # Python takes a while before it can install a handler: what a worker does until then is inherited.
    assert all(map(ignores_interrupts, workers))
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("\n")) == (130, 1), err
    assert group_is_gone(process.pid)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv", "code"])
def test_the_azure_traces_are_compared(name: str, run: Run, tmp_path: Path) -> None:
    data = Path(__file__).parents[1].parent / "shared" / "data" / "azure_llm_2023"
    source = data / f"AzureLLMInferenceTrace_{name}.csv"
    if not source.exists():
        pytest.skip(f"{source.name} is not at hand; data/README.md says where it is published")
    arguments = ["--trace", source, "--load", "0.9", "--seeds", 2, "--routers", "adaptive,bound"]
    status, _, err = run("compare", "cluster", *arguments, "--workers", 1, "--out", "out")
    assert (status, err) == (0, "")
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 12
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["run"]["conditions"][0]["config"]
    assert config["trace"] == str(source) and config["load"] == 0.9
    assert all(int(row["arrivals"]) > 0 for row in rows)


@pytest.mark.usefixtures("no_plots")
def test_a_run_is_not_repeated_or_resumed_on_another_trace(run: Run, trace: Path) -> None:
    arguments = ["--trace", "generic.csv", "--load", "0.9", "--scenario", "steady", "--routers", "bound"]
    command = ["compare", "cluster", *SHORT, *arguments, "--seeds", 1, "--out", "out"]
    assert run(*command).status == 0
    assert run("compare", "cluster", "--again", "out", "--out", "repeated").status == 0
    with open(trace, "a") as file:
        file.write("9999,10,10\n")
    status, _, err = run("compare", "cluster", "--again", "out", "--out", "other")
    assert status == 2 and "trace = generic.csv: is not the file that out was made with" in err
    status, _, err = run(*command, "--resume")
    assert status == 2 and "conditions differ" in err
