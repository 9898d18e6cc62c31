"""Documents: their examples run, their links resolve, and they leave nothing out that a user can name."""

from __future__ import annotations

import os
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

import routing_gym
from routing_gym.cli import app, quality
from routing_gym.cloud_edge import contents
from routing_gym.cloud_edge import metrics as cloud_edge_metrics
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.observation import batch_fields, request_fields
from routing_gym.cloud_edge.outcomes import OutcomesConfig
from routing_gym.cloud_edge.synthetic import SyntheticConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.distribution import ClusterDistribution
from routing_gym.cluster.metrics import METRICS
from routing_gym.cluster.observation import REPLICA_FIELDS
from routing_gym.cluster.state import REQUEST_LOG
from routing_gym.common.config import FrozenModel, config_names, configs_folder
from routing_gym.evaluation.decisions import DECISION_METRICS
from routing_gym.rewards import CLOUD_EDGE_TERMS, CLUSTER_TERMS, CLUSTER_WEIGHTINGS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DESIGN, CLUSTER, CLOUD_EDGE, QUALITY, LEARNED, REPRODUCTION = (
    ROOT / "docs" / f"{name}.md"
    for name in ("design", "cluster", "cloud_edge", "quality", "learned", "reproduction")
)
MANUALS = {"cluster": CLUSTER, "cloud_edge": CLOUD_EDGE}
RUNNABLE = (README, DESIGN, CLUSTER, CLOUD_EDGE, QUALITY, LEARNED)
each_family = pytest.mark.parametrize("family", MANUALS)
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


def section(page: Path, heading: str) -> str:
    """Return what stands under a second-level heading of a page."""
    return f"{read(page)}\n## ".partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def words(text: str) -> set[str]:
    """Return every word that stands in code, in a line or in a block."""
    code = [block[3] for block in FENCED.finditer(text)]
    code += re.findall(r"`([^`\n]+)`", FENCED.sub("", text))
    return {word for part in code for word in re.findall(r"--[a-z-]+|\w+", part)}


def named(page: Path) -> set[str]:
    """Return every word that stands in code on a page."""
    return words(read(page))


def run(code: str, page: Path, module: types.ModuleType) -> None:
    exec(compile(code, str(page), "exec"), module.__dict__)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of a manual stands alone; those of the README go on from each other."""
    if page == QUALITY:
        pytest.importorskip("faiss")
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


class Defaults(NamedTuple):
    """A manual's table of fields, found by the words above it, and where their shipped values are."""

    family: str
    above: str
    config: str
    section: str | None
    least: int  # values in the table


DEFAULTS = (
    Defaults("cluster", "Of `ClusterConfig`", "default", None, 9),
    Defaults("cluster", "Of `ClusterDistribution`", "training", None, 9),
    Defaults("cloud_edge", "Of `CloudEdgeConfig`", "default", None, 14),
    Defaults("cloud_edge", "Of the catalogue", "routerbench-5node", "catalogue", 3),
    Defaults("cloud_edge", "Of the workload", "routerbench-5node", "workload", 3),
)


def values(table: str) -> dict[str, Any]:
    """Return what a Markdown table says of each field, in YAML; fields without a value are left out."""
    rows = re.findall(r"^\| `(\w+)` \| ([^\s|][^|]*?) \|", table, re.MULTILINE)
    return {name: yaml.safe_load(value) for name, value in rows}


@each_family
def test_every_config_field_is_documented(family: str) -> None:
    kinds: tuple[type[FrozenModel], ...] = (CloudEdgeConfig,)
    known = {"windows", "outages", "node", "single_tflops", "up_mbps", "fee_usd", "median", "by_topic"}
    if family == "cluster":
        kinds = (ClusterConfig, ClusterDistribution)
        known = {"replicas", "sigma", "base_ms", "low", "time_s", "any_replica"}
    fields = {name for kind in kinds for model in models(kind) for name in model.model_fields}
    assert known <= fields
    assert sorted(fields - words(section(MANUALS[family], "All fields of a config"))) == []


