"""Documents: their examples run, their links resolve, and they leave nothing out that a user can name."""

from __future__ import annotations

import os
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import routing_gym
from routing_gym.cli import app
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.distribution import ClusterDistribution
from routing_gym.cluster.metrics import METRICS
from routing_gym.cluster.observation import REPLICA_FIELDS
from routing_gym.cluster.state import REQUEST_LOG
from routing_gym.common.config import FrozenModel, configs_folder
from routing_gym.rewards import CLUSTER_TERMS, CLUSTER_WEIGHTINGS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DESIGN, MANUAL, REPRODUCTION = (
    ROOT / "docs" / f"{name}.md" for name in ("design", "cluster", "reproduction")
)
RUNNABLE = (README, DESIGN, MANUAL)
WRITTEN_BY_RUNS = {"build", "dist", "results", "runs", "venv"}
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def pages() -> Iterator[Path]:
    """Yield the repository's Markdown pages."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in WRITTEN_BY_RUNS)
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".md"))


def python_blocks(text: str) -> Iterator[str]:
    """Yield each Python block, with as many empty lines before it as put its errors on the page's lines."""
    for block in FENCED.finditer(text):
        if block[2] == "python":
            indent = len(block[1])
            lines = [line[indent:] for line in block[3].splitlines()]
            yield "\n" * text.count("\n", 0, block.start(3)) + "\n".join(lines) + "\n"


def links(text: str) -> list[str]:
    """Return the targets of links and pictures, in Markdown and in HTML; in code there are none."""
    text = re.sub(r"`[^`\n]+`", "code", FENCED.sub("", text))
    found = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)", text)
    found += re.findall(r"^\[[^\]]+\]:\s+<?(\S+?)>?$", text, re.MULTILINE)
    return found + re.findall(r"<(?:img|a|source)\b[^>]*?\b(?:src|href)=[\"']([^\"']+)", text)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?)$", FENCED.sub("", text), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def named(*documents: Path) -> set[str]:
    """Return every word that stands in code on these pages, in a line or in a block."""
    words: set[str] = set()
    for page in documents:
        text = read(page)
        code = [block[3] for block in FENCED.finditer(text)]
        code += re.findall(r"`([^`\n]+)`", FENCED.sub("", text))
        words.update(word for part in code for word in re.findall(r"--[a-z-]+|\w+", part))
    return words


def run(code: str, page: Path, module: types.ModuleType) -> None:
    exec(compile(code, str(page), "exec"), module.__dict__)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of a manual stands alone; those of the README go on from each other."""
    monkeypatch.chdir(tmp_path)
    text = read(page)
    blocks = list(python_blocks(text))
    assert len(blocks) == text.count("```python"), "a Python block is not closed"
    module = types.ModuleType("__docs__")
    for block in blocks:
        if page != README:
            module = types.ModuleType("__docs__")
        monkeypatch.setitem(sys.modules, "__docs__", module)  # pickle looks for classes there
        run(block, page, module)


def test_relative_links_resolve() -> None:
    broken = []
    for page in pages():
        for link in links(read(page)):
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            found = target.is_relative_to(ROOT) and target.exists()
            if not found or (anchor and anchor not in anchors(read(target))):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_what_counts_as_a_link() -> None:
    page = """
# A, b: *c* (d)
## A
## A
[x](y.md#z) ![p](q.png "t") `[no](link)`
```text
[no](link)
# no heading
```
[w]: ../v.md
<img alt='' src="u.gif">
"""
    assert links(page) == ["y.md#z", "q.png", "../v.md", "u.gif"]
    assert anchors(page) == {"a-b-c-d", "a", "a-1"}


def test_pages_name_no_machine() -> None:
    """A path of the machine that a page was written on means nothing to its reader."""
    paths = re.compile(r"(?<![\w.])/(?:work|tmp|home|root)/\S*")
    assert [
        f"{page.relative_to(ROOT)}: {path}" for page in pages() for path in paths.findall(read(page))
    ] == []


def models(model: type[FrozenModel]) -> Iterator[type[FrozenModel]]:
    """Yield a config model and those of its fields."""
    yield model
    left: list[Any] = [field.annotation for field in model.model_fields.values()]
    while left:
        annotation = left.pop()
        left += typing.get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, FrozenModel):
            yield from models(annotation)


def test_every_config_field_is_documented() -> None:
    kinds = (ClusterConfig, ClusterDistribution)
    fields = {name for kind in kinds for model in models(kind) for name in model.model_fields}
    assert {"replicas", "sigma", "base_ms", "low", "time_s", "any_replica"} <= fields
    assert sorted(fields - named(MANUAL)) == []


@pytest.mark.parametrize(
    ("config", "above"), [("default", "Of `ClusterConfig`"), ("training", "Of `ClusterDistribution`")]
)
def test_documented_defaults_are_the_shipped_ones(config: str, above: str) -> None:
    shipped = yaml.safe_load(read(configs_folder() / "cluster" / f"{config}.yaml"))
    table = read(MANUAL).partition(above)[2].partition("| field | default |")[2].partition("\n\n")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^\s|][^|]*?) \|", table, re.MULTILINE))
    assert len(shown) >= 9
    assert {name: yaml.safe_load(value) for name, value in shown.items()} == {
        name: shipped[name] for name in shown
    }


def test_every_name_that_results_carry_is_documented() -> None:
    words = named(DESIGN)
    quarters = {f"attainment_q{k}" for k in (2, 3)}  # the page gives the first and the last
    assert sorted({*METRICS} - quarters - words) == []
    assert sorted({*REPLICA_FIELDS, "request", "arrival_gap", "deadline", "signal_age"} - words) == []
    assert sorted({*(REQUEST_LOG.names or ()), *CLUSTER_TERMS, *CLUSTER_WEIGHTINGS} - words) == []


def test_every_scenario_and_kind_of_event_is_documented() -> None:
    kinds = {*typing.get_args(ClusterConfig.model_fields["observation"].annotation)}
    kinds |= {"rate", "slowdown", "failure", "recovery", *ClusterConfig.create().scenarios}
    assert sorted(kinds - named(DESIGN)) == []


def test_every_shipped_router_is_documented() -> None:
    shipped = set(re.findall(r'^"cluster/(\w+)"', read(ROOT / "pyproject.toml"), re.MULTILINE))
    assert shipped <= {name.partition("/")[2] for name in routing_gym.list_policies("cluster")}
    for page in (DESIGN, MANUAL):
        assert sorted(shipped - named(page)) == []


def test_every_option_of_compare_is_documented() -> None:
    command: Any = typer.main.get_command(app)
    for name in ("compare", "cluster"):
        command = command.commands[name]
    options = sorted({option for parameter in command.params for option in parameter.opts} - {"--help"})
    table = read(MANUAL).partition("| option | default |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(--[a-z-]+)`", table, re.MULTILINE)) == options


def test_every_constant_that_is_ours_has_its_reason() -> None:
    """What the shipped config marks `ours` is on the page that says what is the source's."""
    lines = read(configs_folder() / "cluster" / "default.yaml").splitlines()
    ours = {line.partition(":")[0] for line in lines if re.match(r"\w+:.*#.*\bours\b", line)}
    assert {"rate_per_s", "service_ceiling_ms", "reward"} <= ours
    assert sorted({*ours, "demand", "scenarios"} - named(REPRODUCTION)) == []
