"""`routing-gym report-learned`: what can be typed, and what it writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("pyarrow")

from routing_agents.study_cli import app
from routing_gym.evaluation.results import ResultsError
from routing_gym.studies.storage import shard_files
from tests.agents.studies import CANDIDATES, cluster_part, played, study
from tests.evaluation.runs import hide_matplotlib

Run = Callable[..., Result]
BEGIN, END = "<!-- study learned -->", "<!-- end of study learned -->"
PAGE = f"# Learned\n\nBefore.\n\n{BEGIN}\nstale text\n{END}\n\nAfter.\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study of three parts of which two are played, `zero` before `alpha`."""
    folder = tmp_path_factory.mktemp("study")
    first = cluster_part(folder, candidates=CANDIDATES[:2])
    second = {**first, "title": "Another", "candidates": [], "reference": "deadline_aware"}
    parts = {"zero": first, "alpha": second, "later": second}
    out = folder / "out"
    played(study(**parts), out, seeds="1")
    shutil.rmtree(out / "later")
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Type `routing-gym report-learned …` beside a copy of the study's folder, `out`, and a page."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, "out")
    Path("docs").mkdir()
    Path("docs/page.md").write_text(PAGE)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_it_writes_a_report_and_the_page(run: Run, whole: Path) -> None:
    pytest.importorskip("matplotlib")
    answer = run("out", "--docs=docs/page.md")
    assert answer.exit_code == 0, answer.output
    # One seed has no interval.
    assert "zero: Trained routers, on average, are no different from deadline_aware" in answer.output
    title, _, body = Path("out/summary.md").read_text().partition("\n")
    assert title == "# Learned routers"
    before, _, rest = Path("docs/page.md").read_text().partition(BEGIN)
    placed, _, after = rest.partition(END)
    assert (before, after) == ("# Learned\n\nBefore.\n\n", "\n\nAfter.\n")
    assert placed.strip("\n") == body.strip("\n")
    assert placed.index("### A small cluster") < placed.index("### Another"), "the study's order"
    assert "\nNot played yet: later.\n" in placed
    assert "![A small cluster](learned_zero.png)" in placed
    for folder in ("out", "docs"):
        assert (Path(folder) / "learned_zero.png").read_bytes().startswith(b"\x89PNG")
    again = Path("docs/page.md").read_bytes()
    assert run("out", "--docs=docs/page.md").exit_code == 0
    assert Path("docs/page.md").read_bytes() == again


def test_results_learned_is_the_folder_unless_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_matplotlib(monkeypatch)
    Path("results").mkdir()
    Path("out").rename("results/learned")
    assert run().exit_code == 0
    assert Path("results/learned/summary.md").exists()


def test_without_matplotlib_there_is_a_report_without_plots(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    answer = run("out")
    assert answer.exit_code == 0, answer.output
    assert 'pip install "routing-gym[plots]"' in answer.output
    assert ".png" not in Path("out/summary.md").read_text()


def test_a_part_that_is_not_played_to_its_end_is_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_matplotlib(monkeypatch)
    shard_files(Path("out/zero"))[-1].unlink()
    answer = run("out")
    assert answer.exit_code == 0, answer.output
    assert "part zero is left out: it is not played to its end" in answer.output
    summary = Path("out/summary.md").read_text()
    assert "### Another" in summary and "### A small cluster" not in summary


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["nowhere"], ResultsError, "nowhere holds no results"),
        (
            ["out", "--docs=README.md"],
            ResultsError,
            "README.md: the page must hold one line <!-- study learned",
        ),
        (["out", "--docs=none.md"], OSError, "none.md"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    arguments: list[str], error: type[Exception], message: str, run: Run
) -> None:
    Path("README.md").write_text("no markers")
    answer = run(*arguments)
    assert isinstance(answer.exception, error)
    assert message in str(answer.exception)
    assert not Path("out/summary.md").exists()
