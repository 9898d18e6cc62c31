"""`routing-gym calibrate`: how near the constants that are ours come to what is published (DESIGN 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from routing_gym.cloud_edge.config import DEFAULT, CloudEdgeConfig
from routing_gym.cloud_edge.fit import FitRow, fit_table
from routing_gym.cloud_edge.metrics import WINDOW_TERMS
from routing_gym.cloud_edge.synthetic import SyntheticConfig
from routing_gym.cloud_edge.workload import EpisodeSource
from routing_gym.common.config import ConfigError, packaged
from routing_gym.common.seeding import EpisodeStreams, new_generator
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS, Condition, Router, make_jobs, run_jobs

PUBLISHED = packaged("published", "cema-router")["table_v"]
STATIC = ("cloud_only", "edge_only", "round_robin")
# Raw means of the routers that decide nothing: the source's Table V.
TABLE_V: dict[str, dict[str, float]] = {
    name: {term: PUBLISHED["routers"][name][term] for term in WINDOW_TERMS} for name in STATIC
}
PUBLISHED_BATCHES: int = PUBLISHED["batches"]
PUBLISHED_REQUESTS: int = PUBLISHED["requests"]

app = typer.Typer(help="Hold the constants that are ours against what is published.")


class Comparison(NamedTuple):
    """A term of a router: ours over many batches, and the published mean of five.

    `ratio` is ours over the published; `z` is how many standard errors of a mean of five batches, by our own
    spread, the published figure lies from our mean.
    """

    router: str
    term: str
    ours: float
    published: float
    ratio: float
    z: float

    @property
    def near(self) -> bool:
        """Whether it is as near as asked: E and T within 25 %, Q and C within 2 standard errors."""
        if self.term in ("energy_j", "completion_s"):
            return abs(self.ratio - 1.0) <= 0.25
        return abs(self.z) <= 2.0


def compare_to_table_v(config: CloudEdgeConfig, batches: int) -> list[Comparison]:
    """Play the static routers on one-window batches of 30 requests and compare with Table V."""
    config = config.replace(requests=PUBLISHED_REQUESTS, windows=1, trace=None)
    seeds = range(DEVELOPMENT_SEEDS[0], DEVELOPMENT_SEEDS[0] + batches)
    jobs = make_jobs([Router(name, f"cloud_edge/{name}") for name in TABLE_V], [Condition("", config)], seeds)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLE_V}
    for result in run_jobs(jobs):
        found[result.job.router.label].append(result.metrics)
    rows = []
    for router, published in TABLE_V.items():
        for term, figure in published.items():
            values = np.array([metrics[term] for metrics in found[router]])
            error = values.std(ddof=1) / PUBLISHED_BATCHES**0.5
            z = (figure - values.mean()) / error
            rows.append(Comparison(router, term, values.mean(), figure, values.mean() / figure, z))
    return rows


def sample_fit(config: CloudEdgeConfig, count: int) -> list[FitRow]:
    """Draw `count` requests of the config's workload and hold them against what is published of it."""
    if not isinstance(config.workload, SyntheticConfig):
        raise ConfigError(f"workload.kind = {config.workload.kind!r}: only a synthetic workload has a fit")
    workload, models = EpisodeSource(config).workload, config.served.hosted
    contents = workload.contents.draw(EpisodeStreams(new_generator(DEVELOPMENT_SEEDS[0])), count)
    prices = [
        (config.catalogue.models[model].price_in_usd, config.catalogue.models[model].price_out_usd)
        for model in models
    ]
    return fit_table(contents, models, config.workload.published_figures(models), prices)


@app.callback(invoke_without_command=True)
def calibrate(
    catalogue: Annotated[str, typer.Option(help="Name or YAML path of a cloud–edge config.")] = DEFAULT,
    batches: Annotated[int, typer.Option(min=2, help="Batches of 30 requests per static router.")] = 2000,
    requests: Annotated[
        int, typer.Option(min=2, help="Requests to hold the workload's fit against.")
    ] = 50_000,
) -> None:
    """Print the fit of the synthetic workload, and the static routers beside the source's Table V."""
    config = CloudEdgeConfig.create(Path(catalogue) if catalogue.endswith((".yaml", ".yml")) else catalogue)
    console = Console()
    table = Table(title=f"Synthetic workload of {catalogue}, {requests:,} requests", title_justify="left")
    for header in ("figure", "of", "sample", "published"):
        table.add_column(header, justify="left" if header in ("figure", "of") else "right")
    for row in sample_fit(config, requests):
        published = "" if row.published is None else f"{row.published:.4g}"
        table.add_row(row.quantity, row.of, f"{row.sample:.4g}", published)
    console.print(table)
    if catalogue != DEFAULT:
        console.print("Table V of the source is about routerbench-5node; there is none to compare this with.")
        return
    table = Table(
        title=f"Static routers on {batches} batches of {PUBLISHED_REQUESTS}, and Table V",
        title_justify="left",
    )
    for header in ("router", "term", "ours", "published", "ratio", "standard errors", ""):
        table.add_column(header, justify="left" if header in ("router", "term") else "right")
    for line in compare_to_table_v(config, batches):
        table.add_row(
            line.router,
            line.term,
            f"{line.ours:.4g}",
            f"{line.published:.4g}",
            f"{line.ratio:.2f}",
            f"{line.z:+.1f}",
            "ok" if line.near else "off",
        )
    console.print(table)
    console.print(
        "Asked for: energy and completion time within 25 %, quality loss and cost within 2 standard errors "
        f"of a mean of {PUBLISHED_BATCHES} batches."
    )
