"""The study of learned routers: what is played, and how a part of it is run (DESIGN 6)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator
from rich.console import Console

from routing_agents.folder import WEIGHTS
from routing_agents.learned import LearnedRouter
from routing_agents.manifest import LearnedError
from routing_agents.train_config import TRAINING_SEEDS_FROM
from routing_gym.cli.options import routers_of, seeds_of
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.distribution import Weighting
from routing_gym.cluster.workload import make_workload
from routing_gym.common.config import ConfigError, FrozenModel, load_yaml, merge, validate
from routing_gym.evaluation.compare import compare
from routing_gym.evaluation.report import PRESENTATIONS
from routing_gym.evaluation.results import PLAN, ResultsError, file_hash
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS, VALIDATION_SEEDS, Condition, Router
from routing_gym.policy import make_policy
from routing_gym.rewards import cluster_weights

VALIDATION = "validation"
RECORD, SELECTION = "part.json", "selection"

Texts = tuple[str, ...]


class Groups(FrozenModel):
    """Routers as one types them, by what they are to the study, in the order of its tables.

    Attributes:
        documented: the sources' own.
        fixed: others that nobody trained.
        trained: the training seeds of one method; what is said of it is of their mean.
        yardsticks: what knows more than a router can, and bounds.
    """

    documented: Texts = ()
    fixed: Texts = ()
    trained: Texts = ()
    yardsticks: Texts = ()


class Steered(FrozenModel):
    """A router that is told what is paid, and rewards between two for it.

    Attributes:
        router: the router; it takes a parameter `reward`.
        rewards: two weightings (`routing_gym.rewards`), a and b, by name or as five weights.
        shares: w; what is paid is (1 - w)·a + w·b.
    """

    router: str
    rewards: tuple[Weighting, Weighting]
    shares: Annotated[tuple[float, ...], Field(min_length=1)]

    def label(self, share: float) -> str:
        """Return what results call the router at a share."""
        return f"{self.router}, w = {share:g}"

    def routers(self, deadline_ms: float) -> list[Router]:
        """Return one router for each share."""
        (base,) = routers_of(self.router, "cluster")
        first, second = (np.array(cluster_weights(reward, deadline_ms)) for reward in self.rewards)
        return [
            Router(
                self.label(share),
                base.name,
                {**base.params, "reward": ((1.0 - share) * first + share * second).tolist()},
            )
            for share in self.shares
        ]


class Part(FrozenModel):
    """Routers that are compared under the same conditions, and how that is shown.

    Attributes:
        title: of its section.
        family: of environments.
        config: name of a shipped config of the family, or a YAML path.
        fields: laid over it.
        conditions: fields and the values to cross. A `trace` is a file in the folder of data.
        routers: what plays.
        steered: a router at several rewards.
        candidates: routers of which the best on development seeds becomes the reference.
        reference: what differences are taken to, where there are no candidates.
        also: further routers that differences are taken to.
        beside: another part, whose routers are shown where conditions and seeds are the same.
        seeds: `validation`, or as `--seeds` of a comparison.
        load_of_replicas: the load is what the rate gives with so many replicas.
        split: a crossed field each of whose values gets tables of its own.
        decision_batch: decisions are timed on batches of so many requests.
        train: the command that trains such a router.
        note: what else there is to say of it.
    """

    title: str
    family: Literal["cluster", "cloud_edge"]
    config: str
    fields: dict[str, Any] = Field(default={})
    conditions: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]]
    routers: Groups
    steered: Steered | None = None
    candidates: Texts = ()
    reference: str | None = None
    also: Texts = ()
    beside: str | None = None
    seeds: str = VALIDATION
    load_of_replicas: int | None = Field(default=None, ge=1)
    split: str | None = None
    decision_batch: int | None = Field(default=None, ge=1)
    train: str
    note: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Part:
        self.seeds_played()
        if self.split is not None and self.split not in self.conditions:
            raise ValueError(f"split = {self.split!r}: must be one of {', '.join(self.conditions)}")
        if not (self.candidates or self.reference or self.beside):
            raise ValueError("reference is missing: name a router, candidates, or a part to show beside")
        listed = {*self.routers.documented, *self.routers.fixed}
        for router in (self.reference, *self.also):
            if router is not None and router not in listed:
                raise ValueError(
                    f"reference, also: {router!r} must be one of the routers {', '.join(sorted(listed))}"
                )
        return self

    @property
    def traces(self) -> list[str]:
        """Names of the files that it needs."""
        return [str(name) for name in self.conditions.get("trace", ())]

    def seeds_played(self, asked: str | None = None) -> list[int]:
        """Return the seeds to play.

        Args:
            asked: how many of the part's own, or FIRST-LAST, or seeds by comma, instead.

        Raises:
            ConfigError: seeds that routers are trained on or chosen by.
        """
        seeds = list(VALIDATION_SEEDS) if self.seeds == VALIDATION else seeds_of(self.seeds)
        if asked is not None:
            listed = seeds_of(asked)
            seeds = seeds[: len(listed)] if asked.strip().isdecimal() else listed
        spent = [seed for seed in seeds if seed in DEVELOPMENT_SEEDS or seed >= TRAINING_SEEDS_FROM]
        if spent:
            given = f"seeds = {self.seeds}" if asked is None else f"--seeds {asked}"
            raise ConfigError(
                f"{given}: {spent[0]} may have been seen in training or selection; take others than "
                f"{DEVELOPMENT_SEEDS[0]} to {DEVELOPMENT_SEEDS[-1]}, below {TRAINING_SEEDS_FROM}"
            )
        return seeds

    def conditions_played(self, data: Path | None = None) -> list[Condition]:
        """Return every combination, with the crossed fields and the load as labels.

        Args:
            data: the folder that traces are in.
        """
        made = []
        for values in itertools.product(*self.conditions.values()):
            crossed = dict(zip(self.conditions, values, strict=True))
            fields = merge(self.fields, crossed)
            if "trace" in crossed:
                fields["trace"] = str((data or Path()) / str(crossed["trace"]))
            labels = dict(crossed)
            config: Any
            if self.family == "cluster":
                config = ClusterConfig.create(self.config, **fields)
                if self.load_of_replicas is not None:
                    usual = make_workload(config.replace(replicas=self.load_of_replicas))
                    config = config.replace(load=usual.offered_load)
                workload = make_workload(config)
                labels["load"] = round(workload.offered_load, 4)
                if workload.length_ms is not None:
                    labels |= {
                        "cutoff_s": workload.cutoff_ms / 1000.0,
                        "trace_s": round(workload.length_ms / 1000.0, 3),
                    }
            else:
                config = CloudEdgeConfig.create(self.config, **fields)
            name = ", ".join(f"{field} {value}" for field, value in crossed.items())
            made.append(Condition(name, config, labels))
        return made

    def routers_played(self, reference: str | None, conditions: Sequence[Condition]) -> list[Router]:
        """Return the routers, the reference among them once."""
        groups = self.routers
        texts = [*groups.documented, *groups.fixed, reference, *groups.trained, *groups.yardsticks]
        listed = [routers_of(text, self.family)[0] for text in dict.fromkeys(texts) if text is not None]
        return listed + (self.steered.routers(conditions[0].config.deadline_ms) if self.steered else [])


class Study(FrozenModel):
    """Parts by name, in the order of the report."""

    parts: Annotated[dict[str, Part], Field(min_length=1)]

    @model_validator(mode="after")
    def _parts_exist(self) -> Study:
        for name, part in self.parts.items():
            if part.beside is not None and part.beside not in self.parts:
                raise ValueError(
                    f"parts.{name}.beside = {part.beside!r}: must be one of {', '.join(self.parts)}"
                )
        return self

    @classmethod
    def create(cls, name: str | Path = "learned") -> Study:
        """Read a study: a name in configs/studies, or a YAML path.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
        """
        return validate(cls, load_yaml("studies", name))

    def chosen(self, names: Sequence[str] | None) -> dict[str, Part]:
        """Return the parts of these names; all of None.

        Raises:
            ConfigError: there is no such part.
        """
        for name in names or ():
            if name not in self.parts:
                raise ConfigError(f"--parts {name}: must be of {', '.join(self.parts)}")
        return {name: part for name, part in self.parts.items() if names is None or name in names}


def run_study(
    parts: Mapping[str, Part],
    out: Path,
    *,
    seeds: str | None = None,
    data: Path | None = None,
    workers: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    console: Console,
) -> None:
    """Play parts of the study, each into a folder of its own, `out/NAME`.

    Args:
        parts: by name.
        out: the folder.
        seeds: as for `Part.seeds_played`.
        data: the folder that traces are in.
        workers: processes.
        resume: go on with what the folders hold of the same parts.
        overwrite: throw away what they hold.
        console: where to print.

    Raises:
        LearnedError: a trained router is missing or does not fit; says how it is trained.
        ResultsError: a folder cannot be used as asked.
        ConfigError: seeds that are spent; a trace that is missing.
    """
    conditions = {name: part.conditions_played(data) for name, part in parts.items()}
    weights = {}
    for name, part in parts.items():  # before anything is played
        part.seeds_played(seeds)
        if (out / name / PLAN).exists() and not (resume or overwrite):
            raise ResultsError(f"{out / name} already holds a run; go on with --resume, or --overwrite it")
        routers = part.routers_played(part.reference, conditions[name])
        weights[name] = _weights(name, part, routers, conditions[name])
    for name, part in parts.items():
        console.rule(f"{name}: {part.title}")
        how: dict[str, Any] = {
            "workers": workers,
            "resume": resume,
            "overwrite": overwrite,
            "curves": False,
            "gap": False,
            "console": console,
        }
        selection = _select(part, conditions[name], out / name / SELECTION, seeds, how)
        scores = selection["scores"]
        reference = max(scores, key=lambda label: scores[label]) if scores else part.reference
        record = {
            "part": part.model_dump(mode="json"),
            "selection": selection,
            "reference": reference,
            "weights": weights[name],
        }
        _keep(out / name / RECORD, record, resume)
        compare(
            part.family,
            part.routers_played(reference, conditions[name]),
            conditions[name],
            part.seeds_played(seeds),
            out / name,
            reference=reference,
            **how,
        )


def _weights(
    name: str, part: Part, routers: Sequence[Router], conditions: Sequence[Condition]
) -> dict[str, str]:
    """Check that each trained router fits its conditions, and return the SHA-256 of its weights."""
    found = {}
    for router in routers:
        try:
            fingerprint = weights_hash(router, [condition.config for condition in conditions])
        except LearnedError as error:
            raise LearnedError(
                f"part {name}: router {router.label}: {error}; one for this part is trained by `{part.train}`"
            ) from error
        if fingerprint is not None:
            found[router.label] = fingerprint
    return found


def weights_hash(router: Router, configs: Sequence[Any]) -> str | None:
    """Return the SHA-256 of the weights that a router plays these conditions with; None of untrained ones.

    Raises:
        LearnedError: its folder is missing, damaged, or not for such conditions.
    """
    policy = make_policy(router.name, **router.params)
    if not isinstance(policy, LearnedRouter):
        return None
    policy.configure(configs)
    return file_hash(policy.folder / WEIGHTS)


def _select(
    part: Part, conditions: Sequence[Condition], out: Path, asked: str | None, how: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the development `seeds` played, and `scores`: each candidate's mean, more being better."""
    if not part.candidates:
        return {"seeds": [], "scores": {}}
    # A run cut short with --seeds is cut short here too.
    most = int(asked) if asked is not None and asked.strip().isdecimal() else len(DEVELOPMENT_SEEDS)
    routers = [routers_of(text, part.family)[0] for text in part.candidates]
    seeds = list(DEVELOPMENT_SEEDS[:most])
    summary = compare(part.family, routers, conditions, seeds, out, **how)
    sign = PRESENTATIONS[part.family].sign
    overall = summary["overall"]["routers"]
    return {"seeds": seeds, "scores": {label: sign * mine["mean"] for label, mine in overall.items()}}


def _keep(path: Path, record: Mapping[str, Any], resume: bool) -> None:
    """Write what the part is beside its results; on a resumed run, check that its routers are the same.

    All else that results depend on is in the plan, which `compare` checks.
    """
    if resume and path.exists():
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["weights"] != record["weights"]:
            raise ResultsError(f"{path.parent} holds another run (weights differ); --overwrite it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
