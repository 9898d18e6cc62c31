"""Plays a study: each part into a folder of its own, shard by shard, on from where it was left."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from routing_gym.evaluation.arguments import routers_of
from routing_gym.evaluation.decisions import missing_solver
from routing_gym.evaluation.results import (
    CURVES,
    EPISODES,
    PLAN,
    ResultsError,
    check_same_run,
    file_hash,
    make_plan,
    plan_text,
    read_plan,
    replace_text,
)
from routing_gym.evaluation.runner import TIMED_FAMILIES, Condition, Router
from routing_gym.policy import policy_class
from routing_gym.studies.config import Part, Study, is_number
from routing_gym.studies.engines import Engine
from routing_gym.studies.results import SELECTION, STUDY, PartResults, read_part
from routing_gym.studies.shards import Player, Shards, fingerprint_of
from routing_gym.studies.sizes import size_up, speeds
from routing_gym.studies.storage import SHARDS, rows_in, shard_path, write_shard

DESCRIBED = ("title", "note", "candidates", "load_of_replicas", "axis", "published", "pictures", "report")


@dataclass(frozen=True)
class Stage:
    """A run of a part: its selection, or what is reported.

    Attributes:
        name: for people.
        folder: of its results.
        plan: see `make_plan`.
        shards: of its episodes.
        player: plays them.
    """

    name: str
    folder: Path
    plan: Mapping[str, Any]
    shards: Shards
    player: Player

    def episodes(self) -> int:
        """Return how many episodes there are in all."""
        run = self.plan["run"]
        return len(run["routers"]) * len(run["conditions"]) * len(run["seeds"])

    def left(self) -> list[int]:
        """Return the numbers of the shards that are not on disk, or not whole."""
        return [
            number
            for number in range(len(self.shards))
            if rows_in(shard_path(self.folder, number)) != self.shards.episodes(number)
        ]

    def check(self) -> None:
        """Check that the folder can be gone on with.

        Raises:
            ResultsError: it holds another run.
        """
        if any((self.folder / name).exists() for name in (EPISODES, CURVES)):
            raise ResultsError(f"{self.folder} holds a comparison; choose another --out")
        if (self.folder / PLAN).is_file():
            check_same_run(self.folder, read_plan(self.folder), self.plan)
        elif (self.folder / SHARDS).exists():
            raise ResultsError(f"{self.folder} holds episodes without {PLAN}; choose another --out")

    def play(self, engine: Engine, console: Console) -> None:
        """Play what is left; each shard is on disk as soon as it is finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.folder / PLAN, plan_text(self.plan))
        left = self.left()
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f} episodes"),
            TimeRemainingColumn(),
            console=console,
        )
        with bar:
            played = self.episodes() - sum(map(self.shards.episodes, left))
            task = bar.add_task(self.name, total=self.episodes(), completed=played)
            for number, data in engine.play(self.player, self.shards, left):
                path = shard_path(self.folder, number)
                try:
                    write_shard(path, data)
                except OSError as error:
                    raise ResultsError(
                        f"cannot write {path}: {error.strerror}. What is finished is kept, and the same "
                        "command goes on"
                    ) from error
                bar.advance(task, self.shards.episodes(number))


def stages_of(
    name: str,
    part: Part,
    out: Path,
    *,
    seeds: str | None = None,
    data: Path | None = None,
    reference: str | None = None,
) -> list[Stage]:
    """Return what a part plays: the selection where there are candidates, and what is reported.

    Args:
        name: of the part.
        part: the part.
        out: the study's folder.
        seeds: as for `Part.seeds_played`.
        data: the folder that traces are in.
        reference: what the selection has chosen; None where it has not yet, or where there is none.

    Raises:
        ConfigError: seeds that are spent; a condition that cannot be.
        ValueError: a router that cannot be made, or is of another family; a reference that does not play.
        ImportError: a router needs what is not installed.
    """
    conditions = part.conditions_played(data)
    candidates = part.candidates_played()
    listed = {router.label: router for router in candidates or routers_of(str(part.reference), part.family)}
    if not candidates and len(listed) > 1:
        raise ValueError(f"part {name}: reference = {part.reference!r}: must be one router")
    chosen = listed[reference or next(iter(listed))]
    groups = part.groups(chosen)
    _check_roles(name, groups, candidates)
    unknown = part.published.keys() - {router.label for routers in groups.values() for router in routers}
    if unknown:
        raise ValueError(f"part {name}: published.{min(unknown)}: does not play")
    settings = {
        "reference": chosen.label,
        "curves": part.curves or part.family in TIMED_FAMILIES,
        "gap": part.gap and missing_solver() is None,
    }
    routers = [router for routers in groups.values() for router in routers]
    stages = []
    if candidates:
        plain = settings | {"reference": candidates[0].label, "gap": False}
        title = {"title": f"{part.title}: candidates on development seeds"}
        what = f"{name}, {SELECTION}", out / name / SELECTION
        stages = [_stage(*what, part, candidates, conditions, part.selection_seeds(seeds), plain, title)]
    played = part.seeds_played(seeds)
    described = describe(part, groups)
    return [*stages, _stage(name, out / name, part, routers, conditions, played, settings, described)]


def _check_roles(name: str, groups: Mapping[str, Sequence[Router]], candidates: Sequence[Router]) -> None:
    """Check that yardsticks, and nothing else, are called so, and that none is a candidate."""
    for group, routers in {**groups, "candidates": candidates}.items():
        role = "yardstick" if group == "yardsticks" else "router"
        for router in routers:
            if router.role != role:
                raise ValueError(f"part {name}: {group}: {router.label} is a {router.role}, not a {role}")


