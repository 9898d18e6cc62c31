"""`routing-gym quality`: from a table to a predictor and its figures, on prompts not fitted to."""

from __future__ import annotations

import csv
import json
import pickle
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from routing_gym import cli
from routing_gym.common.config import packaged
from routing_gym.quality.assessment import assess
from routing_gym.quality.columns import load_columns
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.splits import prompt_keys, split_by_prompt
from routing_gym.quality.tables import read_table
from routing_gym.quality.vectors import read_embeddings, write_embeddings
from tests.evaluation.runs import hide_matplotlib

needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="needs the extra `quality`")
COLUMNS = {
    "id": "id",
    "prompt": "question",
    "group": "task",
    "score": "{model}",
    "cost": "{model}_usd",
    "models": ["big", "small"],
}
FIXED = ["--neighbours", "15", "--threshold", "0.1", "--clusters", "4"]


class Answer(NamedTuple):
    """What a command ended with and printed."""

    status: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def plots() -> None:
    """Draw; without this, drawing takes most of a test's time."""
    pytest.importorskip("matplotlib", reason="needs the extra `plots`")


@pytest.fixture(autouse=True)
def no_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "plots" not in request.fixturenames:
        hide_matplotlib(monkeypatch)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Type `quality` and more, in a folder with a table, its columns and its embeddings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("ROUTING_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ROUTING_GYM_TRACEBACK", raising=False)
    entry = EntryPoint("quality", "routing_gym.cli.quality:app", "routing_gym.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry])
    make_files(tmp_path)

    def typed(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["routing-gym", "quality", *map(str, arguments)])
        # `main` mounts what is installed each time, and each mounting costs a little.
        monkeypatch.setattr(cli.app, "registered_groups", [])
        status = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
        return Answer(status, *capsys.readouterr())

    return typed


def make_files(folder: Path, rows: int = 240) -> None:
    """Write t.csv, c.yaml and e.npz: the small model fails at maths; the last prompt is the first again."""
    rng = np.random.default_rng(0)
    maths = np.arange(rows) % 2 == 0
    towards = np.where(maths, 1.0, -1.0)[:, None] * np.eye(8)[0]
    vectors = towards + 0.4 * rng.normal(size=(rows, 8))
    vectors[-1] = vectors[0]
    good = rng.random((rows, 2)) < np.column_stack([np.where(maths, 0.9, 0.7), np.where(maths, 0.05, 0.9)])
    cost = 1e-3 * np.array([10.0, 1.0]) * rng.uniform(0.5, 1.5, (rows, 2))
    with open(folder / "t.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "question", "task", "big", "small", "big_usd", "small_usd"])
        for k in range(rows):
            task = "maths" if maths[k] else "law"
            prompt = f"Question {k if k < rows - 1 else 0}?"
            writer.writerow([f"q{k}", prompt, task, *good[k].astype(int), *cost[k].tolist()])
    (folder / "c.yaml").write_text(yaml.safe_dump(COLUMNS))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    write_embeddings(folder / "e.npz", [f"q{k}" for k in range(rows)], unit.astype(np.float32))


INPUT = ["t.csv", "--columns", "c.yaml", "--embeddings", "e.npz"]


def cells(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation" / "summary.json").read_text(encoding="utf-8"))


def words(text: str) -> str:
    """Return a text without its line breaks and frames."""
    return " ".join(re.sub(r"[│┃╭╮╰╯─━]", " ", text).split())


class CountingEmbedder:
    """Embeds a text as a unit vector by its length, and counts; interrupted at a batch, if so asked."""

    name, dimension = "counting", 4

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.batches: list[int] = []
        self.interrupt_at = interrupt_at

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if len(self.batches) == self.interrupt_at:
            raise KeyboardInterrupt
        self.batches.append(len(texts))
        angle = np.array([sum(text.encode()) for text in texts], np.float32)
        return np.stack([np.cos(angle), np.sin(angle), 0 * angle, 0 * angle], axis=1)


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> CountingEmbedder:
    made = CountingEmbedder()
    monkeypatch.setattr("routing_gym.cli.quality_inputs.make_embedder", lambda spec: made)
    return made


# What it offers

OPTIONS = {
    "build": "columns prompts embeddings embedder out neighbours threshold clusters seed profile validation "
    "choose no-choose cache overwrite allow-pickle",
    "evaluate": "columns prompts embeddings embedder out cache allow-pickle",
    "embed": "columns prompts embedder out cache allow-pickle",
    "convert": "columns prompts out overwrite allow-pickle",
}


@pytest.mark.parametrize("command", list(OPTIONS))
def test_the_help_names_every_option_and_what_a_pickle_risks(command: str, run: Run) -> None:
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    for option in OPTIONS[command].split():
        assert f"--{option} " in out, option
    assert "Loading a pickle runs whatever code is in the file" in words(out)
    assert "only load one from a source that you trust" in words(out)


# From start to finish


@needs_faiss
def test_a_predictor_is_built_saved_and_evaluated_on_what_was_held_out(run: Run, tmp_path: Path) -> None:
    from routing_gym.quality.predictor import QualityPredictor

    status, out, err = run("build", *INPUT, "--out", "p", *FIXED)
    assert (status, err) == (0, ""), err
    assert "t.csv: 240 rows, 2 models." in out
    assert "239 different prompts, 1 rows are duplicates; 0 rows have no embedding." in out
    for line in (
        "Split by prompt, seed 0",
        "Saved in p: K = 15, threshold 0.1, 4 clusters.",
        "Deferral curve",
    ):
        assert line in out, line
    assert "cross-validated" not in out, "K and threshold were given"
    assert "The prediction carries a signal for small: " in out
    assert "Among prompts of the same task it ranks no better than by chance for big (" in out
    assert "The squared error decides" in out

    predictor = QualityPredictor.load(tmp_path / "p")
    table = read_table(tmp_path / "t.csv", load_columns(tmp_path / "c.yaml"))
    embeddings = read_embeddings(tmp_path / "e.npz", table)
    keys = np.array(prompt_keys(table, embeddings))
    rows = np.flatnonzero(predictor.held_out(table, embeddings))
    assert 60 < len(rows) < 130
    assert (
        f"Evaluated on {len(rows)} of 240 rows: {240 - len(rows)} are left out because the predictor was"
        in out
    )
    expected = assess(
        table.scores[rows],
        predictor.predict(embeddings[rows]).scores,
        predictor.store.means.scores,
        table.models,
        [table.groups[row] for row in rows],
        keys[rows].tolist(),
    )
    kept = cells(tmp_path / "p" / "evaluation" / "models.csv")
    assert [row["model"] for row in kept] == ["big", "small", "all models"]
    for row, one in zip(kept, (*expected.models, expected.pooled), strict=True):
        assert [float(row[name]) for name in ("auc", "auc_low", "mse", "mae_of_mean", "gain_low")] == [
            *one.auc[:2],
            one.mse,
            one.mae_of_mean,
            one.gain.low,
        ]
        assert f"{one.auc.value:.3f} [{one.auc.low:.3f}, {one.auc.high:.3f}]" in out
    summary = summary_of(tmp_path / "p")
    assert summary["counts"]["evaluated"] == len(rows) == summary["split"]["test"]["rows"]
    assert summary["settings"]["neighbours"] == 15
    assert all(sentence in out for sentence in summary["sentences"])
    assert len(cells(tmp_path / "p" / "evaluation" / "groups.csv")) == 6


@needs_faiss
def test_evaluating_again_gives_the_same_figures(run: Run, tmp_path: Path) -> None:
    assert run("build", *INPUT, "--out", "p", *FIXED).status == 0
    built = {path.name: path.read_bytes() for path in (tmp_path / "p" / "evaluation").glob("*.csv")}
    status, out, err = run("evaluate", "p", *INPUT, "--out", "again")
    assert (status, err) == (0, "")
    assert "Results in again: summary.json, models.csv, groups.csv, deferral.csv" in out
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").glob("*.csv")} == built
    assert run("evaluate", "p", *INPUT).status == 0
    assert (tmp_path / "p" / "evaluation" / "models.csv").read_bytes() == built["models.csv"]


@needs_faiss
def test_settings_are_chosen_without_the_prompts_held_out(run: Run, tmp_path: Path) -> None:
    from routing_gym.quality.predictor import QualityPredictor

    status, out, err = run("build", *INPUT, "--out", "p", "--seed", "3")
    assert (status, err) == (0, "")
    assert "K and threshold, cross-validated" in out and "Clusters, cross-validated" in out
    assert "Always the mean has a mean squared error of 0." in out
    settings = QualityPredictor.load(tmp_path / "p").settings
    for kind, names in (("neighbours", ("neighbours", "threshold")), ("clusters", ("clusters",))):
        tried = cells(tmp_path / "p" / "evaluation" / f"cross_validation_{kind}.csv")
        best = min(tried, key=lambda row: float(row["mse"]))
        assert [float(best[name]) for name in names] == [getattr(settings, name) for name in names]
    assert settings.seed == 3

    # What the prompts held out scored is of no account.
    table = read_table(tmp_path / "t.csv", load_columns(tmp_path / "c.yaml"))
    embeddings = read_embeddings(tmp_path / "e.npz", table)
    held_out = QualityPredictor.load(tmp_path / "p").held_out(table, embeddings)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    for row in np.flatnonzero(held_out):
        parts = lines[row + 1].split(",")
        parts[3:5] = ["1", "1"]
        lines[row + 1] = ",".join(parts)
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    assert run("build", *INPUT, "--out", "other", "--seed", "3").status == 0
    names = ("cross_validation_neighbours.csv", "cross_validation_clusters.csv")
    for name in names:
        old, new = (tmp_path / folder / "evaluation" / name for folder in ("p", "other"))
        assert old.read_bytes() == new.read_bytes()
    assert QualityPredictor.load(tmp_path / "other").settings == settings


@needs_faiss
def test_clusters_that_are_given_are_not_chosen(run: Run) -> None:
    out = run("build", *INPUT, "--out", "p", "--clusters", "3").out
    assert "K and threshold, cross-validated" in out and "Clusters, cross-validated" not in out
    assert "3 clusters" in out
    out = run("build", *INPUT, "--out", "q", "--no-choose").out
    assert "cross-validated" not in out
    fit = packaged("quality", "default")["fit"]
    assert f"K = {fit['neighbours']}, threshold {fit['threshold']:g}, {fit['clusters']} clusters" in out


@needs_faiss
def test_a_table_is_evaluated_without_the_prompts_fitted_to(run: Run, tmp_path: Path) -> None:
    assert run("build", *INPUT, "--out", "p", *FIXED).status == 0
    fitted = summary_of(tmp_path / "p")["counts"]["left_out_as_fitted_to"]
    lines = (tmp_path / "t.csv").read_text().splitlines()
    # The same prompts under other ids, in capitals: none of those fitted to may come back.
    more = [re.sub(r"^q(\d+),Question", r"new\1,QUESTION", line) for line in lines[1:]]
    (tmp_path / "new.csv").write_text(
        "\n".join([lines[0], *more, "x1,Never seen?,law,1,0,0.01,0.001"]) + "\n"
    )
    with np.load(tmp_path / "e.npz") as file:
        vectors = file["embeddings"]
    ids = [f"new{k}" for k in range(240)]
    write_embeddings(tmp_path / "new.npz", [*ids, "x1"], np.concatenate([vectors, -vectors[:1]]))
    status, out, err = run("evaluate", "p", "new.csv", "--columns", "c.yaml", "--embeddings", "new.npz")
    assert (status, err) == (0, "")
    assert f"Evaluated on {241 - fitted} of 241 rows: {fitted} are left out because" in out


@needs_faiss
def test_rows_without_embedding_or_neighbour_are_counted(run: Run, tmp_path: Path) -> None:
    with np.load(tmp_path / "e.npz") as file:
        write_embeddings(tmp_path / "few.npz", file["ids"][:200].tolist(), file["embeddings"][:200])
    status, out, _ = run(
        "build", *INPUT[:-1], "few.npz", "--out", "p", "--neighbours", 5, "--threshold", 0.99, "--clusters", 2
    )
    assert status == 0 and "40 rows have no embedding." in out
    counts = summary_of(tmp_path / "p")["counts"]
    assert counts["left_out_without_embedding"] > 0 and counts["without_neighbour"] > 0
    assert (
        sum(counts[name] for name in ("left_out_as_fitted_to", "left_out_without_embedding", "evaluated"))
        == 240
    )
    assert f"{counts['without_neighbour']} have no neighbour over the threshold" in out


@needs_faiss
def test_token_prices_give_a_curve_where_no_cost_is_recorded(run: Run, tmp_path: Path) -> None:
    priced = {
        "big": {"price_in_usd": 10.0, "price_out_usd": 30.0},
        "small": {"price_in_usd": 1, "price_out_usd": 2},
    }
    for name, models in (("priced", priced), ("free", ["big", "small"])):
        columns = {key: value for key, value in COLUMNS.items() if key != "cost"} | {"models": models}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(columns))
    out = run("build", "t.csv", "--columns", "priced.yaml", *INPUT[3:], "--out", "p", *FIXED).out
    assert "USD per 1M tokens" in words(out) and "There is no deferral curve" not in out
    assert (tmp_path / "p" / "evaluation" / "deferral.csv").exists()
    single = summary_of(tmp_path / "p")["deferral"]["singles"]
    assert (single["big"][1], single["small"][1]) == (20.0, 1.5)
    out = run("evaluate", "p", "t.csv", "--columns", "free.yaml", *INPUT[3:]).out
    assert "There is no deferral curve: it needs recorded costs or the prices of all models" in out
    assert not list((tmp_path / "p" / "evaluation").glob("deferral.*")), "what was there goes"


@needs_faiss
@pytest.mark.usefixtures("plots")
def test_plots_are_drawn_where_they_can_be(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run("build", *INPUT, "--out", "p", "--clusters", "3").out
    for name in ("assessment.png", "cross_validation.png", "deferral.png"):
        assert name in out and (tmp_path / "p" / "evaluation" / name).stat().st_size > 10_000
    hide_matplotlib(monkeypatch)
    out = run("evaluate", "p", *INPUT, "--out", "bare").out
    assert 'No plots: matplotlib is missing; pip install "routing-gym[plots]"' in out
    assert (tmp_path / "bare" / "models.csv").exists() and not list((tmp_path / "bare").glob("*.png"))


@needs_faiss
def test_only_a_predictor_is_overwritten(run: Run, tmp_path: Path) -> None:
    assert run("build", *INPUT, "--out", "p", *FIXED).status == 0
    before = (tmp_path / "p" / "manifest.json").read_bytes()
    again = run("build", *INPUT, "--out", "p", *FIXED)
    assert again == Answer(2, "", "error: --out p: is there already; --overwrite replaces a predictor\n")
    assert run("build", *INPUT, "--out", "p", *FIXED, "--overwrite", "--seed", "1").status == 0
    assert (tmp_path / "p" / "manifest.json").read_bytes() != before
    (tmp_path / "p" / "evaluation" / "mine.txt").write_text("mine")
    answer = run("build", *INPUT, "--out", "p", *FIXED, "--overwrite")
    assert answer.status == 2 and "p: holds evaluation/mine.txt, which no saved folder does" in answer.err
    assert answer.out == "", "said before the long work"
    assert (tmp_path / "p" / "evaluation" / "mine.txt").read_text() == "mine"
    (tmp_path / "p" / "evaluation" / "mine.txt").rename(tmp_path / "p" / "mine.txt")
    figures = sorted((tmp_path / "p" / "evaluation").iterdir())
    answer = run("build", *INPUT, "--out", "p", *FIXED, "--overwrite")
    assert (answer.status, answer.out) == (2, "") and "p: holds mine.txt" in answer.err
    assert figures and sorted((tmp_path / "p" / "evaluation").iterdir()) == figures
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    assert run("build", *INPUT, "--out", "mine", *FIXED, "--overwrite").status == 2
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@needs_faiss
def test_a_predictor_with_figures_is_overwritten_from_python_too(run: Run, tmp_path: Path) -> None:
    from routing_gym.quality.predictor import QualityPredictor

    assert run("build", *INPUT, "--out", "p", *FIXED).status == 0
    QualityPredictor.load(tmp_path / "p").save(tmp_path / "p", overwrite=True)
    assert not (tmp_path / "p" / "evaluation").exists(), "figures of a predictor that is gone"
    assert run("evaluate", "p", *INPUT).status == 0


def few_prompts(folder: Path, rows: int) -> None:
    """Write a table of few prompts, each answered right by one of two models."""
    lines = ["id,question,task,big,small,big_usd,small_usd"]
    lines += [f"q{k},Question {k}?,law,{k % 2},{1 - k % 2},0.1,0.01" for k in range(rows)]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    vectors = np.random.default_rng(0).normal(size=(rows, 4))
    write_embeddings(folder / "e.npz", [f"q{k}" for k in range(rows)], vectors.astype(np.float32))


@needs_faiss
def test_of_few_prompts_there_are_fewer_folds(run: Run, tmp_path: Path) -> None:
    few_prompts(tmp_path, 12)
    answer = run("build", *INPUT, "--out", "p")
    assert (answer.status, answer.err) == (0, "")
    split = summary_of(tmp_path / "p")["split"]
    assert (split["profile"]["prompts"], split["validation"]["prompts"]) == (3, 3), "5 folds are configured"
    assert "K and threshold, cross-validated" in answer.out and "Clusters, cross-validated" in answer.out


@needs_faiss
@pytest.mark.parametrize(
    ("shares", "side"),
    [
        ((0.05, 0.6), "profile side: 0;"),
        ((0.1, 0.6), "profile side: 1;"),
        ((0.8, 0.05), "validation side: 1;"),
    ],
)
def test_of_too_few_prompts_nothing_is_chosen(
    run: Run, tmp_path: Path, shares: tuple[float, float], side: str
) -> None:
    few_prompts(tmp_path, 12)
    typed = ["build", *INPUT, "--out", "p", "--profile", shares[0], "--validation", shares[1]]
    answer = run(*typed)
    assert answer.status == 2 and not (tmp_path / "p").exists()
    assert f"t.csv: different prompts with an embedding on the {side} cross-valid" in answer.err
    assert "--no-choose does without" in answer.err
    if side == "validation side: 1;":
        for other in (["--clusters", 2], ["--no-choose", "--overwrite"]):
            way_out = run(*typed, *other)
            assert (way_out.status, way_out.err) == (0, "")


@needs_faiss
def test_a_model_with_too_few_scores_to_choose_clusters(run: Run, tmp_path: Path) -> None:
    """One validation prompt has a score of it, so that a part has none to learn from."""
    few_prompts(tmp_path, 60)
    layout = yaml.safe_load((tmp_path / "c.yaml").read_text())
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**layout, "missing": "allow"}))
    table = read_table(tmp_path / "t.csv", load_columns(tmp_path / "c.yaml"))
    keys = prompt_keys(table, read_embeddings(tmp_path / "e.npz", table))
    lines = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()]
    for row in split_by_prompt(keys, FitSettings()).validation[1:]:
        lines[row + 1][4] = ""
    (tmp_path / "t.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    answer = run("build", *INPUT, "--out", "p")
    assert answer.status == 2 and not (tmp_path / "p").exists()
    assert "the model in column 1 has no recorded score in some part; --clusters N sets them" in answer.err
    assert run("build", *INPUT, "--out", "p", "--clusters", 2).status == 0


@needs_faiss
def test_deferral_takes_its_prices_from_prompts_fitted_to(run: Run, tmp_path: Path) -> None:
    from routing_gym.quality.predictor import QualityPredictor

    out = run("build", *INPUT, "--out", "p", *FIXED).out
    assert "held-out prompts, as no others" not in words(out)
    table = read_table(tmp_path / "t.csv", load_columns(tmp_path / "c.yaml"))
    embeddings = read_embeddings(tmp_path / "e.npz", table)
    fitted = ~QualityPredictor.load(tmp_path / "p").held_out(table, embeddings)
    found = summary_of(tmp_path / "p")["deferral"]
    assert found["prices"] == table.costs[fitted].mean(axis=0).tolist() and not found["peeked"]

    # A table of prompts that are all held out has no others to take prices from.
    lines = (tmp_path / "t.csv").read_text().splitlines()
    kept = [lines[0], *(line for line, known in zip(lines[1:], fitted, strict=True) if not known)]
    (tmp_path / "new.csv").write_text("\n".join(kept) + "\n")
    write_embeddings(
        tmp_path / "new.npz", [table.ids[row] for row in np.flatnonzero(~fitted)], embeddings[~fitted]
    )
    out = run("evaluate", "p", "new.csv", "--columns", "c.yaml", "--embeddings", "new.npz").out
    assert "prices are mean costs of held-out prompts, as no others have recorded costs" in words(out)
    assert summary_of(tmp_path / "p")["deferral"]["prices"] == table.costs[~fitted].mean(axis=0).tolist()


# Embedding


def test_prompts_are_embedded_once_and_kept(run: Run, tmp_path: Path, embedder: CountingEmbedder) -> None:
    status, out, err = run(
        "embed", "t.csv", "--columns", "c.yaml", "--embedder", "minilm", "--out", "made/e.npz"
    )
    assert (status, err) == (0, "")
    assert "Wrote made/e.npz: 240 embeddings of 4 dimensions." in out
    assert sum(embedder.batches) == 239, "the doubled prompt is embedded once"
    table = read_table(tmp_path / "t.csv", load_columns(tmp_path / "c.yaml"))
    found = read_embeddings(tmp_path / "made" / "e.npz", table)
    np.testing.assert_allclose(found, embedder.embed([str(text) for text in table.prompts]), atol=1e-6)
    embedder.batches.clear()
    again = run("embed", "t.csv", "--columns", "c.yaml", "--embedder", "minilm", "--out", "again.npz")
    assert again.status == 0 and not embedder.batches
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "made" / "e.npz").read_bytes()
    elsewhere = ["--out", "third.npz", "--cache", "other"]
    assert run("embed", "t.csv", "--columns", "c.yaml", "--embedder", "minilm", *elsewhere).status == 0
    assert sum(embedder.batches) == 239 and list((tmp_path / "other").rglob("*.shard"))


