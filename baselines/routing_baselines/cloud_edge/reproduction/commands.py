"""`routing-gym reproduce`: the source's experiments on recorded outcomes, beside its figures (DESIGN 6)."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from routing_baselines.cloud_edge.reproduction import experiments, findings
from routing_baselines.cloud_edge.reproduction.published import COMPARED, PUBLISHED, Played, read_played
from routing_baselines.cloud_edge.reproduction.scaling_plot import draw_scaling
from routing_gym.cli.cloud_edge import cloud_edge_conditions
from routing_gym.cli.options import Run, make_console, run_comparison
from routing_gym.evaluation.arguments import routers_of
from routing_gym.evaluation.cloud_edge_report import remarks
from routing_gym.evaluation.drawing import styles_of
from routing_gym.evaluation.report import Sheet, markdown_table
from routing_gym.evaluation.results import read_plan, strict_json
from routing_gym.evaluation.runner import TEST_SEEDS_FROM

ROUTERS = (
    *COMPARED,
    findings.FIXED,
    findings.GREEDY,
    findings.ALONE,
    findings.UNQUEUED,
    findings.SEARCH,
    findings.OPTIMAL,
)
NOTE = (
    "paper: as published; ours: means over batches, with 95 % bootstrap intervals; of decisions the "
    "median. source's J: each term between the least and the largest of the six routers that "
    "the source compares, batch by batch; other routers do not change it, and may lie outside. J, fixed "
    "bounds: of what is paid (DESIGN 4). gap: J above the proven optimum, as a share of it, on what routers "
    "are shown. The source's decisions include, on the testbed, embedding, retrieval and calls of services."
)
GUTTER = 2
"""Blanks between the columns of a printed table."""
MARKDOWN, DATA, PLOT = "published.md", "published.json", "figure_7_{}.png"

app = typer.Typer(
    no_args_is_help=True, help="Repeat the source's cloud–edge experiments on recorded outcomes."
)

TABLE = Annotated[Path, typer.Argument(metavar="TABLE", help="Table of outcomes: a CSV or Parquet file.")]
PROMPTS = Annotated[Path | None, typer.Option(help="A second file with the prompts' texts.")]
EMBEDDINGS = Annotated[Path | None, typer.Option(help="An .npz of the prompts' embeddings.")]
PREDICTION = Annotated[
    str | None,
    typer.Option(help="What routers know of qualities and lengths, by comma: perfect, store, mean."),
]
WORKERS = Annotated[
    int, typer.Option(min=0, help="Processes; 0 takes one per CPU, up to 4, and times decisions worse.")
]
RESUME = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]
OVERWRITE = Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")]
OUT = typer.Option(help="Folder for the results.")


@app.command("table-v")
def table_v(
    table: TABLE,
    prompts: PROMPTS = None,
    embeddings: EMBEDDINGS = None,
    batches: Annotated[
        int, typer.Option(min=2, help="Batches; the first five stand for the source's.")
    ] = 200,
    prediction: PREDICTION = None,
    out: Annotated[Path, OUT] = Path("results/table-v"),
    workers: WORKERS = 1,
    resume: RESUME = False,
    overwrite: OVERWRITE = False,
) -> None:
    """Table V: batches of 30 requests of RouterBench, 11 destinations.

    Routers know qualities exactly, as in the source's simulation, and for comparison retrieve them from
    other prompts (without --embeddings: know each model's mean).
    """
    workload = {"kind": "routerbench", "table": table, "prompts": prompts, "embeddings": embeddings}
    known = prediction or _exact_and_predicted(embeddings)
    run = _run("routerbench-5node", workload, [PUBLISHED["table_v"]["requests"]], batches, known)
    run_comparison("cloud_edge", run, out, findings.CEMA, workers, resume=resume, overwrite=overwrite)
    _report(out, experiments.table_v(read_played(out)))


@app.command("tables-vi-vii")
def tables_vi_vii(
    table: TABLE,
    embeddings: EMBEDDINGS = None,
    runs: Annotated[int, typer.Option(min=2, help="Batches of each size.")] = PUBLISHED["table_vi"]["runs"],
    prediction: PREDICTION = None,
    out: Annotated[Path, OUT] = Path("results/tables-vi-vii"),
    workers: WORKERS = 1,
    resume: RESUME = False,
    overwrite: OVERWRITE = False,
) -> None:
    """Tables VI and VII: batches of 10, 30 and 50 questions of GSM8K on the testbed, with stand-ins.

    Routers retrieve qualities from other prompts (without --embeddings: know each model's mean). The
    source's rows of MMLU have no counterpart, as there are no outcomes of these models.
    """
    workload = {"kind": "gsm8k", "table": table, "embeddings": embeddings}
    known = prediction or ("mean" if embeddings is None else "store")
    run = _run("testbed-6node", workload, PUBLISHED["table_vii"]["requests"], runs, known)
    run_comparison("cloud_edge", run, out, findings.CEMA, workers, resume=resume, overwrite=overwrite)
    _report(out, experiments.tables_vi_vii(read_played(out)))


@app.command("figure-7")
def figure_7(
    table: TABLE,
    prompts: PROMPTS = None,
    embeddings: EMBEDDINGS = None,
    batches: Annotated[int, typer.Option(min=2, help="Batches for each number of destinations.")] = PUBLISHED[
        "figure_7"
    ]["batches"],
    prediction: PREDICTION = None,
    out: Annotated[Path, OUT] = Path("results/figure-7"),
    workers: WORKERS = 1,
    resume: RESUME = False,
    overwrite: OVERWRITE = False,
) -> None:
    """Figure 7: batches of 30 requests of RouterBench, 11 to 88 destinations by copies of the catalogue.

    What routers know is as for table-v.
    """
    source = PUBLISHED["figure_7"]
    workload = {"kind": "routerbench", "table": table, "prompts": prompts, "embeddings": embeddings}
    copies = [count // source["destinations"][0] for count in source["destinations"]]
    known = prediction or _exact_and_predicted(embeddings)
    run = _run("routerbench-5node", workload, [source["requests"]], batches, known, copies)
    run_comparison("cloud_edge", run, out, findings.CEMA, workers, resume=resume, overwrite=overwrite)
    conditions = read_played(out)
    _report(out, experiments.figure_7(conditions))
    _plot(out, conditions)


def _exact_and_predicted(embeddings: Path | None) -> str:
    return f"perfect,{'mean' if embeddings is None else 'store'}"


def _run(
    catalogue: str,
    workload: Mapping[str, Any],
    requests: Sequence[int],
    batches: int,
    prediction: str,
    copies: Sequence[int] = (1,),
) -> Run:
    """Return what to compare: episodes of one window, the same ones for every prediction."""
    conditions = cloud_edge_conditions(
        catalogue,
        {"workload": {name: value for name, value in workload.items() if value is not None}},
        requests=",".join(map(str, requests)),
        replicate=",".join(map(str, copies)),
        prediction=prediction,
    )
    routers = routers_of(",".join(ROUTERS), "cloud_edge")
    return Run(routers, conditions, list(range(TEST_SEEDS_FROM, TEST_SEEDS_FROM + batches)), findings.CEMA)


def _report(out: Path, report: experiments.Report) -> None:
    """Print tables and findings, and write them beside the run's results."""
    tables, found = report
    plan = read_plan(out)
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    notes = [NOTE, *remarks(summary)]
    lines = ["# Published figures beside ours", "", f"`{plan['command']}`", ""]
    console = make_console()
    for table in tables:
        for sheet in table.sheets():
            lines += [f"## {sheet.title}", "", *markdown_table(sheet), ""]
            _print(console, sheet, len(table.keys))
    for note in notes:
        lines += [note, ""]
        console.print(Text(note, style="dim"))
    lines += ["## Findings", ""]
    console.print(Text("Findings", style="bold"))
    for finding in found:
        lines.append(f"- {finding.text}")
        console.print(Text(f"- {finding.text}"))
    data = {
        "tables": [table.data() for table in tables],
        "findings": [finding._asdict() for finding in found],
    }
    text = json.dumps(strict_json(data), indent=1, allow_nan=False, ensure_ascii=False)
    (out / DATA).write_text(text + "\n", encoding="utf-8")
    (out / MARKDOWN).write_text("\n".join([*lines, ""]), encoding="utf-8")
    console.print(Text(f"Beside the published figures in {out}: {MARKDOWN}, {DATA}"))


def _print(console: Console, sheet: Sheet, keys: int) -> None:
    """Print a table, in several parts where it is too wide, so that no number is cut."""
    columns = list(zip(sheet.headers, *sheet.rows, strict=True))
    widths = [max(map(len, (*header.split(), *cells))) for header, *cells in columns]
    room = console.width - sum(widths[:keys]) - GUTTER * keys
    parts: list[list[int]] = [[]]
    for k in range(keys, len(columns)):
        if parts[-1] and sum(widths[i] + GUTTER for i in (*parts[-1], k)) > room + GUTTER:
            parts.append([])
        parts[-1].append(k)
    console.print(Text(sheet.title, style="bold"))
    for part in parts:
        table = Table(box=None, pad_edge=False, padding=(0, GUTTER, 0, 0), header_style="bold")
        for k in (*range(keys), *part):
            header = textwrap.fill(sheet.headers[k], widths[k], break_long_words=False)
            table.add_column(Text(header), justify="left" if k < keys else "right", no_wrap=True)
        for cells, yardstick in zip(sheet.rows, sheet.yardsticks, strict=True):
            row = [Text(cells[k]) for k in (*range(keys), *part)]
            table.add_row(*row, style="italic dim" if yardstick else "")
        console.print(table)
        console.print()


def _plot(out: Path, conditions: Sequence[Played]) -> None:
    """Draw a plot per prediction."""
    console = make_console()
    styles = styles_of(read_plan(out)["run"])
    for alike in experiments.by_prediction(conditions).values():
        path = out / PLOT.format(alike[0].labels["prediction"])
        try:
            console.print(Text(f"Plot: {draw_scaling(path, alike, styles)}"))
        except ImportError:
            console.print(Text('No plot: matplotlib is missing; pip install "routing-gym[plots]"'))
