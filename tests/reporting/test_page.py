"""Reports on disk: one page that needs nothing else, the same in Markdown, and the data of every figure."""

from __future__ import annotations

import csv
import html
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from routing_gym import cli
from routing_gym.evaluation.report import FEW_SEEDS
from routing_gym.evaluation.results import ResultsError
from routing_gym.reporting import figures, markdown
from routing_gym.reporting.figure import Panel
from routing_gym.reporting.page import FIGURES, HTML, MARKDOWN, report, write_docs, write_report
from routing_gym.reporting.sections import MOST_CONDITIONS, NO_FIGURES, contents, section_of
from routing_gym.reporting.tables import headline
from routing_gym.studies.results import PartResults, read_part
from tests.evaluation.runs import hide_matplotlib, table_cells
from tests.reporting.runs import a_figure, change_plan, luck, results_of

SCORES = {"adaptive": 0.5, "least_queue": 0.6, "bound": 0.9}
HOSTILE = "random:x=<i>&\"'|`"
REAL_FIGURES = figures.figures_of
LINKS = ("href", "src", "xlink:href", "data", "action", "poster", "srcset")


class Page(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "link"):
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] in ("th", "td"):
            self.tables[-1][-1][-1] += data

    def all(self, *names: str) -> list[str]:
        """Return the values of attributes."""
        return [value for _, name, value in self.attributes if name in names]


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "figures_of", lambda *about: [])