def test_an_interrupt_says_where_to_go_on(run: Run, tmp_path: Path, embedder: CountingEmbedder) -> None:
    make_files(tmp_path, 600)
    embedder.interrupt_at = 1
    typed = ["embed", "t.csv", "--columns", "c.yaml", "--embedder", "minilm", "--out", "made.npz"]
    status, _, err = run(*typed)
    assert status == 130
    folder = tmp_path / "cache"
    assert (
        err
        == f"interrupted; what was embedded is in the cache, {folder}: the same command goes on from there\n"
    )
    assert not (tmp_path / "made.npz").exists()
    done = sum(embedder.batches)
    assert 0 < done < 599
    embedder.interrupt_at = None
    assert run(*typed).status == 0
    assert sum(embedder.batches) == 599, "what was done is not done again"


@needs_faiss
def test_a_predictor_is_built_from_texts_in_a_second_file(
    run: Run, tmp_path: Path, embedder: CountingEmbedder
) -> None:
    rows = cells(tmp_path / "t.csv")
    with open(tmp_path / "texts.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("id", "question"), *((row["id"], row["question"]) for row in rows)])
    with open(tmp_path / "bare.csv", "w", newline="") as file:
        writer = csv.writer(file)
        names = [name for name in rows[0] if name != "question"]
        writer.writerows([names, *([row[name] for name in names] for row in rows)])
    typed = ["bare.csv", "--columns", "c.yaml", "--prompts", "texts.csv", "--embedder", "minilm"]
    status, out, err = run("build", *typed, "--out", "p", *FIXED)
    assert (status, err) == (0, "") and sum(embedder.batches) == 239
    assert "0 rows have no embedding" in out
    embedder.batches.clear()
    assert run("evaluate", "p", *typed).status == 0 and not embedder.batches


# Converting, and pickles


@pytest.mark.parametrize("name", ["new/u.csv", "u.csv.gz", "u.parquet"])
def test_a_table_is_converted_and_reads_the_same(name: str, run: Run, tmp_path: Path) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    status, out, err = run("convert", "t.csv", "--columns", "c.yaml", "--out", name)
    assert (status, err) == (0, "") and f"Wrote {name}: 240 rows, 2 models." in out
    columns = load_columns(tmp_path / "c.yaml")
    old, new = read_table(tmp_path / "t.csv", columns), read_table(tmp_path / name, columns)
    assert (new.ids, new.prompts, new.groups) == (old.ids, old.prompts, old.groups)
    np.testing.assert_array_equal(new.scores, old.scores)
    np.testing.assert_array_equal(new.costs, old.costs)


def test_a_file_is_replaced_only_when_asked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_text("mine")
    typed = ["convert", "t.csv", "--columns", "c.yaml", "--out", "u.csv"]
    refused = run(*typed)
    assert refused == Answer(2, "", "error: --out u.csv: is there already; --overwrite replaces it\n")
    assert (tmp_path / "u.csv").read_text() == "mine"
    assert run(*typed, "--overwrite").status == 0 and len(cells(tmp_path / "u.csv")) == 240
    (tmp_path / "link.csv").symlink_to(tmp_path / "t.csv")
    itself = run("convert", "link.csv", "--columns", "c.yaml", "--out", "t.csv", "--overwrite")
    assert itself.status == 2 and "--out t.csv: is TABLE itself" in itself.err


def test_estimated_tokens_are_not_written_and_are_estimated_again(run: Run, tmp_path: Path) -> None:
    prices = {
        "big": {"price_in_usd": 1, "price_out_usd": 10},
        "small": {"price_in_usd": 1, "price_out_usd": 1},
    }
    estimating = {"prompt_tokens": "length", "completion_tokens": "{model}_n", "estimate_tokens": True}
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({**COLUMNS, **estimating, "models": prices}))
    notes = (
        "  Prompt tokens of 240 prompts are estimated: a quarter of the bytes.\n"
        "  Completion tokens of big, small are estimated from the recorded costs.\n"
    )
    assert notes in run("convert", "t.csv", "--columns", "d.yaml", "--out", "u.csv").out
    assert (tmp_path / "u.csv").read_text().splitlines()[0] == "id,question,task,big,big_usd,small,small_usd"
    assert notes in run("convert", "u.csv", "--columns", "d.yaml", "--out", "v.csv").out
    assert (tmp_path / "v.csv").read_bytes() == (tmp_path / "u.csv").read_bytes()


