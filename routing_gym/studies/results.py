"""What a part of a study, or a comparison, came out with, whichever way its episodes are on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_gym.evaluation.presentations import Presentation
from routing_gym.evaluation.report import PRESENTATIONS
from routing_gym.evaluation.results import (
    EPISODES,
    PLAN,
    ResultsError,
    read_curves,
    read_episodes,
    read_plan,
)
from routing_gym.studies.storage import CURVE, KEY, SHARDS, arrow, read_table, shard_files

Floats = NDArray[np.float64]
Row = Mapping[str, Any]

STUDY, SELECTION = "study.yaml", "selection"


@dataclass(frozen=True)
class PartResults:
    """Results of a part of a study, or of a comparison.

    Attributes:
        name: of the part; of a comparison, of its folder.
        folder: where they are.
        plan: the run's plan (`evaluation.results.make_plan`); a part's has its description under `part`.
        selection: results of the candidates on development seeds, where one was chosen.
    """

    name: str
    folder: Path
    plan: Mapping[str, Any]
    selection: PartResults | None = None

    @property
    def run(self) -> Mapping[str, Any]:
        """What was played."""
        run: Mapping[str, Any] = self.plan["run"]
        return run

    @property
    def part(self) -> Mapping[str, Any]:
        """The part's description, `groups` (labels of routers) among it; of a comparison empty."""
        part: Mapping[str, Any] = self.plan.get("part", {})
        return part

    @property
    def show(self) -> Presentation:
        """How the family is shown: `score` is the metric that decides, times `sign` more is better."""
        return PRESENTATIONS[self.run["family"]]

    @property
    def routers(self) -> list[str]:
        """Labels, in the order of tables."""
        return [router["label"] for router in self.run["routers"]]

    @property
    def roles(self) -> dict[str, str]:
        """`router` or `yardstick`, by label."""
        return dict(zip(self.routers, self.run["roles"], strict=True))

    @property
    def conditions(self) -> list[Mapping[str, Any]]:
        """The plan's conditions: `name`, `labels`, `config`, `config_hash`."""
        return list(self.run["conditions"])

    @property
    def seeds(self) -> list[int]:
        """Seeds of each condition's episodes."""
        return list(self.run["seeds"])

    @property
    def reference(self) -> str:
        """The router that differences are taken to."""
        return str(self.run["reference"])

    def group(self, name: str) -> list[str]:
        """Return the labels of a group of routers, such as `documented`."""
        return list(self.part.get("groups", {}).get(name, ()))

    @cached_property
    def _by_condition(self) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {}
        for row in read_episodes(self.folder):
            rows.setdefault(row["condition"], []).append(row)
        return rows

    @cached_property
    def _files(self) -> list[Path]:
        return shard_files(self.folder)

    @cached_property
    def _columns(self) -> dict[str, Floats]:
        return {}

    def scores(self, metric: str) -> Floats:
        """Return a metric of every episode (routers, conditions, seeds); NaN where there is none."""
        if metric not in self._columns:
            self._columns[metric] = self._read(metric)
        return self._columns[metric]

    def _read(self, metric: str) -> Floats:
        places = [
            {value: k for k, value in enumerate(listed)}
            for listed in (self.routers, [c["name"] for c in self.conditions], self.seeds)
        ]
        values = np.full([len(place) for place in places], np.nan)
        if not self._files:
            for rows in self._by_condition.values():
                for row in rows:
                    index = tuple(place[row[key]] for place, key in zip(places, KEY, strict=True))
                    values[index] = np.nan if row.get(metric) is None else row[metric]
            return values
        table = read_table(self._files, list(dict.fromkeys([*KEY, metric])))
        if metric not in table.column_names:
            return values
        index = tuple(
            np.array([place[value] for value in column.dictionary.to_pylist()], np.int64)[column.indices]
            for place, column in (
                (place, table[key].combine_chunks().dictionary_encode())
                for place, key in zip(places, KEY, strict=True)
            )
        )
        column = table[metric].cast("float64").to_numpy(zero_copy_only=False)
        values[index] = column
        return values

    def of(self, router: str, metric: str) -> Floats:
        """Return a metric of a router's episodes (conditions, seeds)."""
        values: Floats = self.scores(metric)[self.routers.index(router)]
        return values

    def rows(self, condition: str) -> list[Row]:
        """Return the episodes of a condition with all their metrics, None where undefined."""
        if not self._files:
            return self._by_condition.get(condition, [])
        return [
            {name: value for name, value in row.items() if not name.startswith(CURVE)}
            for row in self._records(condition)
        ]

    def curves(self, condition: str) -> list[Row]:
        """Return the curves of a condition's episodes that have some, beside router, condition and seed."""
        if not self._files:
            return [curve for curve in self._all_curves if curve["condition"] == condition]
        found: list[Row] = []
        for row in self._records(condition):
            curves = {
                name.removeprefix(CURVE): value
                for name, value in row.items()
                if name.startswith(CURVE) and value is not None
            }
            if curves:
                found.append({key: row[key] for key in KEY} | curves)
        return found

    @cached_property
    def _all_curves(self) -> list[Row]:
        return list(read_curves(self.folder))

    def _records(self, condition: str) -> list[dict[str, Any]]:
        pa = arrow()
        table = read_table(self._files, filters=pa.compute.field("condition") == condition)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def played(self) -> NDArray[np.bool_]:
        """Return which episodes are there (routers, conditions, seeds)."""
        return np.isfinite(self.scores("seed"))

    def complete(self) -> bool:
        """Return whether every episode is there."""
        return bool(self.played().all())


def read_part(folder: Path) -> PartResults:
    """Read the folder of a part or of a comparison.

    Raises:
        ResultsError: it is none, or is damaged.
    """
    plan = read_plan(folder)
    if not (folder / SHARDS).is_dir() and not (folder / EPISODES).is_file():
        raise ResultsError(f"{folder} holds a plan and no episodes yet")
    # A selection of an earlier run of the part may still be there.
    selected = plan.get("part", {}).get("candidates") and (folder / SELECTION / PLAN).is_file()
    chosen = read_part(folder / SELECTION) if selected else None
    return PartResults(folder.resolve().name, folder, plan, chosen)


def read_parts(folder: Path, names: Sequence[str] | None = None) -> list[PartResults]:
    """Read the parts of a study that are on disk, in the order of `names`; or a part or comparison alone.

    Raises:
        ResultsError: there is nothing of the kind.
    """
    if (folder / PLAN).is_file():
        return [read_part(folder)]
    if names is None:
        names = sorted(path.parent.name for path in folder.glob(f"*/{PLAN}"))
    found = [read_part(folder / name) for name in names if (folder / name / PLAN).is_file()]
    if not found:
        raise ResultsError(
            f"{folder} holds no results: it must be the folder of a study, of one of its parts, or of a "
            "comparison"
        )
    return found
