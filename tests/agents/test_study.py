"""What the study plays: conditions, seeds, the choice of a reference, and its folders."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing_agents import study as module
from routing_agents.folder import load, save
from routing_agents.learned import shipped
from routing_agents.manifest import LearnedError
from routing_agents.study import Part, Steered, Study
from routing_gym.common.config import ConfigError, configs_folder, load_yaml
from routing_gym.evaluation import compare as comparing
from routing_gym.evaluation.results import ResultsError, read_episodes, read_plan
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS, VALIDATION_SEEDS, Result, run_jobs
from routing_gym.rewards import cluster_weights
from tests.agents.studies import CANDIDATES, cloud_edge_part, cluster_part, played, study
from tests.evaluation.runs import hide_matplotlib

SHIPPED = Study.create()


@pytest.fixture(scope="module", autouse=True)
def no_plots() -> Iterator[None]:
    """Nothing here is about the plots of a comparison, which take longer than the rest."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        hide_matplotlib(monkeypatch)
        yield


# What is declared


def test_the_shipped_study_has_every_part_with_three_training_seeds() -> None:
    assert list(SHIPPED.parts) == [
        *("predicted", "hidden", "admission", "replicas", "traces", "weights", "testbed", "routerbench")
    ]
    counts = {name: len(part.routers.trained) for name, part in SHIPPED.parts.items()}
    assert counts == {name: 0 if name == "weights" else 3 for name in counts}
    assert SHIPPED.parts["weights"].steered is not None


@pytest.mark.parametrize("name", ["predicted", "hidden", "admission", "weights"])
def test_the_exploration_study_has_24_conditions(name: str) -> None:
    conditions = SHIPPED.parts[name].conditions_played()
    found = {(c.config.rate_per_s, c.config.heterogeneity, c.config.scenario) for c in conditions}
    scenarios = ("steady", "burst", "straggler", "failure")
    assert found == set(itertools.product((100.0, 180.0, 250.0), (0.5, 1.0), scenarios))
    assert len(conditions) == len({c.name for c in conditions}) == 24
    for condition in conditions:
        assert condition.config.admission == (name == "admission")
        assert condition.config.prediction_sigma == (None if name == "hidden" else 0.5)


def test_more_replicas_keep_the_load_of_three() -> None:
    """ρ = λ · 11 / Σ(11/m): worked out by hand for (8, 11, 16) and its repetitions."""
    conditions = SHIPPED.parts["replicas"].conditions_played()
    assert len(conditions) == 48
    for condition in conditions:
        config, labels = condition.config, condition.labels
        service = [11.0 + config.heterogeneity * (m - 11.0) for m in (8.0, 11.0, 16.0)]
        usual = labels["rate_per_s"] / 1000.0 * 11.0 / sum(11.0 / m for m in service)
        assert config.load == pytest.approx(usual, rel=1e-9)
        assert config.replicas == labels["replicas"]
        assert labels["load"] == pytest.approx(usual, abs=1e-4)


def test_traces_are_files_of_the_data_folder(tmp_path: Path) -> None:
    part = SHIPPED.parts["traces"]
    for name in part.traces:
        rows = "\n".join(f"{k / 5},100,{20 + k % 7}" for k in range(6000))
        (tmp_path / name).write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    conditions = part.conditions_played(tmp_path)
    assert [c.config.trace for c in conditions] == [str(tmp_path / name) for name in part.traces]
    assert [c.labels["trace"] for c in conditions] == part.traces
    assert [c.config.load for c in conditions] == [0.9, 0.9]
    assert all(c.labels["trace_s"] > 0.0 and c.labels["cutoff_s"] == 15.0 for c in conditions)


def test_a_steered_router_is_told_rewards_in_between() -> None:
    steered = Steered(router="learned:name=weighted", rewards=("on_time", "latency"), shares=(0.0, 0.25, 1.0))
    routers = steered.routers(50.0)
    assert [router.name for router in routers] == ["cluster/learned"] * 3
    assert [router.label for router in routers] == [steered.label(share) for share in (0.0, 0.25, 1.0)]
    assert routers[0].params == {"name": "weighted", "reward": list(cluster_weights("on_time", 50.0))}
    # A quarter of latency: 0.75 for a request on time, -10/4 for one shed, -1/4 for each deadline waited.
    assert routers[1].params["reward"] == pytest.approx([0.75, 0.0, -2.5, -0.005, 0.0])
    assert routers[2].params["reward"] == list(cluster_weights("latency", 50.0))
    # Half of on_time and half of a tenth of latency, written out.
    tenth = steered.model_copy(
        update={"rewards": ("on_time", (0.0, 0.0, -1.0, -0.002, 0.0)), "shares": (0.5,)}
    )
    assert tenth.routers(50.0)[0].params["reward"] == pytest.approx([0.5, 0.0, -0.5, -0.001, 0.0])


