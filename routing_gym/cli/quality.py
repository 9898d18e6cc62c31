"""`routing-gym quality`: fit a predictor of answer quality to recorded outcomes, and say how good it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from routing_gym.cli.options import make_console
from routing_gym.cli.quality_inputs import (
    CacheOption,
    ColumnsOption,
    Data,
    EmbedderOption,
    EmbeddingsOption,
    PickleOption,
    PromptsOption,
    TableFile,
    embed_texts,
    read_data,
    read_outcomes,
)
from routing_gym.common.config import ConfigError, packaged, validate
from routing_gym.evaluation import quality_report as report
from routing_gym.quality import selection
from routing_gym.quality.assessment import assess
from routing_gym.quality.columns import Columns, load_columns
from routing_gym.quality.folder import EVALUATION, check_free, import_faiss
from routing_gym.quality.predictor import QualityPredictor
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.splits import split_by_prompt
from routing_gym.quality.store import column_means
from routing_gym.quality.tables import check_format, write_table
from routing_gym.quality.vectors import write_embeddings

app = typer.Typer(
    no_args_is_help=True, help="Predict answer quality from recorded outcomes, and say how well it works."
)


@app.command()
def build(
    table: TableFile,
    out: Annotated[Path, typer.Option(help="Folder for the predictor; figures go into its `evaluation`.")],
    columns: ColumnsOption = "routerbench",
    prompts: PromptsOption = None,
    embeddings: EmbeddingsOption = None,
    embedder: EmbedderOption = None,
    neighbours: Annotated[int | None, typer.Option(help="K: most neighbours that count.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Cosine that a neighbour must exceed.")] = None,
    clusters: Annotated[int | None, typer.Option(help="Clusters of prompts.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the split, the folds and k-means.")] = None,
    profile: Annotated[
        float | None, typer.Option(help="Share of prompts whose outcomes are retrieved.")
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Share of prompts for errors by cluster. The rest is for the figures."),
    ] = None,
    choose: Annotated[
        bool | None,
        typer.Option(
            "--choose/--no-choose",
            help="Choose K, threshold and, if not given, clusters by cross-validation, without the "
            "prompts held out. Default: unless K or the threshold is given.",
            show_default=False,
        ),
    ] = None,
    cache: CacheOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the predictor in --out.")] = False,
    allow_pickle: PickleOption = False,
) -> None:
    """Fit a predictor to recorded outcomes, save it, and evaluate it on the prompts held out."""
    console = make_console()
    given = {
        name: value
        for name, value in {
            "profile": profile,
            "validation": validation,
            "seed": seed,
            "neighbours": neighbours,
            "threshold": threshold,
            "clusters": clusters,
        }.items()
        if value is not None
    }
    settings = validate(FitSettings, given)
    by_hand = [name for name in ("neighbours", "threshold") if name in given]
    if choose and by_hand:
        raise ConfigError(f"--{by_hand[0]} {given[by_hand[0]]}: --choose chooses it; give one of the two")
    if out.exists() and not overwrite:
        raise ConfigError(f"--out {out}: is there already; --overwrite replaces a predictor")
    import_faiss()  # before the long work, not after it, as what follows
    check_free(out, overwrite)
    data = read_data(console, table, columns, prompts, embeddings, embedder, cache, allow_pickle)
    facts = _show_split(console, data, settings)
    trials: report.Trials = {}
    if choose or (choose is None and not by_hand):
        settings, trials = _choose(console, data, settings, choose_clusters=clusters is None)
    predictor = QualityPredictor.fit(data.table, data.embeddings, settings)
    predictor.save(out, overwrite=overwrite)
    fitted = predictor.clusters
    console.print(
        Text(
            f"Saved in {out}: K = {settings.neighbours}, threshold {settings.threshold:g}, "
            f"{len(fitted.centroids)} clusters. Of their {fitted.counts.size:,} cells {fitted.empty_cells:,} "
            "have no recorded score and take the model's mean error."
        ),
        soft_wrap=True,
    )
    _evaluate(console, predictor, data, out / EVALUATION, facts, trials)


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder of a predictor, as `build` makes it.")],
    table: TableFile,
    columns: ColumnsOption = "routerbench",
    prompts: PromptsOption = None,
    embeddings: EmbeddingsOption = None,
    embedder: EmbedderOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the figures. Default: `evaluation` in FOLDER.")
    ] = None,
    cache: CacheOption = None,
    allow_pickle: PickleOption = False,
) -> None:
    """Hold a saved predictor against recorded outcomes of prompts that it was not fitted to."""
    console = make_console()
    predictor = QualityPredictor.load(folder)
    data = read_data(console, table, columns, prompts, embeddings, embedder, cache, allow_pickle)
    _evaluate(console, predictor, data, out or folder / EVALUATION, {}, {})


@app.command()
def embed(
    table: TableFile,
    embedder: Annotated[
        str, typer.Option(help="minilm, minilm:FOLDER or sentence-transformers:NAME_OR_FOLDER.")
    ],
    out: Annotated[Path, typer.Option(help="The .npz file to write: ids and embeddings.")],
    columns: ColumnsOption = "routerbench",
    prompts: PromptsOption = None,
    cache: CacheOption = None,
    allow_pickle: PickleOption = False,
) -> None:
    """Embed a table's prompts once, for `--embeddings` and for the config of a workload."""
    console = make_console()
    if out.suffix != ".npz":
        raise ConfigError(f"--out {out}: must end in .npz")
    found = read_outcomes(console, table, columns, prompts, allow_pickle)
    vectors = embed_texts(console, found, embedder, cache)
    rows = np.flatnonzero(~np.isnan(vectors[:, 0]))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_embeddings(out, [found.ids[row] for row in rows], vectors[rows])
    console.print(
        Text(f"Wrote {out}: {len(rows):,} embeddings of {vectors.shape[1]} dimensions."), soft_wrap=True
    )


