"""`routing-gym study-learned`: what can be typed, and what it writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from routing_agents import study_cli
from routing_agents.study_cli import app
from routing_agents.study_report import BEGIN, END
from routing_gym.common.config import ConfigError
from routing_gym.evaluation.results import ResultsError
from tests.agents.studies import cluster_part
from tests.evaluation.runs import hide_matplotlib

Run = Callable[..., Result]
PAGE = f"# Learned\n\nBefore.\n\n{BEGIN}\nstale text\n{END}\n\nAfter.\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Type `routing-gym study-learned small.yaml …` beside two random routers and a page."""
    monkeypatch.chdir(tmp_path)
    yardstick = {"documented": ["least_queue"], "yardsticks": ["bound"]}
    usual = cluster_part(Path("routers"), routers=yardstick, candidates=["deadline_aware"])
    conditions = {"trace": ["there.csv"]}
    parts = {"usual": usual, "traced": {**usual, "title": "A trace", "conditions": conditions}}
    Path("small.yaml").write_text(yaml.safe_dump({"parts": parts}, sort_keys=False))
    Path("docs").mkdir()
    Path("docs/page.md").write_text(PAGE)

    def typed(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["small.yaml", "--seeds=1", "--workers=1", *arguments])

    return typed


def test_it_writes_a_report_and_the_page(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answer = run("--docs=docs/page.md", "--out=out")
    assert answer.exit_code == 0, answer.output
    # One seed has no interval.
    assert "usual: Trained routers, on average, are no different from deadline_aware: " in answer.output
    summary = Path("out/summary.md").read_text()
    title, _, body = summary.partition("\n")
    assert title == "# Learned routers"
    page = Path("docs/page.md").read_text()
    before, _, rest = page.partition(BEGIN)
    placed, _, after = rest.partition(END)
    assert (before, after) == ("# Learned\n\nBefore.\n\n", "\n\nAfter.\n")
    assert placed.strip("\n") == body.strip("\n")
    assert "### A small cluster" in placed and "stale text" not in placed
    assert str(tmp_path) not in placed
    assert "![A small cluster](learned_usual.png)" in placed
    for folder in ("out", "docs"):
        assert (Path(folder) / "learned_usual.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def plain(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same without matplotlib."""
    hide_matplotlib(monkeypatch)
    return run


def test_without_matplotlib_there_is_a_report_without_plots(plain: Run) -> None:
    answer = plain("--out=out")
    assert answer.exit_code == 0, answer.output
    assert 'pip install "routing-gym[plots]"' in answer.output
    assert ".png" not in Path("out/summary.md").read_text()


def test_a_part_without_its_trace_is_left_out_unless_it_is_asked_for(plain: Run) -> None:
    answer = plain("--out=out")
    assert "part traced is left out; it needs --data with there.csv" in answer.output
    assert "It needs there.csv in the folder `--data`." in Path("out/summary.md").read_text()
    for data in ([], ["--data=docs"]):
        answer = plain("--out=other", "--parts=traced", *data)
        assert isinstance(answer.exception, ConfigError)
        assert "part traced needs there.csv there" in str(answer.exception)


def test_parts_are_played_one_by_one_into_one_report(plain: Run) -> None:
    rows = "\n".join(f"{k / 50},100,{20 + k % 7}" for k in range(1000))
    Path("there.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    assert plain("--out=out", "--parts=traced", "--data=.").exit_code == 0
    assert Path("out/summary.md").read_text().count("Not run here.") == 1
    assert plain("--out=out", "--parts=usual").exit_code == 0
    summary = Path("out/summary.md").read_text()
    assert "Not run here." not in summary
    assert summary.index("### A small cluster") < summary.index("### A trace")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--parts=usuall"], ConfigError, "--parts usuall: must be of usual, traced"),
        (["--docs=README.md"], ResultsError, "README.md must hold one line"),
        (["--docs=none.md"], OSError, "none.md"),
        (["--seeds=10000-10001"], ConfigError, "--seeds 10000-10001: 10000 may have been seen"),
        (["--resume", "--overwrite"], ResultsError, "--resume and --overwrite exclude each other"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_played(
    arguments: list[str], error: type[Exception], message: str, plain: Run
) -> None:
    Path("README.md").write_text("no markers")
    answer = plain("--out=out", *arguments)
    assert isinstance(answer.exception, error)
    assert message in str(answer.exception)
    assert not Path("out").exists()


def test_an_interrupt_says_how_to_go_on(plain: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(study_cli, "run_study", interrupted)
        answer = plain("--out=out")
    assert answer.exit_code == 130
    assert "--resume goes on" in answer.output
    assert plain("--out=out", "--resume").exit_code == 0
    before = Path("out/summary.md").read_text()
    assert plain("--out=out", "--resume").exit_code == 0
    assert Path("out/summary.md").read_text() == before
    shutil.rmtree("routers/cluster-0")
    answer = plain("--out=out", "--resume")
    assert "is trained by `routing-gym train cluster-ppo`" in str(answer.exception).replace(
        "one for this part ", ""
    )