def test_texts_without_a_column_to_write_them_to_are_refused(run: Run, tmp_path: Path) -> None:
    bare = {key: value for key, value in COLUMNS.items() if key != "prompt"}
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(bare))
    (tmp_path / "texts.csv").write_text("id,prompt\n" + "".join(f"q{k},Text {k}\n" for k in range(240)))
    typed = ["convert", "t.csv", "--prompts", "texts.csv", "--out", "u.csv"]
    answer = run(*typed, "--columns", "d.yaml")
    assert answer.status == 2 and not (tmp_path / "u.csv").exists()
    assert "--prompts texts.csv: --columns d.yaml names no column `prompt`, in which its texts" in answer.err
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({**bare, "prompt": "prompt"}))
    assert run(*typed, "--columns", "d.yaml").status == 0
    assert [row["prompt"] for row in cells(tmp_path / "u.csv")] == [f"Text {k}" for k in range(240)]


def test_a_pickle_is_loaded_only_where_that_is_allowed(run: Run, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    pandas.read_csv(tmp_path / "t.csv").to_pickle(tmp_path / "t.pkl")
    typed = ["convert", "t.pkl", "--columns", "c.yaml", "--out", "u.csv"]
    status, out, err = run(*typed)
    assert (status, out) == (2, "") and not (tmp_path / "u.csv").exists()
    assert "t.pkl is a pickle" in err and "--allow-pickle" in err
    status, out, err = run(*typed, "--allow-pickle")
    assert status == 0 and "240 rows" in out
    assert err.startswith(
        "note: loading t.pkl, a pickle, runs whatever code is in the file; only do so if you trust"
    )
    assert err.count("\n") == 1
    assert len(cells(tmp_path / "u.csv")) == 240
    quiet = run("convert", "t.csv", "--columns", "c.yaml", "--out", "v.csv", "--allow-pickle")
    assert (quiet.status, quiet.err) == (0, ""), "nothing was risked"


class _Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def test_a_pickle_that_is_not_allowed_runs_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(_Bomb()))
    for command in (
        ["convert", "bomb.pkl", "--out", "u.csv"],
        ["build", "bomb.pkl", *INPUT[3:], "--out", "p"],
    ):
        assert run(*command, "--columns", "c.yaml").status == 2
    assert not (tmp_path / "ran").exists()