@app.command()
def convert(
    table: TableFile,
    out: Annotated[Path, typer.Option(help="The .csv, .csv.gz or .parquet file to write.")],
    columns: ColumnsOption = "routerbench",
    prompts: PromptsOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file --out.")] = False,
    allow_pickle: PickleOption = False,
) -> None:
    """Write a table as CSV or Parquet, in the same columns: once, so that no pickle need be loaded again.

    Token counts that are estimated are not written: they are estimated again from what is.
    """
    console = make_console()
    layout = load_columns(columns)
    check_format(out)
    if out.exists() and table.exists():
        if out.samefile(table):
            raise ConfigError(f"--out {out}: is TABLE itself; name another file")
        if not overwrite:
            raise ConfigError(f"--out {out}: is there already; --overwrite replaces it")
    if prompts and layout.prompt is None:
        raise ConfigError(
            f"--prompts {prompts}: --columns {columns} names no column `prompt`, in which its texts would be "
            f"written to {out}; add one, or leave --prompts out"
        )
    found = read_outcomes(console, table, columns, prompts, allow_pickle)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(found, out, layout)
    console.print(Text(f"Wrote {out}: {len(found.ids):,} rows, {len(found.models)} models."), soft_wrap=True)


def _show_split(console: Console, data: Data, settings: FitSettings) -> dict[str, Any]:
    """Show how many prompts each side of the split has, and return that."""
    embedded = ~np.isnan(data.embeddings[:, 0])
    split = split_by_prompt(data.keys, settings)
    sides = {
        side: {
            "rows": len(rows),
            "prompts": len({data.keys[row] for row in rows}),
            "embedded": int(embedded[rows].sum()),
        }
        for side, rows in split._asdict().items()
    }
    shown = [[side, *(f"{count:,}" for count in counts.values())] for side, counts in sides.items()]
    headers = ("side", "rows", "different prompts", "rows with embedding")
    console.print(report.table(f"Split by prompt, seed {settings.seed}", headers, shown))
    return {"notes": list(data.table.notes), "split": sides}


def _choose(
    console: Console, data: Data, settings: FitSettings, choose_clusters: bool
) -> tuple[FitSettings, report.Trials]:
    """Choose K, threshold and perhaps clusters by cross-validation; return also what was tried."""
    tried = packaged("quality", "default")["cross_validation"]
    split = split_by_prompt(data.keys, settings)
    embedded = ~np.isnan(data.embeddings[:, 0])
    sides = {"profile": split.profile} | ({"validation": split.validation} if choose_clusters else {})
    folds = {}
    for name, rows in sides.items():
        prompts = len({data.keys[row] for row in rows[embedded[rows]]})
        if prompts < 2:
            raise ConfigError(
                f"{data.table.source}: different prompts with an embedding on the {name} side: {prompts}; "
                "cross-validation takes at least 2. --no-choose does without; --profile and --validation set "
                "the shares"
            )
        folds[name] = min(tried["folds"], prompts)

    def side(rows: NDArray[np.int64]) -> tuple[list[str], Any, Any]:
        return [data.keys[row] for row in rows], data.embeddings[rows], data.table.scores[rows]

    with console.status("cross-validating K and the threshold"):
        trials = selection.cross_validate(
            *side(split.profile),
            neighbours=tried["neighbours"],
            thresholds=tried["thresholds"],
            folds=folds["profile"],
            seed=settings.seed,
        )
    best = selection.choose(trials)
    console.print(report.trials_table("K and threshold, cross-validated", trials, best))
    scores = data.table.scores[split.profile[embedded[split.profile]]]
    squares = (scores - column_means(scores)) ** 2
    console.print(
        f"Always the mean has a mean squared error of {column_means(squares.reshape(-1, 1))[0]:.4f} there."
    )
    chosen: dict[str, Any] = {"neighbours": best.neighbours, "threshold": best.threshold}
    found: report.Trials = {"neighbours": trials}
    if choose_clusters:
        with console.status("cross-validating the number of clusters"):
            try:
                of_clusters = selection.cross_validate_clusters(
                    data.embeddings[split.profile],
                    *side(split.validation),
                    clusters=tried["clusters"],
                    folds=folds["validation"],
                    seed=settings.seed,
                )
            except ValueError as error:  # a model with too few scores for as many parts
                raise ConfigError(
                    f"{data.table.source}: clusters cannot be cross-validated: {error} in some part; "
                    "--clusters N sets them"
                ) from error
        fitting = selection.choose(of_clusters)
        console.print(report.trials_table("Clusters, cross-validated", of_clusters, fitting))
        chosen["clusters"] = fitting.clusters
        found["clusters"] = of_clusters
    return validate(FitSettings, settings.model_dump() | chosen), found