def test_the_shipped_study_steers_between_the_rewards_of_training() -> None:
    (training,) = load_yaml("agents", "cluster-ppo-weights").values()
    steered = SHIPPED.parts["weights"].model_dump(mode="json")["steered"]
    assert steered["rewards"] == training["env_kwargs"]["rewards"]


@pytest.mark.parametrize("study", sorted((configs_folder() / "studies").glob("*.yaml")), ids=lambda p: p.stem)
def test_routers_that_a_study_names_ship(study: Path) -> None:
    named = {
        (part.family, name)
        for part in Study.create(study).parts.values()
        for name in re.findall(r"learned:name=([\w.-]+)", part.model_dump_json())
    }
    assert named
    assert {(family, name) for family, name in named if name not in shipped(family)} == set()


def test_seeds_are_the_validation_seeds_or_others_that_nobody_has_seen() -> None:
    part = SHIPPED.parts["predicted"]
    assert part.seeds_played() == list(VALIDATION_SEEDS)
    assert part.seeds_played("2") == [20_000, 20_001]
    assert part.seeds_played("100") == list(VALIDATION_SEEDS)
    assert part.seeds_played("70000-70002") == [70_000, 70_001, 70_002]
    assert SHIPPED.parts["replicas"].seeds_played("99") == SHIPPED.parts["replicas"].seeds_played()
    for spent in ("10000-10003", "9999,10007", "999999,1000000"):
        with pytest.raises(ConfigError, match=rf"--seeds {spent}: \d+ may have been seen"):
            part.seeds_played(spent)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"split": "replicas"}, "split = 'replicas': must be one of rate_per_s, scenario"),
        ({"candidates": []}, "reference is missing"),
        (
            {"reference": "adaptive"},
            "'adaptive' must be one of the routers deadline_aware, least_queue, round",
        ),
        ({"also": ["least_work"]}, "'least_work' must be one of the routers"),
        ({"seeds": "some"}, "--seeds some: must be a number of episodes"),
        ({"seeds": "10007-10009"}, "seeds = 10007-10009: 10007 may have been seen in training or selection"),
        ({"conditions": {"rate_per_s": []}}, "at least 1 item"),
    ],
)
def test_a_part_that_cannot_be_played_is_refused(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Part.model_validate(cluster_part(tmp_path, **fields))


def test_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"parts\.one\.beside = 'two': must be one of one"):
        study(one=cluster_part(tmp_path, beside="two"))
    assert list(SHIPPED.chosen(["hidden", "predicted"])) == ["predicted", "hidden"]
    with pytest.raises(ConfigError, match="--parts predict: must be of predicted, hidden"):
        SHIPPED.chosen(["predict"])


