"""Workloads of recorded outcomes: what happens is the table's, what routers see comes from other prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import routing_gym  # noqa: F401
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.contents import TOPIC, Contents
from routing_gym.cloud_edge.outcomes import OutcomeContents, OutcomesConfig
from routing_gym.cloud_edge.workload import EpisodeSource, Workload
from routing_gym.common.config import ConfigError
from routing_gym.common.seeding import EpisodeStreams, new_generator
from routing_gym.quality.predictor import QualityPredictor
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.splits import prompt_keys, split_by_prompt
from routing_gym.quality.tables import TableError, read_table
from routing_gym.quality.vectors import read_embeddings, write_embeddings
from tests.cloud_edge.outcome_files import CATALOGUE, COLUMNS, FIT, MODELS, Files, rows, vectors, write

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, rows())


def draw(source: OutcomeContents, count: int, seed: int = 0) -> Contents:
    return source.draw(EpisodeStreams(new_generator(seed)), count)


def drawn_ids(source: OutcomeContents, count: int, seed: int = 0) -> list[str]:
    """Return which rows an episode has, by drawing them once more."""
    rng = EpisodeStreams(new_generator(seed))[TOPIC]
    turns = [rng.permutation(len(source.ids)) for _ in range(-(-count // len(source.ids)))]
    return [source.ids[row] for row in np.concatenate(turns)[:count]]


def test_what_happens_is_what_the_table_says(files: Files) -> None:
    source = files.contents(files.workload())
    contents = draw(source, 60)
    by_id = {row["id"]: row for row in files.rows}
    for r, name in enumerate(drawn_ids(source, 60)):
        row = by_id[name]
        assert contents.input_tokens[r] == row["tokens"]
        assert contents.quality[r].tolist() == [row[f"{model} score"] for model in MODELS]
        assert contents.output_tokens[r].tolist() == [row[f"{model} length"] for model in MODELS]
        assert source.groups[contents.topic[r]] == row["task"]


@given(first=st.integers(1, 200), second=st.integers(1, 200), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_the_first_requests_do_not_depend_on_how_many_there_are(
    tmp_path_factory: pytest.TempPathFactory, first: int, second: int, seed: int
) -> None:
    files = Files(tmp_path_factory.mktemp("rows"), rows())
    source = files.contents(files.workload())
    count = min(first, second)
    for one, other in zip(draw(source, first, seed), draw(source, second, seed), strict=True):
        assert np.array_equal(one[:count], other[:count])


def test_every_prompt_comes_once_before_any_comes_again(files: Files) -> None:
    source = files.contents(files.workload())
    names = drawn_ids(source, 2 * len(source.ids))
    assert sorted(names[: len(source.ids)]) == sorted(names[len(source.ids) :]) == sorted(source.ids)
    assert len(draw(source, 0).quality) == 0


@pytest.mark.parametrize("side", ["test", "validation"])
def test_requests_are_of_the_side_that_is_asked_for(files: Files, side: str) -> None:
    source = files.contents(files.workload(rows=side))
    config = files.config().workload
    assert isinstance(config, OutcomesConfig)
    table = read_table(files.table, config.columns)
    split = split_by_prompt(prompt_keys(table), config.fit)
    assert [table.ids[row] for row in getattr(split, side)] == list(source.ids)


def test_no_prompt_is_both_known_and_asked(tmp_path: Path) -> None:
    """Nor a duplicate of one, whatever its id, case and spaces."""
    listed = rows(80)
    again = [{**row, "id": f"{row['id']} again", "prompt": f"  {row['prompt'].upper()} "} for row in listed]
    files = Files(tmp_path, listed + again)
    asked = files.contents(files.workload()).ids
    assert {name.removesuffix(" again") for name in asked} == {
        name for name in asked if not name.endswith(" again")
    }


def test_means_are_those_of_profiled_prompts(files: Files) -> None:
    config = files.config().workload
    assert isinstance(config, OutcomesConfig)
    table = read_table(files.table, config.columns)
    profile = split_by_prompt(prompt_keys(table), config.fit).profile
    contents = draw(files.contents(files.workload()), 9)
    assert contents.predicted_quality[3] == pytest.approx(table.scores[profile].mean(axis=0))
    assert contents.cluster_error[3] == pytest.approx(1.0 - table.scores[profile].mean(axis=0))
    lengths = np.rint(table.completion_tokens[profile].mean(axis=0))
    assert contents.predicted_by_model[3].tolist() == lengths.tolist()
    assert contents.predicted_output_tokens[3] == np.rint(lengths.mean())


def test_perfect_prediction_is_what_happens(files: Files) -> None:
    contents = draw(files.contents(files.workload(prediction="perfect")), 50)
    assert np.array_equal(contents.predicted_quality, contents.quality)
    assert np.array_equal(contents.predicted_by_model, contents.output_tokens)
    assert np.array_equal(contents.predicted_output_tokens, np.rint(contents.output_tokens.mean(axis=1)))


def test_lengths_can_be_known_apart_from_qualities(files: Files) -> None:
    known = draw(files.contents(files.workload(prediction="mean", lengths="perfect")), 50)
    assert np.array_equal(known.predicted_by_model, known.output_tokens)
    assert len(np.unique(known.predicted_quality, axis=0)) == 1


def test_retrieved_qualities_are_the_predictors(files: Files) -> None:
    pytest.importorskip("faiss")
    source = files.contents(files.retrieved())
    contents = draw(source, 40)
    config = source.config
    table = read_table(files.table, config.columns)
    embeddings = read_embeddings(files.embeddings, table)
    predictor = QualityPredictor.fit(table, embeddings, FitSettings(**FIT))
    where = [table.ids.index(name) for name in drawn_ids(source, 40)]
    expected = predictor.predict(embeddings[where])
    assert contents.predicted_quality == pytest.approx(expected.scores, abs=1e-6)
    assert contents.predicted_by_model.tolist() == np.maximum(np.rint(expected.tokens), 1).tolist()
    assert contents.cluster_error == pytest.approx(predictor.cluster_error(embeddings[where]), abs=1e-6)
    verse = [table.groups[row] == "verse" for row in where]
    assert contents.predicted_quality[verse] == pytest.approx(
        np.tile([0.75, 0.5, 0.25], (sum(verse), 1)), abs=1e-6
    )  # the embeddings tell the tasks apart, and there each model scores the same


def test_outcomes_of_asked_prompts_are_never_used(tmp_path: Path) -> None:
    """Whatever they are, predictions stay the same."""
    pytest.importorskip("faiss")
    first = Files(tmp_path, rows())
    shown = draw(first.contents(first.retrieved()), 30)
    asked = set(first.contents(first.retrieved()).ids)
    changed = [
        {**row, **{f"{model} score": 1.0 - row[f"{model} score"] for model in MODELS}}
        if row["id"] in asked
        else row
        for row in first.rows
    ]
    (tmp_path / "other").mkdir()
    second = Files(tmp_path / "other", changed)
    other = draw(second.contents(second.retrieved()), 30)
    assert np.array_equal(shown.quality, 1.0 - other.quality)
    for name in ("predicted_quality", "cluster_error", "predicted_by_model"):
        assert np.array_equal(getattr(shown, name), getattr(other, name))


def test_a_saved_store_predicts_as_the_fitted_one(files: Files, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    config = files.config(files.retrieved()).workload
    assert isinstance(config, OutcomesConfig)
    table = read_table(files.table, config.columns)
    predictor = QualityPredictor.fit(table, read_embeddings(files.embeddings, table), config.fit)
    predictor.save(tmp_path / "store")
    saved = files.contents(files.retrieved(store=str(tmp_path / "store"), fit={}))
    fitted = files.contents(files.retrieved())
    assert saved.ids == fitted.ids
    for one, other in zip(draw(saved, 30), draw(fitted, 30), strict=True):
        assert np.array_equal(one, other)


def test_prompts_that_a_store_was_fitted_to_are_not_asked_in_another_table(
    files: Files, tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    config = files.config(files.retrieved()).workload
    assert isinstance(config, OutcomesConfig)
    table = read_table(files.table, config.columns)
    predictor = QualityPredictor.fit(table, read_embeddings(files.embeddings, table), config.fit)
    predictor.save(tmp_path / "store")
    used = {table.ids[row] for row in np.flatnonzero(~predictor.held_out(table))}
    assert len(used) > 40
    (tmp_path / "other").mkdir()
    other = Files(tmp_path / "other", [{**row, "id": f"other {row['id']}"} for row in files.rows])
    asked = other.contents(other.retrieved(store=str(tmp_path / "store"), fit={})).ids
    assert asked and used.isdisjoint(name.removeprefix("other ") for name in asked)


def test_a_prompt_without_an_embedding_is_predicted_by_the_means(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    files = Files(tmp_path, rows())
    half = files.rows[::2]
    write_embeddings(files.embeddings, [row["id"] for row in half], vectors(files.rows)[::2])
    source = files.contents(files.retrieved())
    contents = draw(source, len(source.ids))
    embedded = {row["id"] for row in half}
    without = np.array([name not in embedded for name in drawn_ids(source, len(source.ids))])
    assert without.any() and not without.all()
    assert len(np.unique(contents.predicted_quality[without], axis=0)) == 1
    assert len(np.unique(contents.predicted_quality[~without], axis=0)) > 5


def test_incomplete_rows_are_left_out(tmp_path: Path) -> None:
    listed = rows()
    for row in listed[::3]:
        row["tiny score"] = ""
    files = Files(tmp_path, listed)
    workload = files.workload(columns={**COLUMNS, "missing": "allow"})
    holes = {row["id"] for row in listed[::3]}
    assert holes.isdisjoint(files.contents(workload).ids)
    assert not holes.isdisjoint(files.contents(workload, ("large", "small")).ids)
    with pytest.raises(TableError, match="line 2: tiny score = ''"):
        files.contents(files.workload())


def test_a_stand_in_gives_its_outcomes_and_keeps_its_place(files: Files) -> None:
    workload = files.config(files.workload(stand_ins={"huge": "small"}), catalogue=with_huge()).workload
    assert isinstance(workload, OutcomesConfig)
    contents = draw(OutcomeContents(workload, ("huge", "small", "tiny")), 20)
    assert np.array_equal(contents.quality[:, 0], contents.quality[:, 1])
    assert np.array_equal(contents.output_tokens[:, 0], contents.output_tokens[:, 1])


def with_huge() -> dict[str, Any]:
    nodes = [*CATALOGUE["nodes"], {**CATALOGUE["nodes"][0], "name": "hall", "models": ["huge"]}]
    return {
        **CATALOGUE,
        "nodes": nodes,
        "models": {**CATALOGUE["models"], "huge": CATALOGUE["models"]["large"]},
    }


def test_models_that_a_table_lacks_are_named(files: Files) -> None:
    with pytest.raises(ConfigError) as refused:
        files.config(catalogue=with_huge())
    for words in ("has no outcomes of huge", "stand_ins", "drop", "large, small, tiny"):
        assert words in str(refused.value)
    with pytest.raises(ConfigError, match=r"huge \(its stand-in gigantic\)"):
        files.config(files.workload(stand_ins={"huge": "gigantic"}), catalogue=with_huge())


def test_destinations_can_be_dropped(files: Files) -> None:
    config = files.config(catalogue=with_huge(), drop=["huge"])
    assert [d.name for d in config.destinations] == ["rack/large", "box/small", "box/tiny"]
    assert "hall" not in config.served.node_names()
    assert config.replace(replicate=2).destination_count == 6
    with pytest.raises(ConfigError, match="no node hosts hugo"):
        files.config(drop=["hugo"])
    with pytest.raises(ConfigError, match="leaves no destination"):
        files.config(drop=list(MODELS))


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"kind": "outcome"}, ["workload.kind = 'outcome'", "'synthetic'", "'outcomes'", "'routerbench'"]),
        ({"kind": "outcomes"}, ["workload.table is missing"]),
        ({"kind": "outcomes", "tabel": "x"}, ["workload.tabel is not a field", "table"]),
        ({"kind": "routerbench", "table": "x"}, ["embeddings = None", "quality embed"]),
        ({"kind": "routerbench", "table": "x", "prediction": "exact"}, ["workload.prediction = 'exact'"]),
        ({"kind": "routerbench", "table": "x", "rows": "profile"}, ["workload.rows = 'profile'"]),
    ],
)
def test_wrong_fields_are_named(workload: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        CloudEdgeConfig.create("routerbench-5node", workload=workload)
    for word in words:
        assert word in str(refused.value)


def test_a_table_without_a_row_to_play_is_refused(tmp_path: Path) -> None:
    listed = rows(40)
    for row in listed:
        row["tiny length"] = ""
    files = Files(tmp_path, listed)
    workload = files.workload(columns={**COLUMNS, "missing": "allow"}, prediction="perfect")
    with pytest.raises(ConfigError, match=r"none has recorded outcomes of all of large, small, tiny"):
        files.contents(workload)


def test_a_missing_file_is_named(files: Files) -> None:
    with pytest.raises(TableError, match=r"nowhere\.csv"):
        Workload(files.config(files.workload(table="nowhere.csv")))


def test_a_changed_table_is_read_again(files: Files) -> None:
    assert len(set(draw(files.contents(files.workload()), 9).input_tokens)) > 1
    write(files.table, [{**row, "tokens": 7} for row in files.rows])
    assert set(draw(files.contents(files.workload()), 9).input_tokens) == {7.0}


def test_columns_may_be_a_file_of_their_own(files: Files, tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "columns.yaml"
    path.write_text(yaml.safe_dump(COLUMNS), encoding="utf-8")
    one = files.config(files.workload(columns=str(path)))
    assert one == files.config()
    assert CloudEdgeConfig.create(one.model_dump(mode="json")) == one


@pytest.mark.parametrize("env_id", ["routing_gym/CloudEdgeBatch-v0", "routing_gym/CloudEdgeRequest-v0"])
@pytest.mark.parametrize("prediction", ["mean", "perfect"])
def test_environments_play_them(files: Files, env_id: str, prediction: str) -> None:
    env = gym.make(env_id, config=files.config(files.workload(prediction=prediction)).model_dump(mode="json"))
    observation, info = env.reset(seed=3)
    env.action_space.seed(0)
    over = False
    while not over:
        assert observation in env.observation_space
        mask = info["action_mask"]
        observation, reward, _, over, info = env.step(
            env.action_space.sample(mask if mask.ndim == 1 else tuple(mask))
        )
        assert reward <= 0.0
    log = env.unwrapped.assignment_log()
    if prediction == "perfect":
        for name in ("quality", "cost", "energy", "infer", "finish"):
            assert log[f"predicted_{name}"].tolist() == log[name].tolist()
        metrics = info["episode_metrics"]
        assert metrics["objective"] == pytest.approx(metrics["objective_predicted"])
    else:
        assert (log["predicted_quality"] != log["quality"]).any()


def test_a_trace_brings_times_and_no_lengths(files: Files, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"{k / 10},{5000 + k},{6000 + k}" for k in range(400)]
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]), encoding="utf-8")
    config = files.config(trace=trace, requests=None, rate_per_s=None)
    arrivals = EpisodeSource(config).draw(np.random.default_rng(0)).arrivals
    assert len(arrivals.arrival_s) == pytest.approx(20, abs=1)
    assert arrivals.contents.input_tokens.max() < 5000
    assert Workload(config).input_maximum < 5000


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data, which is not part of the repository")
def test_real_outcomes_of_routerbench() -> None:
    pytest.importorskip("faiss")
    folder = SHARED / "routerbench_subset"
    workload = {
        "kind": "routerbench",
        "table": folder / "routerbench_0shot_subset.csv.gz",
        "prompts": folder / "prompts_mmlu_gsm8k.csv.gz",
        "embeddings": folder / "minilm_int8_embeddings.npz",
    }
    source = Workload(CloudEdgeConfig.create("routerbench-5node", workload=workload, requests=30, windows=1))
    contents = source.contents
    assert isinstance(contents, OutcomeContents)
    assert 600 < len(contents.ids) < 800  # two fifths of the 1,767 that all eleven models have answered
    everything = draw(contents, len(contents.ids))
    best = everything.quality.max(axis=1).mean()
    assert best == pytest.approx(0.913, abs=0.03)
    told_apart = np.corrcoef(everything.predicted_quality.ravel(), everything.quality.ravel())[0, 1]
    assert told_apart > 0.3


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data, which is not part of the repository")
def test_real_outcomes_of_gsm8k_need_their_stand_ins() -> None:
    folder = SHARED / "gsm8k_open_llms"
    workload = {"kind": "gsm8k", "table": folder / "gsm8k_test_open_llms.csv.gz", "prediction": "mean"}
    source = Workload(CloudEdgeConfig.create("testbed-6node", workload=workload))
    assert isinstance(source.contents, OutcomeContents)
    means = draw(source.contents, len(source.contents.ids)).quality.mean(axis=0)
    assert means == pytest.approx([0.873, 0.796, 0.860, 0.854, 0.466, 0.406], abs=0.05)
    with pytest.raises(ConfigError, match="has no outcomes of gpt-4"):
        CloudEdgeConfig.create("routerbench-5node", workload=workload)


def test_a_table_need_not_have_the_models_that_are_dropped(tmp_path: Path) -> None:
    listed = [{name: row[name] for name in row if not name.startswith("large")} for row in rows()]
    files = Files(tmp_path, listed)
    config = files.config(drop=["large"])
    contents = Workload(config).contents
    assert isinstance(contents, OutcomeContents) and contents.models == ("small", "tiny")
    with pytest.raises(TableError) as refused:
        Workload(files.config())
    assert "large score" in str(refused.value) and "large length" in str(refused.value)


def test_an_error_about_a_workload_does_not_repeat_it(files: Files) -> None:
    with pytest.raises(ConfigError) as refused:
        files.config(files.workload(prediction="store"))
    assert str(refused.value).startswith("CloudEdgeConfig: workload: embeddings = None: ")


@pytest.mark.parametrize("side", ["test", "validation"])
def test_a_store_knows_its_prompts_again_without_their_texts(files: Files, tmp_path: Path, side: str) -> None:
    """By embeddings, also by those that have been through half precision."""
    pytest.importorskip("faiss")
    config = files.config(files.retrieved()).workload
    assert isinstance(config, OutcomesConfig)
    table = read_table(files.table, config.columns)
    embeddings = read_embeddings(files.embeddings, table)
    QualityPredictor.fit(table, embeddings, config.fit).save(tmp_path / "store")
    split = split_by_prompt(prompt_keys(table, embeddings), config.fit)
    (tmp_path / "bare").mkdir()
    bare = Files(tmp_path / "bare", [{**row, "prompt": ""} for row in files.rows])
    halved = embeddings.astype(np.float16).astype(np.float32)
    write_embeddings(bare.embeddings, table.ids, halved * np.float32(0.5))
    columns = {**{name: COLUMNS[name] for name in COLUMNS if name != "prompt"}}
    asked = bare.contents(
        bare.retrieved(store=str(tmp_path / "store"), fit={}, columns=columns, rows=side)
    ).ids
    assert list(asked) == [table.ids[row] for row in getattr(split, side)]


def test_the_settings_of_a_store_are_its_own(files: Files) -> None:
    with pytest.raises(ConfigError, match=r"fit: the settings are those of store = 'somewhere'"):
        files.config(files.retrieved(store="somewhere", fit={"neighbours": 3}))


def test_lengths_must_be_recorded(files: Files) -> None:
    for column, words in (
        ("prompt_tokens", "names no prompt_tokens;"),
        ("completion_tokens", "names no models.large.completion_tokens, models.small.completion_tokens"),
    ):
        columns = {name: COLUMNS[name] for name in COLUMNS if name != column}
        with pytest.raises(ConfigError, match=words):
            files.config(files.workload(columns=columns))


@pytest.mark.parametrize("saved", [True, False])
def test_a_predictor_without_lengths_is_refused(files: Files, tmp_path: Path, saved: bool) -> None:
    """Otherwise observations would hold NaN."""
    pytest.importorskip("faiss")
    config = files.config(files.retrieved()).workload
    assert isinstance(config, OutcomesConfig)
    table = read_table(files.table, config.columns)
    embeddings = read_embeddings(files.embeddings, table)
    without = {**COLUMNS, "completion_tokens": None}
    bare = read_table(files.table, config.columns.model_validate(without))
    QualityPredictor.fit(bare, embeddings, config.fit).save(tmp_path / "store")
    workload = files.retrieved(store=str(tmp_path / "store"), fit={})
    if not saved:
        profile = split_by_prompt(prompt_keys(table, embeddings), config.fit).profile
        gone = {table.ids[row] for row in profile}
        write(files.table, [row | {"tiny length": ""} if row["id"] in gone else row for row in files.rows])
        workload = files.retrieved(columns={**COLUMNS, "missing": "allow"})
    with pytest.raises(ConfigError, match=r"no profiled prompt has a score, or none a length, of .*tiny"):
        files.contents(workload)
