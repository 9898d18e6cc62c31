"""Where a training run lives: its config, tables that grow, and checkpoints."""

from __future__ import annotations

import csv
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from routing_agents.train_config import TrainConfig
from routing_gym.common.config import ConfigError

CONFIG, ABOUT = "config.yaml", "about.yaml"
PROGRESS, EVALUATIONS, CURVES = "progress.csv", "evaluations.csv", "curves.png"
LAST, BEST = "last.zip", "best.zip"
TENSORBOARD = "tensorboard"
PACKAGES = ("routing-gym", "gymnasium", "numpy", "numba", "torch", "stable-baselines3", "sb3-contrib")


class RunError(ValueError):
    """A run folder that cannot be used as asked; the message says why and what can be done."""


class RunFolder:
    """A run's files.

    Attributes:
        path: the folder.
    """

    def __init__(
        self, path: str | Path, config: TrainConfig, resume: bool = False, overwrite: bool = False
    ) -> None:
        """Open a folder for a run.

        Args:
            path: created where missing.
            config: the run.
            resume: go on with what the folder holds, if it is of the same run.
            overwrite: throw away what the folder holds of a run.

        Raises:
            RunError: the folder holds a run and neither was asked for, or another run is to be resumed; the
                folder cannot be written.
        """
        self.path = Path(path)
        try:
            self._open(config, resume, overwrite)
        except OSError as error:
            raise RunError(f"cannot write a run to {self.path}: {error.strerror}") from error

    def _open(self, config: TrainConfig, resume: bool, overwrite: bool) -> None:
        if resume and overwrite:
            raise RunError("--resume and --overwrite exclude each other")
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; a run needs a folder")
        names = (ABOUT, PROGRESS, EVALUATIONS, CURVES, LAST, BEST)
        held = [name for name in names if (self.path / name).exists()]
        if held and overwrite:
            self.config()  # a folder of something else is not ours to throw away
            events = (self.path / TENSORBOARD).glob("events.out.tfevents.*")
            parts = self.path.glob("*.part")  # half written when it was killed
            for file in (self.path / CONFIG, *(self.path / name for name in held), *events, *parts):
                file.unlink()
        elif held and not resume:
            raise RunError(f"{self.path} already holds a run; go on with --resume, or --overwrite it")
        elif held:
            self._check_same(config)
        self.path.mkdir(parents=True, exist_ok=True)
        if not (held and resume):
            replace(self.path / CONFIG, config.to_yaml())
            replace(self.path / ABOUT, yaml.safe_dump(_about(), sort_keys=False, width=110))

    def _check_same(self, config: TrainConfig) -> None:
        begun, now = (_flat(one.model_dump(mode="json")) for one in (self.config(), config))
        reasons = [
            f"{name} is {begun.get(name)!r} there and {now.get(name)!r} here"
            for name in dict.fromkeys((*begun, *now))
            if begun.get(name) != now.get(name)
        ]
        # A run that two versions trained could not be trained again.
        versions = self.about()["versions"]
        reasons += [
            f"{name} is {versions.get(name)} there and {version} here"
            for name, version in _about()["versions"].items()
            if versions.get(name) != version
        ]
        if reasons:
            raise RunError(
                f"{self.path} holds another run: {'; '.join(reasons)}; choose another --out, or "
                "--overwrite it"
            )

    def config(self) -> TrainConfig:
        """Return the config of the run that the folder holds.

        Raises:
            RunError: there is none.
        """
        try:
            return TrainConfig.create(self.path / CONFIG)
        except ConfigError as error:
            raise RunError(f"{self.path} holds no run of training: {error}") from error

    def about(self) -> dict[str, Any]:
        """Return the command, the versions and the machine that began the run.

        Raises:
            RunError: the file cannot be read.
        """
        try:
            about: dict[str, Any] = yaml.safe_load((self.path / ABOUT).read_text(encoding="utf-8"))
            return {"command": about["command"], "versions": dict(about["versions"]), **about}
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            raise RunError(f"cannot read {self.path / ABOUT}: {error}") from error

    def __truediv__(self, name: str) -> Path:
        """Return the path of a file of the run."""
        return self.path / name


class Table:
    """A CSV of rows that are added one by one; a new column makes older rows empty there.

    Attributes:
        rows: all of them, as text.
    """

    def __init__(self, path: Path, upto: int) -> None:
        """Open a table and drop the rows whose `steps` are above `upto`: they will be made again."""
        self._path = path
        kept = [row for row in read_table(path) if int(row["steps"]) <= upto]
        self.rows: list[dict[str, str]] = kept
        self._columns = list(dict.fromkeys(name for row in kept for name in row))
        self._write()

    def add(self, row: Mapping[str, Any]) -> None:
        """Put a row on disk; None is an empty cell."""
        cells = {name: "" if value is None else str(value) for name, value in row.items()}
        self.rows.append(cells)
        new = [name for name in cells if name not in self._columns]
        if new:
            self._columns += new
            self._write()
            return
        with open(self._path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._columns).writerow(cells)

    def _write(self) -> None:
        temporary = self._path.with_name(self._path.name + ".part")
        with open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self.rows)
        temporary.replace(self._path)


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the complete rows of a table; none where there is no file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:] if len(row) == len(rows[0])]


def replace(path: Path, text: str) -> None:
    """Write a file so that it is never seen half written."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _about() -> dict[str, Any]:
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
