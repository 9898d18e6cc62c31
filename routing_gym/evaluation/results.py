"""A folder of results: episodes on disk as they finish, and all that is needed to run them again."""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from routing_gym.common.config import config_hash
from routing_gym.evaluation.runner import ENVIRONMENTS, Condition, Result, Router

EPISODES, CURVES, PLAN = "episodes.csv", "curves.jsonl", "config.yaml"
# What is made of these at a run's end.
PLOTS = {
    "cluster": ("attainment.png", "latency_cdf.png", "queues.png"),
    "cloud_edge": ("terms.png", "tradeoffs.png", "convergence.png", "backlog.png"),
}
# What `routing-gym reproduce` adds.
PUBLISHED = (
    "published.md",
    "published.json",
    *(f"figure_7_{known}.png" for known in ("perfect", "store", "mean")),
)
SUMMARIES = ("summary.json", "summary.md", *PLOTS["cluster"], *PLOTS["cloud_edge"], *PUBLISHED)
PACKAGES = ("routing-gym", "gymnasium", "numpy", "numba")
# Whose version results may depend on, where it is installed.
SOLVERS = {"cluster": (), "cloud_edge": ("highspy",)}


class ResultsError(ValueError):
    """A results folder that cannot be used as asked; the message says why and what can be done."""