def _evaluate(
    console: Console,
    predictor: QualityPredictor,
    data: Data,
    out: Path,
    facts: dict[str, Any],
    trials: report.Trials,
) -> None:
    """Print and write how good predictions of the prompts held out are."""
    place = data.table.index(predictor.models)
    table = replace(
        data.table,
        models=predictor.models,
        **{name: getattr(data.table, name)[:, place] for name in ("scores", "completion_tokens", "costs")},
    )
    held_out = predictor.held_out(data.table, data.embeddings)
    embedded = ~np.isnan(data.embeddings[:, 0])
    rows = np.flatnonzero(held_out & embedded)
    if not len(rows):
        raise ConfigError(
            f"{table.source}: of its {len(held_out):,} rows {held_out.sum():,} are of prompts that the "
            "predictor was not fitted to, and none of these has an embedding"
        )
    prediction = predictor.predict(data.embeddings[rows])
    counts = {
        "rows": len(held_out),
        "left_out_as_fitted_to": int((~held_out).sum()),
        "left_out_without_embedding": int((held_out & ~embedded).sum()),
        "evaluated": len(rows),
        "without_neighbour": int((prediction.found == 0).sum()),
    }
    console.print(
        Text(
            f"Evaluated on {len(rows):,} of {len(held_out):,} rows: {counts['left_out_as_fitted_to']:,} are "
            "left out because the predictor was fitted to their prompts, and "
            f"{counts['left_out_without_embedding']:,} of the others because they have no embedding. "
            f"{counts['without_neighbour']:,} have no neighbour over the threshold and get the means."
        ),
        soft_wrap=True,
    )
    means = predictor.store.means.scores
    groups = [table.groups[row] for row in rows]
    keys = [data.keys[row] for row in rows]
    assessment = assess(table.scores[rows], prediction.scores, means, table.models, groups, keys)
    found = report.deferral(
        predictor.cluster_error(data.embeddings[rows]),
        table,
        rows,
        np.flatnonzero(~held_out),
        _token_prices(data.columns, table.models),
    )
    said = [report.DECIDES, *report.sentences(assessment)]
    said.append(report.NO_CURVE if found is None else report.about_deferral(found))
    tables = (
        *report.model_tables(assessment),
        report.group_table(assessment),
        found and report.deferral_table(found),
    )
    for shown in tables:
        if shown is not None:
            console.print(shown)
    for sentence in said:
        console.print(Text(sentence), soft_wrap=True)
    settings = predictor.settings.model_dump()
    facts = {"table": table.source, "settings": settings, "counts": counts, "sentences": said, **facts}
    written = report.write_report(out, assessment, found, trials, facts)
    try:
        from routing_gym.evaluation.quality_plots import write_plots

        written += write_plots(out, assessment, found, trials, settings)
    except ImportError:
        console.print(Text('No plots: matplotlib is missing; pip install "routing-gym[plots]"'))
    console.print(Text(f"Results in {out}: {', '.join(path.name for path in written)}"), soft_wrap=True)


def _token_prices(columns: Columns, models: tuple[str, ...]) -> NDArray[np.float64]:
    """Return the mean of each model's prices in and out (DESIGN 5, uniroute); NaN where one is not known."""
    prices = [(columns.models[model].price_in_usd, columns.models[model].price_out_usd) for model in models]
    return np.array(prices, np.float64).mean(axis=1)
