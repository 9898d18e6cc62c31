"""The page on routers, scenarios and catalogues of one's own is tried, from top to bottom."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shlex
import site
import subprocess
import sys
import types
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from routing_gym import cli
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.distribution import ClusterDistribution
from routing_gym.studies.config import Study

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (at the end of )?([\w./-]+\.(?:py|toml|yaml))\n")
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
# Commands of the page that need what is not always installed.
NEEDS = {
    "routing-gym train": ("torch", "stable_baselines3"),
    "routing-gym study": ("joblib", "pyarrow"),
    "routing-gym report": ("matplotlib",),
}


class Block(NamedTuple):
    """A fenced block: its language, its text, and the page's line that it begins on."""

    language: str
    text: str
    line: int


def blocks() -> Iterator[Block]:
    page = PAGE.read_text(encoding="utf-8")
    for found in BLOCK.finditer(page):
        yield Block(found[1], found[2], page.count("\n", 0, found.start(2)) + 1)


def write(text: str) -> None:
    """Write a block into the file that its first line names, or behind what is there."""
    head = FILE.match(text)
    assert head is not None
    path = Path(head[2])
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") if head[1] else ""
    path.write_text(before + text[head.end() :], encoding="utf-8")


class Reader:
    """Someone at an empty folder with an environment to install into, doing what the page says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.lacks: set[str] = set()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST", "COV")) and name != "VIRTUAL_ENV"
        } | {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        # What is installed here is there too, and nothing is ever installed here.
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        seen = [path for path in sys.path if path.endswith("site-packages")]
        lines = "; ".join(f"site.addsitedir({path!r})" for path in seen)
        (self.packages / "here.pth").write_text(f"import site; {lines}\n", encoding="utf-8")

    def type(self, command: str) -> str | None:
        """Return what a command prints; None where something that it needs is not installed."""
        words = shlex.split(command)
        needs = next((what for start, what in NEEDS.items() if command.startswith(start)), ())
        if not all(map(importlib.util.find_spec, needs)):
            self.lacks.add(words[-1])  # what it would have written
            return None
        if any(f"={missing}" in word or word == missing for missing in self.lacks for word in words):
            return None
        if words[0] == "routing-gym":
            return self.call(words)
        assert words[0] in ("pip", "python"), f"what is {words[0]}?"
        arguments = ["-m", *words] if words[0] == "pip" else words[1:]
        # The page says of these that they are run in a clone.
        folder = ROOT if "tests/" in command else None
        done = subprocess.run(
            [str(self.python), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=self.environment,
            cwd=folder,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def call(self, words: list[str]) -> str:
        """Run the command line here, where kernels are compiled, with what is installed there."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", list(sys.path))
            patch.setattr(sys, "argv", words)
            patch.setattr(os, "cpu_count", lambda: 1)  # one process: what comes out is the same
            site.addsitedir(str(self.packages))
            self.capsys.readouterr()
            try:
                cli.main()
            except SystemExit as end:
                printed = self.capsys.readouterr()
                assert not end.code, f"{shlex.join(words)}\n{printed.out}\n{printed.err}"
                return printed.out
            finally:
                sys.modules.pop("my_routers", None)
        return self.capsys.readouterr().out


def agrees(wanted: str, got: str) -> bool:
    """Tell whether a page's lines are what was printed, trailing spaces and `...` aside."""
    plain = "".join(f"{line.rstrip()}\n" for line in got.splitlines())
    return doctest.OutputChecker().check_output(wanted, plain, doctest.ELLIPSIS)


def test_the_page_s_configs_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick to know; that they do what the page says takes longer."""
    monkeypatch.chdir(tmp_path)
    for language, text, _ in blocks():
        if language == "yaml":
            write(text)
    assert "flapping" in ClusterConfig.create(Path("flapping.yaml")).scenarios
    assert ClusterDistribution.create(Path("flapping-training.yaml")).scenarios == ("steady", "flapping")
    config = CloudEdgeConfig.create(Path("home.yaml"))
    assert {destination.name for destination in config.destinations} >= {"box/small"}
    study = Study.create("mine.yaml")
    assert [len(part.conditions_played()) for part in study.parts.values()] == [4, 2]


@pytest.mark.slow
def test_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are written, commands print what stands below them, Python blocks run."""
    pytest.importorskip("hatchling", reason="needs hatchling, of the dev extra, to install a package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    reader = Reader(tmp_path / "environment", capsys)
    for language, text, line in blocks():
        if language == "console":
            commands = list(COMMAND.finditer(text))
            assert "".join(each[0] for each in commands) == text, f"line {line}: not all of it is typed"
            for command in commands:
                printed = reader.type(command[1])
                if printed is not None and command[2]:
                    assert agrees(command[2], printed), f"line {line}, {command[1]}\n{printed}"
        elif FILE.match(text):
            write(text)
        else:
            assert language == "python", f"line {line}: a block without a file's name"
            code = compile("\n" * (line - 1) + text, str(PAGE), "exec")
            exec(code, types.ModuleType("__docs__").__dict__)