@pytest.fixture
def one_figure(no_figures: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    monkeypatch.setattr(figures, "figures_of", a_figure)


def run(folder: Path, conditions: int = 2, seeds: int = 8, **how: Any) -> PartResults:
    """Write results of three routers whose differences are as in `SCORES`, whatever the seed."""
    base = luck(conditions, seeds) - 0.5
    return results_of(folder, {label: base / 10 + score for label, score in SCORES.items()}, **how)


def written(results: PartResults, out: Path) -> tuple[Page, str]:
    write_report([results], out)
    page, text = ((out / name).read_text(encoding="utf-8") for name in (HTML, MARKDOWN))
    return Page(page), text


def test_the_page_needs_nothing_else(tmp_path: Path, one_figure: None) -> None:
    page, _ = written(run(tmp_path / "run"), tmp_path)
    assert "script" not in page.tags and "img" not in page.tags and "iframe" not in page.tags
    ids = page.all("id")
    assert len(set(ids)) == len(ids)
    for link in page.all(*LINKS):
        assert link.startswith("data:") or (link[0] == "#" and link[1:] in ids), link
    text = (tmp_path / HTML).read_text(encoding="utf-8")
    assert "@import" not in text and "url(http" not in text
    assert [value for value in page.all("clip-path") if value.removeprefix("url(#")[:-1] not in ids] == []


def test_every_figure_has_its_data_beside_it_and_in_the_page(tmp_path: Path, one_figure: None) -> None:
    from matplotlib.image import imread

    page, text = written(run(tmp_path / "run"), tmp_path)
    (link,) = (value for value in page.all("href") if value.startswith("data:text/csv"))
    beside = (tmp_path / FIGURES / "run-shape.csv").read_text(encoding="utf-8")
    assert unquote(link.partition(",")[2]) == beside
    rows = [["router", "x", "y"], ["adaptive", "0", "2.5"], ['a, "b"', "1", ""], ["bound", "2", "inf"]]
    assert list(csv.reader(beside.splitlines())) == rows
    assert "![A shape](figures/run-shape.png)" in text
    assert imread(tmp_path / FIGURES / "run-shape.png").std() > 0
    assert "run-shape.csv" in page.all("download")


def test_pictures_are_in_the_pages_ink_and_their_text_is_text(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    from routing_gym.reporting.render import panel_svg, swatch_svg

    (figure,) = a_figure()
    one, other = (panel_svg(figure.panels[1], prefix, "all & \"<sundry>'") for prefix in ("a", "b"))
    assert one == panel_svg(figure.panels[1], "a", "all & \"<sundry>'")
    assert set(Page(one).all("id")).isdisjoint(Page(other).all("id"))
    assert "a < b & c" in Page(one).text and "load" in Page(one).text
    assert Page(one).all("aria-label") == ["all & \"<sundry>'"]
    for svg in (one, *(swatch_svg(style, "s") for style in figure.legend.values())):
        assert "#000000" not in svg and "#222222" not in svg
    assert "currentColor" in one and "#0072b2" in one
    assert "stroke-dasharray" in swatch_svg(figure.legend["adaptive"], "s")


def test_dollars_in_a_label_are_no_formula() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    from routing_gym.reporting.render import panel_svg

    svg = panel_svg(Panel(lambda axes: axes.text(0.5, 0.5, r"a=$\no$"), "for $1 and $2"), "a", "prices")
    assert r"a=$\no$" in Page(svg).text and "for $1 and $2" in Page(svg).text


def test_nothing_that_is_named_is_taken_for_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    monkeypatch.setattr(figures, "figures_of", REAL_FIGURES)
    scores = {label: luck(2, 4, seed=k) for k, label in enumerate((HOSTILE, "adaptive", "bound"))}
    part = {"title": "<b>A</b> & B", "note": "<u>note</u>", "axis": "rate_per_s"}
    results = results_of(tmp_path / "run", scores, HOSTILE, part)
    written(results, tmp_path)
    page, text = ((tmp_path / name).read_text(encoding="utf-8") for name in (HTML, MARKDOWN))
    for tag in ("<i>", "<b>", "<u>"):
        assert tag not in page and tag not in text
    for said in (
        "<title>&lt;b&gt;A&lt;/b&gt; &amp; B</title>",
        '<th scope="row">random:x=&lt;i&gt;&amp;',
        'scope="col">Δ to random:x=&lt;i&gt;&amp;',
        "</svg>random:x=&lt;i&gt;&amp;",
        'aria-label="&lt;b&gt;A&lt;/b&gt; &amp; B: All 2 conditions, attainment"',
        'aria-label="Router by condition"',
    ):
        assert said in page, said
    assert text.startswith("# &lt;b>A&lt;/b> & B\n") and "\n&lt;u>note&lt;/u>\n" in text
    rows = [line for line in text.splitlines() if line.startswith("| random:x=&lt;i>&\"'\\|` |")]
    assert len(rows) == 3, "over all conditions, and of each"


def test_what_stands_in_backticks_is_left_as_it_is() -> None:
    assert markdown.escaped("a < b, `c < d`, <e> and ` < `") == "a &lt; b, `c < d`, &lt;e> and ` < `"


def test_headings_go_down_by_one_level_at_a_time(tmp_path: Path, one_figure: None) -> None:
    for folder, deepest in ((study(tmp_path / "s", ["a", "b"]), 4), (run(tmp_path / "alone").folder, 3)):
        report(folder)
        page = Page((folder / HTML).read_text(encoding="utf-8"))
        levels = [int(tag[1]) for tag in page.tags if tag in ("h1", "h2", "h3", "h4")]
        assert levels[0] == 1 and levels.count(1) == 1 and max(levels) == deepest
        assert {after - before for before, after in pairwise(levels)} <= {-2, -1, 0, 1}


def test_all_that_scrolls_or_is_drawn_or_links_to_data_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")
    (shape,) = a_figure()
    untitled = replace(shape, name="plain", title="Plain & simple", panels=[Panel(shape.panels[0].draw)])
    monkeypatch.setattr(figures, "figures_of", lambda *about: [shape, untitled])
    page, _ = written(run(tmp_path / "run"), tmp_path)
    title = "Inference cluster: run"
    named = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert named == ["A shape: steady", "A shape: burst & <more>", "Plain & simple"]
    hidden = [tag for tag, name, _ in page.attributes if name == "aria-hidden"]
    assert len(hidden) == page.tags.count("svg") - len(named) == 4, "the legends'"
    boxes = [value for tag, name, value in page.attributes if (tag, name) == ("div", "aria-label")]
    assert [value for value in boxes if value in named] == named
    assert [value for value in boxes if value not in named] == [
        f"{title}: All 2 conditions, attainment",
        f"{title}: How many seeds a difference needs",
        f"{title}: Each condition: place 0",
        f"{title}: Each condition: place 1",
    ]
    assert page.all("role").count("region") == 4 and page.all("role").count("group") == 3
    links = [value for tag, name, value in page.attributes if (tag, name) == ("a", "aria-label")]
    assert links == ["data (CSV): A shape", "data (CSV): Plain & simple"]
    assert page.all("scope").count("row") == sum(len(table) - 1 for table in page.tables)


def test_a_report_of_the_same_results_is_the_same(tmp_path: Path, one_figure: None) -> None:
    results = run(tmp_path / "run")
    first, again = (write_report([results], tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == [path.name for path in again]
    for path, other in zip(first, again, strict=True):
        if path.suffix != ".png":
            assert path.read_bytes() == other.read_bytes()


def test_the_page_and_markdown_have_the_same_tables(tmp_path: Path) -> None:
    results = run(tmp_path / "run")
    page, text = written(results, tmp_path)
    blocks = [block for block in text.split("\n\n") if block.startswith("| ")]
    tables = []
    for block in blocks:
        head, rule, *rows = block.splitlines()
        assert rule == "|---|" + "---:|" * (len(table_cells(head)) - 1)
        cells = [[html.unescape(cell.strip("*")) for cell in table_cells(line)] for line in (head, *rows)]
        tables.append(cells)
    assert tables == page.tables
    sheet = headline(results)
    assert tables[0] == [list(sheet.headers), *sheet.rows]


def test_yardsticks_are_in_italics_and_the_best_router_is_marked(tmp_path: Path) -> None:
    page, text = written(run(tmp_path / "run"), tmp_path)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert any(row.startswith("| *bound* |") for row in rows)
    assert any(row.startswith("| least_queue ★ |") for row in rows)
    classes = [value for tag, name, value in page.attributes if (tag, name) == ("tr", "class")]
    assert classes[:2] == ["best", "yardstick"]


def test_each_condition_has_its_table_up_to_a_number(tmp_path: Path) -> None:
    few = section_of(run(tmp_path / "few", conditions=3)).chapters
    (chapter,) = (chapter for chapter in few if chapter.title == "Each condition")
    folded = [block.title for block in chapter.blocks if hasattr(block, "blocks")]
    assert folded == ["place 0", "place 1", "place 2"]
    many = section_of(run(tmp_path / "many", conditions=MOST_CONDITIONS + 1, seeds=2)).chapters
    (chapter,) = (chapter for chapter in many if chapter.title == "Each condition")
    assert [vars(block) for block in chapter.blocks] == [
        {"text": "The part has 41 conditions; tables of each are left out above 40.", "warning": False}
    ]


def test_facts_say_what_was_played(tmp_path: Path) -> None:
    results = change_plan(run(tmp_path / "run"), lambda plan: plan.update(command="routing-gym study x"))
    page, text = written(results, tmp_path)
    for said in (page.text, text):
        assert "8 (20000–20007; validation)" in said and "48 of 48" in said
        assert "routing-gym study x" in said and results.plan["machine"] in said
    assert "Incomplete" not in text


def test_incomplete_results_say_so_at_the_top(tmp_path: Path) -> None:
    missing = frozenset({("bound", 1, 0)})
    _, text = written(run(tmp_path / "run", without=missing), tmp_path)
    said = "**Incomplete: 47 of 48 episodes are played. The table is of the 1 of 2 conditions that are.**"
    assert said in text.split("### ")[0].split("## ")[0]


def test_a_part_without_episodes_yet_says_so(tmp_path: Path) -> None:
    results = run(tmp_path / "run")
    (results.folder / "episodes.csv").unlink()
    (results.folder / "shards").mkdir()
    _, text = written(read_part(results.folder), tmp_path)
    assert "**Incomplete: 0 of 48 episodes are played. Without all their episodes" in text
    assert "| " not in text


def test_scores_that_are_not_normalised_yet_say_what_they_wait_for(tmp_path: Path) -> None:
    scores = {"random": luck(2, 6) - 0.2, "adaptive": luck(2, 6), "least_queue": luck(2, 6)}
    part = {"groups": {"documented": ["random", "adaptive"]}}
    said = "**Scores are normalised when random, the documented routers and the clairvoyant are complete.**"
    for absent, waits in (("random", True), ("least_queue", False)):
        missing = frozenset((absent, k, seed) for k in range(2) for seed in range(6))
        folder = tmp_path / absent
        _, text = written(results_of(folder, scores, "adaptive", part, without=missing), folder)
        assert "**Incomplete: 24 of 36" in text and (said in text) == waits


def test_what_results_do_not_show_depends_on_what_was_played(tmp_path: Path) -> None:
    def trace(plan: Any) -> None:
        # Eight seeds of ten seconds: more than the first trace lasts, and all of the second.
        for condition, length in zip(plan["run"]["conditions"], (79.0, 80.0), strict=True):
            condition["labels"] |= {"cutoff_s": 10.0, "trace_s": length}

    results = run(tmp_path / "run", part={"groups": {"trained": ["adaptive"]}})
    plain = "\n".join(section_lines(run(tmp_path / "plain")))
    assert "trained networks" not in plain and "trace overlap" not in plain
    said = "\n".join(section_lines(change_plan(results, trace)))
    assert "Intervals hold trained networks fixed" in said
    assert "The seeds' stretches of a trace overlap (place 0), so" in said


def section_lines(results: PartResults) -> list[str]:
    (chapter,) = (one for one in section_of(results).chapters if one.title.startswith("What these results"))
    return [line for block in chapter.blocks for line in vars(block)["lines"]]


def test_few_seeds_and_newer_versions_are_remarked_on(tmp_path: Path) -> None:
    results = run(tmp_path / "run", seeds=FEW_SEEDS - 1)
    results = change_plan(results, lambda plan: plan["versions"].update({"routing-gym": "99.1"}))
    _, text = written(results, tmp_path)
    assert f"So few seeds give no interval of 95 % either; take {FEW_SEEDS} at least." in text
    assert "Made with routing-gym 99.1, which is newer" in text


def test_what_cannot_be_normalised_is_listed_with_its_reason(tmp_path: Path) -> None:
    base = luck(2, 6)
    scores = {"random": base, "adaptive": base + 0.1, "clairvoyant": base + 0.2}
    scores["clairvoyant"][1] = base[1] + 0.1
    part = {"groups": {"documented": ["adaptive"]}}
    _, text = written(results_of(tmp_path / "run", scores, "adaptive", part), tmp_path)
    (line,) = (line for line in text.splitlines() if line.startswith("- place 1: "))
    assert "clairvoyant is 0.0000" in line and "- place 0: " not in text


def test_the_selection_is_shown_with_its_seeds(tmp_path: Path) -> None:
    run(tmp_path / "part", part={"title": "A part", "candidates": ["adaptive", "least_queue"]})
    scores = {"adaptive": luck(2, 3), "least_queue": luck(2, 3) - 0.1}
    results_of(tmp_path / "part" / "selection", scores, first=10_000)
    report(tmp_path / "part")
    text = (tmp_path / "part" / MARKDOWN).read_text(encoding="utf-8")
    chapter = text.partition("## Selection")[2].partition("##")[0]
    assert "| candidate | mean % | chosen |" in chapter and chapter.count("✓") == 1
    assert "seeds: 3 (10000–10002; development)" in chapter
    assert text.startswith("# A part\n")


def test_without_matplotlib_there_are_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_matplotlib(monkeypatch)
    results = run(tmp_path / "run")
    assert [path.name for path in write_report([results], tmp_path)] == [HTML, MARKDOWN]
    assert NO_FIGURES in (tmp_path / MARKDOWN).read_text(encoding="utf-8")


# Studies


def study(folder: Path, names: Sequence[str], listed: Sequence[str] | None = None) -> Path:
    for name in names:
        run(folder / name, conditions=1, seeds=2, part={"title": f"Part {name}", "note": f"On `{name}`."})
    if listed is not None:
        text = yaml.safe_dump({"title": "A study", "about": "It asks.", "parts": list(listed)})
        (folder / "study.yaml").write_text(text, encoding="utf-8")
    return folder


def test_a_study_has_its_parts_in_order(tmp_path: Path) -> None:
    report(study(tmp_path / "s", ["a", "b"], ["b", "a", "c"]), tmp_path / "out")
    page = Page((tmp_path / "out" / HTML).read_text(encoding="utf-8"))
    text = (tmp_path / "out" / MARKDOWN).read_text(encoding="utf-8")
    assert text.startswith("# A study\n\nIt asks. Not played yet: c.\n\n- [Part b](#b)\n- [Part a](#a)\n")
    assert text.index("## Part b") < text.index("## Part a") and "On `a`." in text
    assert [link for link in page.all("href") if link in ("#a", "#b")] == ["#b", "#a"]
    assert not (tmp_path / "s" / HTML).exists()


def test_a_folder_of_parts_without_a_description_is_a_study(tmp_path: Path) -> None:
    report(study(tmp_path / "some", ["b", "a"]))
    text = (tmp_path / "some" / MARKDOWN).read_text(encoding="utf-8")
    assert text.startswith("# some\n\n- [Part a](#a)\n- [Part b](#b)\n")


def test_a_part_alone_has_its_chapters_as_contents(tmp_path: Path) -> None:
    results = run(tmp_path / "run")
    names = [name for name, _ in contents([section_of(results)])]
    page, text = written(results, tmp_path)
    assert [link for link in page.all("href") if link.startswith("#run")] == [f"#{name}" for name in names]
    assert all(f'<a id="{name}"></a>' in text for name in names) and set(names) <= set(page.all("id"))


def test_a_brief_section_goes_between_a_pages_markers(tmp_path: Path, one_figure: None) -> None:
    results = run(tmp_path / "run")
    figure = {"run-shape": Path("study_run_shape.png")}
    text = markdown.section([results], figure)
    assert "![A shape](study_run_shape.png)" in text and "### Inference cluster: run" in text
    assert "Each condition" not in text and "How many seeds" not in text
    assert "![" not in markdown.section([results], {}) and "Figures" not in markdown.section([results], {})
    assert "Each condition" in markdown.section([results], figure, brief=False)
    page = "# Docs\n\n<!-- study x -->\nold\n<!-- end of study x -->\n\nEnd.\n"
    placed = markdown.place(page, "x", text)
    assert placed == f"# Docs\n\n<!-- study x -->\n\n{text.strip()}\n\n<!-- end of study x -->\n\nEnd.\n"
    assert markdown.place(placed, "x", text) == placed


@pytest.mark.parametrize(
    "page", ["", "<!-- study x -->", "<!-- end of study x --> <!-- study x -->", "<!-- study y -->" * 2]
)
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ResultsError, match="one line <!-- study x --> and below it one line <!-- end of"):
        markdown.place(page, "x", "text")


@pytest.mark.parametrize("named", ["shape", "shade"])
def test_a_page_of_docs_has_the_pictures_that_a_part_names(
    tmp_path: Path, one_figure: None, named: str
) -> None:
    folder, page = tmp_path / "s", tmp_path / "docs.md"
    run(folder / "one", part={"pictures": [named]})
    report(folder)
    page.write_text("<!-- study x -->\n<!-- end of study x -->\n", encoding="utf-8")
    if named == "shape":
        write_docs(page, "x", folder)
        assert "![A shape](docs/x_one-shape.png)" in page.read_text(encoding="utf-8")
        picture = folder / FIGURES / "one-shape.png"
        assert (tmp_path / "docs" / "x_one-shape.png").read_bytes() == picture.read_bytes()
    else:
        with pytest.raises(ResultsError, match=r"^one: pictures: shade: must be of its figures: shape$"):
            write_docs(page, "x", folder)


def test_without_matplotlib_a_page_of_docs_has_no_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_matplotlib(monkeypatch)
    folder, page = tmp_path / "s", tmp_path / "docs.md"
    run(folder / "one", part={"pictures": ["shape"]})
    page.write_text("<!-- study x -->\n<!-- end of study x -->\n", encoding="utf-8")
    write_docs(page, "x", folder)
    assert "| least_queue ★ |" in page.read_text(encoding="utf-8")


# The command


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.delenv("ROUTING_GYM_TRACEBACK", raising=False)

    def type_(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["routing-gym", "report", *map(str, arguments)])
        with pytest.raises(SystemExit):
            cli.main()
        return "".join(capsys.readouterr())

    return type_


def test_the_command_reports_the_parts_that_are_asked_for(tmp_path: Path, typed: Callable[..., str]) -> None:
    folder = study(tmp_path / "s", ["a", "b"], ["a", "b"])
    assert str(tmp_path / "out" / HTML) in typed(folder, "--out", tmp_path / "out", "--parts", "b")
    text = (tmp_path / "out" / MARKDOWN).read_text(encoding="utf-8")
    assert "Part b" in text and "Part a" not in text
    assert "error: --parts c: must be of a, b" in typed(folder, "--parts", "c")


@pytest.mark.parametrize("parts", [3, [3], "ab"])
def test_parts_that_are_no_list_of_names_are_refused(
    tmp_path: Path, typed: Callable[..., str], parts: Any
) -> None:
    folder = study(tmp_path / "s", ["a"])
    (folder / "study.yaml").write_text(yaml.safe_dump({"parts": parts}), encoding="utf-8")
    said = " ".join(typed(folder).split())
    assert f"study.yaml: parts = {parts!r}: must be a list of names" in said


def test_a_folder_without_results_is_refused(tmp_path: Path, typed: Callable[..., str]) -> None:
    assert f"error: {tmp_path} holds no results" in typed(tmp_path)
