"""`routing-gym study` and `routing-gym report`: what can be typed, and what is on disk then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("pyarrow", reason="needs the extra `studies`")

from tests.studies.runs import cluster_part
from tests.test_cli import Run, run  # noqa: F401

PAGE = "# Results\n\nBefore.\n\n<!-- study mine -->\nstale\n<!-- end of study mine -->\n\nAfter.\n"
TYPED = ("study", "mine.yaml", "--seeds", "2", "--workers", "1")


def write(path: str = "mine.yaml", **parts: Any) -> None:
    """Write a study beside the command, and a page of docs."""
    parts = parts or {"a": cluster_part(pictures=["rank"]), "b": cluster_part(note="Another.")}
    study = {"title": "Mine", "about": "Whether it works.", "parts": parts}
    Path(path).write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    Path("page.md").write_text(PAGE, encoding="utf-8")


def test_a_study_is_played_and_reported(run: Run) -> None:  # noqa: F811
    pytest.importorskip("matplotlib")
    write()
    answer = run(*TYPED, "--docs", "page.md")
    assert answer.status == 0, answer.err
    assert "64 episodes take about" in answer.out
    out = Path("results/mine")
    assert {path.name for path in out.iterdir()} >= {
        "a",
        "b",
        "figures",
        "report.html",
        "report.md",
        "study.yaml",
    }
    page = Path("page.md").read_text(encoding="utf-8")
    assert page.startswith("# Results\n\nBefore.\n\n<!-- study mine -->\n\nWhether it works.")
    assert page.endswith("<!-- end of study mine -->\n\nAfter.\n")
    assert "stale" not in page and "Another." in page and "| round_robin" in page
    assert page.count("![") == 1 and "](page/mine_a-rank.png)" in page
    assert Path("page/mine_a-rank.png").read_bytes() == (out / "figures" / "a-rank.png").read_bytes()

    again = run(*TYPED, "--docs", "page.md")
    assert again.status == 0, again.err
    assert "episodes take about" not in again.out
    assert Path("page.md").read_text(encoding="utf-8") == page

    Path("elsewhere").mkdir()
    report = run("report", out, "--parts", "b", "--out", "elsewhere")
    assert report.status == 0, report.err
    text = Path("elsewhere/report.md").read_text(encoding="utf-8")
    assert "Another." in text and not list(Path("elsewhere/figures").glob("a-*"))


def test_sizes_play_nothing(run: Run) -> None:  # noqa: F811
    write()
    answer = run(*TYPED, "--sizes")
    assert answer.status == 0, answer.err
    assert "64 episodes take about" in answer.out
    assert not Path("results").exists()


def test_parts_that_lack_data_are_left_out(run: Run) -> None:  # noqa: F811
    traced = cluster_part(conditions={"trace": ["there.csv"], "load": [0.5]})
    write(a=traced, b=cluster_part())
    answer = run(*TYPED)
    assert answer.status == 0, answer.err
    assert "part a is left out; it needs --data with there.csv" in answer.err
    assert sorted(path.name for path in Path("results/mine").glob("*/config.yaml")) == ["config.yaml"]
    asked = run(*TYPED, "--parts", "a")
    assert asked.status == 2 and "part a needs there.csv there" in asked.err
    rows = "\n".join(f"{k / 5},100,{20 + k % 7}" for k in range(600))
    Path("data").mkdir()
    Path("data/there.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    given = run(*TYPED, "--parts", "a", "--data", "data")
    assert given.status == 0, given.err
    assert Path("results/mine/a/config.yaml").is_file()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--parts", "c"], "--parts c: must be of a, b"),
        (["--address", "auto"], "--address auto: is of --engine ray"),
        (["--seeds", "10000-10007"], "10000 may have been seen in training or selection"),
        (["--docs", "other.md"], "<!-- study mine -->"),
        (["--docs", "missing.md"], "missing.md"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, more: list[str], message: str) -> None:  # noqa: F811
    write()
    Path("other.md").write_text("# Nothing to replace\n", encoding="utf-8")
    answer = run(*TYPED, *more)
    assert answer.status == 2
    assert message in answer.err and answer.err.count("\n") == 1
    assert not Path("results").exists()


def test_a_study_that_is_none_says_which_fields_are_wrong(run: Run) -> None:  # noqa: F811
    write(a=cluster_part(rooters={}, seeds="many"))
    answer = run(*TYPED)
    assert answer.status == 2
    assert "parts.a.rooters is not a field (did you mean routers" in answer.err
    unknown = run("study", "exploratoin")
    assert unknown.status == 2 and "did you mean exploration?" in unknown.err


def test_an_interrupt_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    from routing_gym.studies import run as module

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    write()
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_shard", interrupted)
        answer = run(*TYPED)
    assert answer.status == 130
    assert f"finished shards are in {Path('results/mine')}, the same command goes on" in answer.err
    assert run(*TYPED).status == 0


def test_without_pyarrow_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    write()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    answer = run(*TYPED)
    assert answer.status == 2
    assert 'pip install "routing-gym[studies]"' in answer.err
    assert not Path("results").exists()