def make_plan(
    family: str,
    routers: Sequence[Router],
    conditions: Sequence[Condition],
    seeds: Sequence[int],
    **settings: Any,
) -> dict[str, Any]:
    """Describe a run completely: what identifies it (`run`), and where and by what it was made."""
    solvers = [name for name in SOLVERS[family] if importlib.util.find_spec(name)]
    return {
        "run": {
            "family": family,
            "environment": ENVIRONMENTS[family],
            "routers": [{"label": r.label, "name": r.name, "params": dict(r.params)} for r in routers],
            "conditions": [
                {
                    "name": c.name,
                    "labels": dict(c.labels),
                    "config_hash": config_hash(c.config),
                    "config": c.config.model_dump(mode="json"),
                    **{f"{name}_sha256": file_hash(path) for name, path in c.config.files().items()},
                }
                for c in conditions
            ],
            "seeds": list(seeds),
            **settings,
        },
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {name: importlib.metadata.version(name) for name in (*PACKAGES, *solvers)},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return a plan as YAML."""
    return yaml.safe_dump(_plain(plan), sort_keys=False, allow_unicode=True, width=110)


def check_same_run(path: Path, held: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Check that a folder's plan is that of a run to go on with.

    Raises:
        ResultsError: another was run there, or by other versions, whose episodes must not end up together.
    """
    old, new = held["run"], _plain(plan["run"])
    different = [key for key in new if old.get(key) != new[key]]
    reasons = [f"{', '.join(different)} differ"] if different else []
    begun = held.get("versions") or {}
    reasons += _other_versions(begun, plan["versions"])
    if reasons:
        raise ResultsError(
            f"{path} holds another run ({'; '.join(reasons)}); choose another --out, or --overwrite it"
        )


def check_here(versions: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Check that what is installed here, and what conditions read, is what a run was begun with.

    Args:
        versions: of packages, by name.
        files: SHA-256 by path.

    Raises:
        ResultsError: something is not.
    """
    reasons = _other_versions(versions, {name: _version(name) for name in versions})
    reasons += [f"{path} {state}" for path, known in files.items() if (state := _state(path, known))]
    if reasons:
        raise ResultsError(
            f"{platform.node()} cannot play part of this run, begun with others: {'; '.join(reasons)}"
        )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _state(path: str, known: str) -> str | None:
    """Return what is wrong with a file; None if nothing is."""
    try:
        return None if file_hash(path) == known else "is another file"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _other_versions(begun: Mapping[str, Any], here: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {begun.get(name)}, here {version}"
        for name, version in here.items()
        if begun.get(name) != version
    ]


def file_hash(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, so that a run is not repeated on another file unnoticed."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class ResultFolder:
    """Where a run's results lie.

    Attributes:
        path: the folder.
        done: keys (router, condition, seed) of the episodes that are on disk.
    """

    def __init__(
        self, path: str | Path, plan: Mapping[str, Any], resume: bool = False, overwrite: bool = False
    ) -> None:
        """Open a folder for a run.

        Args:
            path: created where missing.
            plan: what `make_plan` returns.
            resume: go on with what the folder holds, if it is of the same run.
            overwrite: throw away what the folder holds of a run.

        Raises:
            ResultsError: the folder holds a run and neither was asked for, or another run is to be resumed;
                the folder cannot be written.
        """
        self.path = Path(path)
        self.done: set[tuple[str, str, int]] = set()
        self._plan = plan
        self._columns: list[str] | None = None
        conditions = plan["run"]["conditions"]
        self._labels = list(dict.fromkeys(name for condition in conditions for name in condition["labels"]))
        try:
            self._open(resume, overwrite)
        except OSError as error:
            raise ResultsError(f"cannot write results to {self.path}: {error.strerror}") from error

    def _open(self, resume: bool, overwrite: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ResultsError(f"{self.path} is a file; results need a folder")
        if resume and overwrite:
            raise ResultsError("--resume and --overwrite exclude each other")
        held = [name for name in (EPISODES, CURVES, PLAN) if (self.path / name).exists()]
        if held and overwrite:
            if PLAN in held:
                read_plan(self.path)  # a config.yaml of something else is not ours to throw away
            for name in (*held, *SUMMARIES):
                (self.path / name).unlink(missing_ok=True)
        elif held and not resume:
            raise ResultsError(f"{self.path} already holds a run; go on with --resume, or --overwrite it")
        elif held:
            self._take_over()
        self.path.mkdir(parents=True, exist_ok=True)
        replace_text(self.path / PLAN, plan_text(self._plan))

    def add(self, result: Result) -> None:
        """Put a finished episode on disk."""
        job = result.job
        if result.curves:
            line = {"router": job.router.label, "condition": job.condition.name, "seed": job.seed}
            with open(self.path / CURVES, "a", encoding="utf-8") as file:
                file.write(json.dumps(line | result.curves) + "\n")
        row = {
            "router": job.router.label,
            "condition": job.condition.name,
            **{name: job.condition.labels.get(name) for name in self._labels},
            "seed": job.seed,
            "config_hash": config_hash(job.condition.config),
            **result.metrics,
        }
        with open(self.path / EPISODES, "a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if self._columns is None:
                self._columns = list(row)
                writer.writerow(self._columns)
            writer.writerow(_cell(row[name]) for name in self._columns)
        self.done.add(job.key)

    def finish(self) -> list[dict[str, Any]]:
        """Put the episodes in the plan's order, so that the same run gives the same bytes; return them."""
        run = self._plan["run"]
        routers = {router["label"]: k for k, router in enumerate(run["routers"])}
        conditions = {condition["name"]: k for k, condition in enumerate(run["conditions"])}

        def place(row: Mapping[str, Any]) -> tuple[int, int, int]:
            return conditions[row["condition"]], routers[row["router"]], row["seed"]

        rows = sorted(read_episodes(self.path), key=place)
        self._write_episodes(rows)
        curves = sorted(read_curves(self.path), key=place)
        replace_text(self.path / CURVES, "".join(json.dumps(line) + "\n" for line in curves))
        return rows

    def _take_over(self) -> None:
        held = self.path / PLAN
        if not held.exists():
            raise ResultsError(f"{self.path} holds results without {PLAN}; --overwrite them")
        plan = read_plan(self.path)
        check_same_run(self.path, plan, self._plan)
        new = _plain(self._plan["run"])
        # An interrupt may have left half a line, or an episode's curves without its row.
        with_curves = {(line["router"], line["condition"], line["seed"]) for line in read_curves(self.path)}
        plays = {router["label"]: Router(**router).plays for router in new["routers"]}
        rows = []
        for row in read_episodes(self.path):
            key = (row["router"], row["condition"], row["seed"])
            if key not in self.done and (key in with_curves or not new.get("curves") or not plays[key[0]]):
                self.done.add(key)
                rows.append(row)
        self._write_episodes(rows)
        kept = [
            line
            for line in read_curves(self.path)
            if (line["router"], line["condition"], line["seed"]) in self.done
        ]
        replace_text(self.path / CURVES, "".join(json.dumps(line) + "\n" for line in kept))

    def _write_episodes(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if not rows:
            (self.path / EPISODES).unlink(missing_ok=True)
            return
        self._columns = list(rows[0])
        temporary = self.path / f"{EPISODES}.part"
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            writer.writerows([_cell(row[name]) for name in self._columns] for row in rows)
        temporary.replace(self.path / EPISODES)


def read_plan(path: str | Path) -> dict[str, Any]:
    """Read the plan of a results folder, or the plan file itself."""
    file = Path(path)
    file = file / PLAN if file.is_dir() else file
    try:
        plan = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ResultsError(f"cannot read the plan {file}: {error}") from error
    run = plan.get("run") if isinstance(plan, dict) else None
    parts = ("family", "routers", "conditions", "seeds", "reference")
    if not isinstance(run, dict) or any(part not in run for part in parts):
        raise ResultsError(f"{file} is not the {PLAN} of a results folder")
    return plan


def read_episodes(path: str | Path) -> list[dict[str, Any]]:
    """Read the complete rows of a folder's episodes; empty cells are None."""
    file = Path(path) / EPISODES
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    complete = text[: text.rfind("\n") + 1]
    rows = list(csv.reader(complete.splitlines()))
    if not rows:
        return []
    header = rows[0]
    return [
        {name: _value(name, cell) for name, cell in zip(header, row, strict=True)}
        for row in rows[1:]
        if len(row) == len(header)
    ]


def read_curves(path: str | Path) -> list[dict[str, Any]]:
    """Read the complete lines of a folder's curves."""
    file = Path(path) / CURVES
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1] if line]


def strict_json(value: Any) -> Any:
    """Return a value for JSON, which knows no infinity: it becomes the string "inf" or "-inf"."""
    if isinstance(value, Mapping):
        return {key: strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else str(value)
    return value


TEXT_COLUMNS = frozenset(
    {"router", "condition", "scenario", "catalogue", "dropped", "workload", "table", "rows", "prediction"}
    | {"lengths", "stand_ins", "notes", "config_hash", "trace"}
)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, np.ndarray):
        return json.dumps(value.tolist())
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value))
    return repr(float(value)) if isinstance(value, (float, np.floating)) else str(value)


def _value(name: str, cell: str) -> Any:
    if cell == "":
        return None
    if name in TEXT_COLUMNS:
        return cell
    if cell.startswith("["):
        return json.loads(cell)
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        return float(cell)
    except ValueError:
        return cell


def _plain(value: Any) -> Any:
    """Return what YAML gives back of a value: tuples as lists, paths as text."""
    return json.loads(json.dumps(value, default=str))


def replace_text(path: Path, text: str) -> None:
    """Write a file so that it is never seen half written."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