# What is played


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study's folder, and its routers', played once."""
    folder = tmp_path_factory.mktemp("study")
    played(study(part=cluster_part(folder)), folder / "out")
    return folder


def test_the_selection_sees_development_seeds_alone_and_the_results_none(run: Path) -> None:
    chosen_on = {row["seed"] for row in read_episodes(run / "out" / "part" / "selection")}
    reported = {row["seed"] for row in read_episodes(run / "out" / "part")}
    assert chosen_on == set(DEVELOPMENT_SEEDS[:3])
    assert reported == set(VALIDATION_SEEDS[:3])


def test_the_reference_is_the_candidate_with_the_best_mean_on_development_seeds(run: Path) -> None:
    episodes = read_episodes(run / "out" / "part" / "selection")
    means = {
        router: np.mean([row["attainment"] for row in episodes if row["router"] == router])
        for router in CANDIDATES
    }
    record = json.loads((run / "out" / "part" / "part.json").read_text())
    assert record["selection"]["scores"] == pytest.approx(means)
    assert record["selection"]["seeds"] == [10_000, 10_001, 10_002]
    best = max(CANDIDATES, key=lambda router: means[router])
    assert record["reference"] == read_plan(run / "out" / "part")["run"]["reference"] == best
    assert len({round(float(mean), 6) for mean in means.values()}) > 1, "candidates that differ"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("deadline_aware", ["round_robin", "least_queue", "deadline_aware"]),
        (
            "deadline_aware:margin=1.5",
            ["round_robin", "least_queue", "deadline_aware", "deadline_aware:margin=1.5"],
        ),
    ],
)
def test_the_shipped_margin_is_listed_once(reference: str, expected: list[str], tmp_path: Path) -> None:
    part = Part.model_validate(cluster_part(tmp_path))
    labels = [router.label for router in part.routers_played(reference, part.conditions_played())]
    assert labels == [*expected, *part.routers.trained, "clairvoyant", "bound"]


def test_a_missing_router_is_an_error_that_says_how_it_is_trained(tmp_path: Path) -> None:
    given = cluster_part(tmp_path, train="routing-gym train cluster-ppo --seed 7")
    given["routers"] = {**given["routers"], "trained": ["learned:path=never-trained"]}
    with pytest.raises(LearnedError) as error:
        played(study(fine=cluster_part(tmp_path), part=given), tmp_path / "out")
    assert "part part: router learned:path=never-trained: never-trained: there is no such folder" in str(
        error.value
    )
    assert "trained by `routing-gym train cluster-ppo --seed 7`" in str(error.value)
    assert not (tmp_path / "out").exists(), "before anything is played"


def test_a_router_that_does_not_fit_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    part = cluster_part(tmp_path, fields={"admission": True})
    with pytest.raises(LearnedError, match=r"part part: .* admission = False"):
        played(study(part=part), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Interrupted


FILES = ("part/episodes.csv", "part/part.json", "part/selection/episodes.csv")


def contents(out: Path) -> list[bytes]:
    return [(out / name).read_bytes() for name in FILES]


@pytest.mark.parametrize("count", [7, 18, 30])
def test_a_resumed_study_is_the_one_that_was_not_interrupted(
    count: int, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt in the selection (18 episodes), after it, and in the part itself."""
    left = [count]

    def interrupted(*args: Any, **how: Any) -> Iterator[Result]:
        for result in run_jobs(*args, **how):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            yield result

    whole = study(part=cluster_part(run))
    with monkeypatch.context() as context:
        context.setattr(comparing, "run_jobs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            played(whole, tmp_path)
    done = len(read_episodes(tmp_path / "part" / "selection")) + len(read_episodes(tmp_path / "part"))
    assert done == count
    played(whole, tmp_path, resume=True)
    assert contents(tmp_path) == contents(run / "out")


def test_what_is_played_is_neither_replaced_nor_mixed_unasked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "routers", tmp_path / "out"
    whole = study(part=cluster_part(folder))
    played(whole, out, seeds="1")
    before = contents(out)
    with pytest.raises(ResultsError, match="part already holds a run; go on with --resume, or --overwrite"):
        played(whole, out, seeds="1")
    with pytest.raises(ResultsError, match="holds another run"):
        played(whole, out, seeds="2", resume=True)

    manifest, weights = load(folder / "cluster-1")
    changed = {name: np.float32(-1.0) * array for name, array in weights.items()}
    save(folder / "cluster-1", manifest, changed, overwrite=True)
    with pytest.raises(ResultsError, match=r"part holds another run \(weights differ\); --overwrite it"):
        played(whole, out, seeds="1", resume=True)
    assert contents(out) == before
    played(whole, out, seeds="1", overwrite=True)
    # What is only said of it may change.
    renamed = study(part={**cluster_part(folder), "title": "Renamed"})
    played(renamed, out, seeds="1", resume=True)
    assert json.loads((out / "part" / "part.json").read_text())["part"]["title"] == "Renamed"
    assert contents(out) != before


def test_selection_is_by_the_family_s_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of cloud–edge routers, whose J is better the less it is, the one with the least is chosen."""
    asked: list[str] = []

    def compared(family: str, routers: Any, *args: Any, **how: Any) -> dict[str, Any]:
        asked.append(how.get("reference") or "")
        scores = {router.label: {"mean": 1.0 + k} for k, router in enumerate(routers)}
        return {"overall": {"routers": scores}}

    monkeypatch.setattr(module, "compare", compared)
    part = cloud_edge_part(tmp_path, candidates=["greedy", "local_search"], reference=None)
    played(study(part=part), tmp_path / "out")
    assert asked == ["", "greedy"]