@pytest.mark.parametrize("defaults", DEFAULTS, ids=lambda defaults: defaults.above)
def test_documented_defaults_are_the_shipped_ones(defaults: Defaults) -> None:
    shipped = yaml.safe_load(read(configs_folder() / defaults.family / f"{defaults.config}.yaml"))
    shipped = shipped if defaults.section is None else shipped[defaults.section]
    table = read(MANUALS[defaults.family]).partition(defaults.above)[2].partition("| field |")[2]
    shown = values(table.partition("\n\n")[0])
    assert len(shown) >= defaults.least
    assert shown == {name: shipped[name] for name in shown}


def test_every_name_that_results_carry_is_documented() -> None:
    words = named(DESIGN)
    quarters = {f"attainment_q{k}" for k in (2, 3)}  # the page gives the first and the last
    assert sorted({*METRICS} - quarters - words) == []
    assert sorted({*REPLICA_FIELDS, "request", "arrival_gap", "deadline", "signal_age"} - words) == []
    assert sorted({*(REQUEST_LOG.names or ()), *CLUSTER_TERMS, *CLUSTER_WEIGHTINGS} - words) == []


def test_every_name_of_cloud_edge_results_is_documented() -> None:
    words = named(DESIGN)
    assert sorted({*cloud_edge_metrics.METRICS, *DECISION_METRICS} - words) == []
    assert sorted({*batch_fields(1, 1), *request_fields(1), *CLOUD_EDGE_TERMS} - words) == []
    parts = set(cloud_edge_metrics.PARTS)
    assert "predicted_" in words  # the page gives the prefix once, and the parts without it
    logged = {*(cloud_edge_metrics.ASSIGNMENT_LOG.names or ())} - {f"predicted_{part}" for part in parts}
    assert sorted(logged - words) == []
    assert sorted(logged - named(CLOUD_EDGE)) == []


def test_every_scenario_and_kind_of_event_is_documented() -> None:
    kinds = {*typing.get_args(ClusterConfig.model_fields["observation"].annotation)}
    kinds |= {"rate", "slowdown", "failure", "recovery", *ClusterConfig.create().scenarios}
    assert sorted(kinds - named(DESIGN)) == []


def test_every_catalogue_and_choice_of_a_cloud_edge_config_is_documented() -> None:
    choices = {*typing.get_args(CloudEdgeConfig.model_fields["reward_on"].annotation)}
    choices |= {*typing.get_args(SyntheticConfig.model_fields["kind"].annotation)}
    for name in ("kind", "rows", "prediction"):
        choices |= {*typing.get_args(OutcomesConfig.model_fields[name].annotation)}
    assert {"actual", "predicted", "synthetic", "routerbench", "gsm8k", "validation", "perfect"} <= choices
    assert sorted(choices - named(CLOUD_EDGE)) == []
    for page in (DESIGN, CLOUD_EDGE):
        assert [name for name in config_names("cloud_edge") if f"`{name}" not in read(page)] == ["default"]


@each_family
def test_every_shipped_router_is_documented(family: str) -> None:
    shipped = set(re.findall(rf'^"{family}/(\w+)"', read(ROOT / "pyproject.toml"), re.MULTILINE))
    assert "round_robin" in shipped
    assert shipped <= {name.partition("/")[2] for name in routing_gym.list_policies(family)}
    for page, heading in ((DESIGN, "5. Routers"), (MANUALS[family], "Routers")):
        assert sorted(shipped - words(section(page, heading))) == []


def test_every_parameter_of_cloud_edge_routers_is_documented() -> None:
    routers = yaml.safe_load(read(configs_folder() / "routers" / "cloud_edge.yaml"))
    parameters = {*routers, *(name for router in routers.values() for name in router)}
    assert {"cema", "time_budget_s", "price"} <= parameters
    assert sorted(parameters - words(section(CLOUD_EDGE, "Routers"))) == []