def describe(part: Part, groups: Mapping[str, Sequence[Router]]) -> dict[str, Any]:
    """Return what is kept of a part beside its results, as the episodes do not tell it."""
    return {
        **part.model_dump(mode="json", include=set(DESCRIBED)),
        "groups": {group: [router.label for router in routers] for group, routers in groups.items()},
    }


def _stage(
    name: str,
    folder: Path,
    part: Part,
    routers: Sequence[Router],
    conditions: Sequence[Condition],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    described: Mapping[str, Any],
) -> Stage:
    for what, listed in (("condition", [c.name for c in conditions]), ("router", [r.label for r in routers])):
        double = sorted({one for one in listed if listed.count(one) > 1})
        if double:
            raise ValueError(f"part {name}: {what} {double[0]!r} is listed twice")
    known = set.intersection(*(set(condition.labels) for condition in conditions))
    drawn = [label for label in known if all(is_number(c.labels[label]) for c in conditions)]
    if part.axis is not None and part.axis not in drawn:
        raise ValueError(f"part {name}: axis = {part.axis!r}: must be a number, {', '.join(sorted(drawn))}")
    shards = Shards(routers, conditions, seeds)
    fingerprints = _fingerprints(name, part.family, shards)
    plan = make_plan(
        part.family,
        routers,
        conditions,
        seeds,
        roles=[router.role for router in routers],
        fingerprints=fingerprints,
        shard_rows=[group.rows for group in shards.groups],
        **settings,
    )
    files = {path: file_hash(path) for condition in conditions for path in condition.config.files().values()}
    player = Player(
        settings["curves"],
        settings["gap"],
        tuple(plan["versions"].items()),
        tuple(files.items()),
        tuple(sorted({known for listed in fingerprints.values() for one in listed for known in one.items()})),
    )
    return Stage(name, folder, plan | {"part": dict(described)}, shards, player)


def _fingerprints(name: str, family: str, shards: Shards) -> dict[str, list[dict[str, str]]]:
    """Check that every router can play its conditions, and return what identifies the files it plays with."""
    found: dict[str, list[dict[str, str]]] = {}
    for group in shards.groups:
        for router in group.routers:
            of = policy_class(router.name).family
            if of != family:
                raise ValueError(f"part {name}: router {router.label!r} is one of {of}, not of {family}")
            fingerprint = fingerprint_of(router, [condition.config for condition in group.conditions])
            if fingerprint and fingerprint not in found.setdefault(router.label, []):
                found[router.label].append(fingerprint)
    return found


def run_study(
    study: Study,
    names: Sequence[str],
    out: Path,
    engine: Engine,
    *,
    seeds: str | None = None,
    data: Path | None = None,
    overwrite: bool = False,
    sizes_only: bool = False,
    console: Console,
) -> list[PartResults]:
    """Play parts of a study, and what is left of them where some of it is on disk.

    Args:
        study: what to play.
        names: of the parts.
        out: the folder; each part has one of its own there, of its name.
        engine: what plays.
        seeds: as for `Part.seeds_played`.
        data: the folder that traces are in.
        overwrite: throw away what the folders hold.
        sizes_only: say how much there is to play, and stop.
        console: where to print.

    Returns:
        The results of these parts; none of them where only sizes were asked for.

    Raises:
        ResultsError: a folder holds something else; workers are lost again and again.
        ConfigError: seeds that are spent; a condition that cannot be.
        ValueError: a router that cannot be made, or is of another family.
        ImportError: a router or the engine needs what is not installed.
    """
    engine.check()
    how: dict[str, Any] = {"seeds": seeds, "data": data}
    for name in names:  # what cannot be played is found before anything is thrown away
        stages_of(name, study.parts[name], out, **how)
    if any(study.parts[name].gap for name in names) and (missing := missing_solver()):
        console.print(Text(f"No gaps: {missing}"), soft_wrap=True)
    if overwrite and not sizes_only:
        for name in names:
            clear(out / name)
    size_up([s for name in names for s in _planned(name, study.parts[name], out, **how)], engine, console)
    if sizes_only:
        return []
    out.mkdir(parents=True, exist_ok=True)
    about = {"title": study.title, "about": study.about, "parts": list(study.parts)}
    replace_text(out / STUDY, yaml.safe_dump(about, sort_keys=False, allow_unicode=True, width=110))
    for name in names:
        *selection, reported = _planned(name, study.parts[name], out, **how)
        if selection and selection[0].left():
            selection[0].play(engine, console)
            *_, reported = _planned(name, study.parts[name], out, **how)
        reported.play(engine, console)
    speeds([s for name in names for s in _planned(name, study.parts[name], out, **how)], console)
    return [read_part(out / name) for name in names]


def _planned(name: str, part: Part, out: Path, **how: Any) -> list[Stage]:
    """Return a part's stages; what is reported has the chosen candidate once the selection is played."""
    stages = stages_of(name, part, out, **how)
    stages[0].check()
    if len(stages) > 1 and not stages[0].left():
        chosen = best_candidate(read_part(stages[0].folder))
        stages = stages_of(name, part, out, reference=chosen, **how)
        stages[1].check()
    return stages


def best_candidate(results: PartResults) -> str:
    """Return the router with the best mean score over all episodes; the first of equals."""
    means = results.show.sign * results.scores(results.show.score).mean(axis=(1, 2))
    return results.routers[int(np.nanargmax(means))]


def clear(folder: Path) -> None:
    """Throw away what a part's folder holds of a study.

    Raises:
        ResultsError: it holds something else.
    """
    if (folder / PLAN).exists():
        read_plan(folder)  # a config.yaml of something else is not ours to throw away
    for held in (folder / SELECTION, folder):
        shutil.rmtree(held / SHARDS, ignore_errors=True)
        (held / PLAN).unlink(missing_ok=True)