# What is wrong

OUT = ["--out", "out"]
WRONG: dict[str, tuple[list[Any], list[str]]] = {  # what is typed, and what must be answered
    "unknown columns": (
        ["build", "t.csv", "--columns", "routerbnch", "--embeddings", "e.npz", *OUT],
        ["'routerbnch'", "did you mean routerbench?"],
    ),
    "columns of another table": (
        ["build", "t.csv", "--embeddings", "e.npz", *OUT],
        [
            "t.csv lacks the columns 'sample_id' (id)",
            "as --columns routerbench says; --columns names a YAML file for another table",
        ],
    ),
    "columns of another table to convert": (
        ["convert", "t.csv", "--out", "u.csv"],
        ["as --columns routerbench says; --columns names a YAML file for another table"],
    ),
    "no table to convert to what is there": (
        ["convert", "gone.csv", "--columns", "c.yaml", "--out", "there.csv"],
        ["cannot read the table gone.csv: No such file"],
    ),
    "no table": (["build", "gone.csv", *INPUT[1:], *OUT], ["cannot read the table gone.csv: No such file"]),
    "no embeddings": (
        ["build", "t.csv", "--columns", "c.yaml", *OUT],
        ["--embeddings FILE.npz or --embedder SPEC"],
    ),
    "both": (["build", *INPUT, "--embedder", "minilm", *OUT], ["--embedder SPEC: give one of the two"]),
    "embeddings gone": (["build", *INPUT[:-1], "gone.npz", *OUT], ["gone.npz"]),
    "unknown embedder": (
        ["build", *INPUT[:-2], "--embedder", "word2vec", *OUT],
        ["embedder = 'word2vec': must be minilm"],
    ),
    "no neighbours": (
        ["build", *INPUT, *OUT, "--neighbours", "0"],
        ["neighbours = 0", "greater than or equal to 1"],
    ),
    "threshold of 1": (["build", *INPUT, *OUT, "--threshold", "1"], ["threshold = 1.0", "less than 1"]),
    "shares of everything": (
        ["build", *INPUT, *OUT, "--profile", ".7", "--validation", ".3"],
        ["profile 0.7 and validation 0.3 leave no prompts for tests"],
    ),
    "choose what is given": (
        ["build", *INPUT, *OUT, "--choose", "--threshold", ".4"],
        ["--threshold 0.4: --choose chooses it; give one of the two"],
    ),
    "no predictor": (["evaluate", "gone", *INPUT], ["gone"]),
    "no npz": (
        ["embed", "t.csv", "--columns", "c.yaml", "--embedder", "minilm", "--out", "e.csv"],
        ["--out e.csv: must end in .npz"],
    ),
    "onto itself": (
        ["convert", "t.csv", "--columns", "c.yaml", "--out", "t.csv"],
        ["--out t.csv: is TABLE itself"],
    ),
    "no format": (["convert", "gone.csv", "--columns", "c.yaml", "--out", "u.xlsx"], ["u.xlsx", ".parquet"]),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_what_is_wrong_is_one_clear_line_and_nothing_is_written(case: str, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("faiss", reason="needs the extra `quality`")
    arguments, expected = WRONG[case]
    (tmp_path / "there.csv").touch()
    before = {path.name for path in tmp_path.iterdir()}
    status, _, err = run(*arguments)
    assert status == 2
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1, err
    for part in expected:
        assert part in err, err
    assert {path.name for path in tmp_path.iterdir()} == before


def test_without_faiss_that_is_said_before_anything_is_done(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    status, out, err = run("build", *INPUT, "--out", "p")
    assert (status, out) == (2, "") and 'pip install "routing-gym[quality]"' in err


def test_texts_are_needed_to_embed(run: Run, tmp_path: Path, embedder: CountingEmbedder) -> None:
    (tmp_path / "d.yaml").write_text(yaml.safe_dump({**COLUMNS, "prompt": None}))
    answer = run("embed", "t.csv", "--columns", "d.yaml", "--embedder", "minilm", "--out", "u.npz")
    assert answer.status == 2 and not embedder.batches
    assert answer.err == "error: --embedder minilm: t.csv has no prompt text; --prompts brings a file of it\n"


@needs_faiss
def test_nothing_held_out_and_a_model_that_is_lacking_are_refused(run: Run, tmp_path: Path) -> None:
    assert run("build", *INPUT, "--out", "p", *FIXED).status == 0
    table = read_table(tmp_path / "t.csv", load_columns(tmp_path / "c.yaml"))
    from routing_gym.quality.predictor import QualityPredictor

    embeddings = read_embeddings(tmp_path / "e.npz", table)
    held_out = QualityPredictor.load(tmp_path / "p").held_out(table, embeddings)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    kept = [lines[0], *(line for line, out in zip(lines[1:], held_out, strict=True) if not out)]
    (tmp_path / "seen.csv").write_text("\n".join(kept) + "\n")
    with np.load(tmp_path / "e.npz") as file:
        write_embeddings(
            tmp_path / "seen.npz", file["ids"][~held_out].tolist(), file["embeddings"][~held_out]
        )
    answer = run("evaluate", "p", "seen.csv", "--columns", "c.yaml", "--embeddings", "seen.npz")
    assert answer.status == 2
    assert (
        f"seen.csv: of its {(~held_out).sum()} rows 0 are of prompts that the predictor was not" in answer.err
    )
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**COLUMNS, "models": ["big"]}))
    answer = run("evaluate", "p", "t.csv", "--columns", "one.yaml", "--embeddings", "e.npz")
    assert answer.status == 2 and "t.csv has no outcomes of small; it has those of big" in answer.err


@needs_faiss
def test_a_damaged_predictor_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("build", *INPUT, "--out", "p", *FIXED).status == 0
    with open(tmp_path / "p" / "arrays.npz", "ab") as file:
        file.write(b"x")
    answer = run("evaluate", "p", *INPUT)
    assert answer.status == 2 and "arrays.npz is damaged" in answer.err


@needs_faiss
def test_the_order_of_models_does_not_matter(run: Run, tmp_path: Path) -> None:
    assert run("build", *INPUT, "--out", "p", *FIXED).status == 0
    (tmp_path / "turned.yaml").write_text(yaml.safe_dump({**COLUMNS, "models": ["small", "big"]}))
    answer = run("evaluate", "p", "t.csv", "--columns", "turned.yaml", *INPUT[3:], "--out", "turned")
    assert answer.status == 0
    for name in ("models.csv", "groups.csv", "deferral.csv"):
        assert (tmp_path / "turned" / name).read_bytes() == (
            tmp_path / "p" / "evaluation" / name
        ).read_bytes()