@each_family
def test_every_option_of_compare_is_documented(family: str) -> None:
    command: Any = typer.main.get_command(app)
    for name in ("compare", family.replace("_", "-")):
        command = command.commands[name]
    options = sorted({option for parameter in command.params for option in parameter.opts} - {"--help"})
    table = read(MANUALS[family]).partition("| option | default |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(--[a-z-]+)`", table, re.MULTILINE)) == options


def marked(page: Path) -> set[str]:
    """Return the keys of a config's lines that are marked `ours`, at whatever depth."""
    return set(re.findall(r"^ *(?:- )?([\w.-]+):.*#.*\bours\b", read(page), re.MULTILINE))


def test_every_constant_that_is_ours_has_its_reason() -> None:
    """What the shipped config marks `ours` is on the page that says what is the source's."""
    ours = marked(configs_folder() / "cluster" / "default.yaml")
    assert {"rate_per_s", "service_ceiling_ms", "reward"} <= ours
    assert sorted({*ours, "demand", "scenarios"} - named(REPRODUCTION)) == []


def test_every_constant_of_cloud_edge_that_is_ours_has_its_reason() -> None:
    """And where the page gives a value, it is the shipped one."""
    folder = configs_folder()
    pages = {name: folder / "cloud_edge" / f"{name}.yaml" for name in config_names("cloud_edge")}
    ours = set().union(*map(marked, pages.values()))
    routers = yaml.safe_load(read(folder / "routers" / "cloud_edge.yaml"))
    parameters = marked(folder / "routers" / "cloud_edge.yaml")
    assert {"windows", "speedup", "gpt-4", "qwen2.5-14b", "prediction"} <= ours
    assert {"caps", "price", "time_limit_s"} <= parameters
    half = section(REPRODUCTION, "Cloud–edge batches")
    assert [name for name in sorted(ours | parameters) if f"`{name}`" not in half] == []
    shipped = {
        **yaml.safe_load(read(pages["default"])),
        **yaml.safe_load(read(pages["routerbench-5node"]))["catalogue"],
        **{name: value for router in routers.values() for name, value in router.items()},
    }
    shown = {name: value for name, value in values(half).items() if name in ours | parameters}
    assert len(shown) >= 15
    assert shown == {name: shipped[name] for name in shown}


def test_every_constant_of_predictions_that_is_ours_has_its_reason() -> None:
    """Those of `fit` with the shipped values."""
    page = configs_folder() / "quality" / "default.yaml"
    ours = marked(page) | {"stand_ins"}
    assert {"profile", "neighbours", "index", "cross_validation"} <= ours
    part = section(REPRODUCTION, "Cloud–edge batches on recorded outcomes")
    assert [name for name in sorted(ours) if f"`{name}`" not in part] == []
    fit = yaml.safe_load(read(page))["fit"]
    shown = values(part.partition("### What cannot be matched")[0])
    assert {name: shown[name] for name in fit} == fit


def test_every_option_of_quality_and_reproduce_is_documented() -> None:
    commands: Any = typer.main.get_command(quality.app)
    options = {
        option
        for command in commands.commands.values()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and not option.startswith("--no-")
    }
    assert {"--embedder", "--allow-pickle", "--neighbours"} <= options
    assert sorted(options - {"--help"} - words(read(QUALITY))) == []


def test_streams_of_cloud_edge_are_numbered_as_in_the_code() -> None:
    listed = re.findall(r"^\| (\d+) \| ([A-Z]+) \|", read(DESIGN), re.MULTILINE)
    streams = {name: number for name, number in vars(contents).items() if isinstance(number, int)}
    assert {name: int(number) for number, name in listed} == streams


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: page.name)
def test_no_page_holds_a_placeholder(page: Path) -> None:
    assert re.findall(r"^[A-Z]+-(?:TABLE|[0-9]+)$", read(page), re.MULTILINE) == []
