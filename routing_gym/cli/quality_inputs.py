"""What the sub-commands of `routing-gym quality` share: their options, and reading tables and embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from routing_gym.cli.options import tell
from routing_gym.common.config import ConfigError
from routing_gym.quality.cache import CachedEmbedder, default_cache
from routing_gym.quality.columns import Columns, load_columns
from routing_gym.quality.embedding import make_embedder
from routing_gym.quality.reading import PICKLE, LackingColumns
from routing_gym.quality.splits import prompt_keys
from routing_gym.quality.tables import OutcomeTable, read_table
from routing_gym.quality.vectors import read_embeddings

TableFile = Annotated[
    Path,
    typer.Argument(metavar="TABLE", help="Recorded outcomes: CSV (also .gz), Parquet, or a pandas pickle."),
]
ColumnsOption = Annotated[
    str, typer.Option(help="What the columns hold: a workload's name, or a YAML path.", show_default=True)
]
PromptsOption = Annotated[
    Path | None, typer.Option(help="A second table, of ids and prompt texts, where TABLE lacks the texts.")
]
EmbeddingsOption = Annotated[
    Path | None, typer.Option(help="An .npz of the prompts' embeddings and perhaps ids, or an .npy.")
]
EmbedderOption = Annotated[
    str | None,
    typer.Option(
        help="Instead: minilm, minilm:FOLDER or sentence-transformers:NAME_OR_FOLDER embeds the texts."
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(help="Where embeddings are kept. Default: $ROUTING_GYM_CACHE, or the user's cache folder."),
]
PickleOption = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Load TABLE though it is a pickle. Loading a pickle runs whatever code is in the file, with all "
        "that you may do: only load one from a source that you trust.",
    ),
]


class Data(NamedTuple):
    """A table, its (n, D) embeddings with rows of NaN where there is none, and its n prompt keys."""

    columns: Columns
    table: OutcomeTable
    embeddings: NDArray[np.float32]
    keys: tuple[str, ...]


def read_outcomes(
    console: Console, path: Path, columns: str, prompts: Path | None, allow_pickle: bool
) -> OutcomeTable:
    """Read a table and say what was read."""
    layout = load_columns(columns)
    pickles = [file for file in (path, prompts) if file and file.name.lower().endswith(PICKLE)]
    if allow_pickle and pickles:
        tell(
            "note:",
            f"loading {pickles[0]}, a pickle, runs whatever code is in the file; only do so if you trust its "
            "source. `routing-gym quality convert` makes a file of it that runs none.",
            style="bold",
        )
    try:
        table = read_table(path, layout, prompts, allow_pickle=allow_pickle)
    except LackingColumns as error:
        raise LackingColumns(
            f"{error}. That is as --columns {columns} says; --columns names a YAML file for another table"
        ) from None
    console.print(Text(f"{path}: {len(table.ids):,} rows, {len(table.models)} models."), soft_wrap=True)
    for note in table.notes:
        console.print(Text(f"  {note}"), soft_wrap=True)
    return table


def read_data(
    console: Console,
    path: Path,
    columns: str,
    prompts: Path | None,
    embeddings: Path | None,
    embedder: str | None,
    cache: Path | None,
    allow_pickle: bool,
) -> Data:
    """Read a table with the embeddings of its prompts, and say what was read."""
    if (embeddings is None) == (embedder is None):
        raise ConfigError("--embeddings FILE.npz or --embedder SPEC: give one of the two")
    table = read_outcomes(console, path, columns, prompts, allow_pickle)
    vectors = (
        embed_texts(console, table, embedder, cache) if embedder else read_embeddings(str(embeddings), table)
    )
    keys = prompt_keys(table, vectors)
    without = int(np.isnan(vectors[:, 0]).sum())
    console.print(
        Text(
            f"  {len(set(keys)):,} different prompts, {len(keys) - len(set(keys)):,} rows are duplicates; "
            f"{without:,} rows have no embedding."
        ),
        soft_wrap=True,
    )
    return Data(load_columns(columns), table, vectors, keys)


def embed_texts(console: Console, table: OutcomeTable, spec: str, cache: Path | None) -> NDArray[np.float32]:
    """Return (n, D) embeddings of a table's texts; an interrupt is answered by where they are kept."""
    rows = [row for row, text in enumerate(table.prompts) if text is not None]
    if not rows:
        raise ConfigError(
            f"--embedder {spec}: {table.source} has no prompt text; --prompts brings a file of it"
        )
    folder = cache or default_cache()
    cached = CachedEmbedder(make_embedder(spec), folder)
    bar = Progress(
        TextColumn("embed"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} prompts"),
        TimeRemainingColumn(),
        console=console,
    )
    try:
        with bar:
            task = bar.add_task("embed", total=len(rows))
            found = cached.embed(
                [str(table.prompts[row]) for row in rows], lambda done: bar.update(task, completed=done)
            )
    except KeyboardInterrupt:
        tell(
            "interrupted;",
            f"what was embedded is in the cache, {folder}: the same command goes on from there",
        )
        raise typer.Exit(130) from None
    vectors = np.full((len(table.ids), cached.dimension), np.nan, np.float32)
    vectors[rows] = found
    return vectors
