"""What a training run is made of: one YAML file, keyed by the environment's id as in RL Zoo."""

from __future__ import annotations

import collections.abc
import inspect
import itertools
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from routing_gym import list_policies
from routing_gym.cloud_edge.config import resolve as resolve_cloud_edge
from routing_gym.cluster.distribution import ClusterDistribution
from routing_gym.cluster.distribution import resolve as resolve_cluster
from routing_gym.common.config import ConfigError, FrozenModel, load_yaml, merge, validate
from routing_gym.evaluation.runner import DEVELOPMENT_SEEDS, TRAINING_SEEDS_FROM, Condition

FAMILIES = {
    "routing_gym/InferenceCluster-v0": "cluster",
    "routing_gym/CloudEdgeRequest-v0": "cloud_edge",
}
RESOLVERS: Mapping[str, Callable[..., Any]] = {"cluster": resolve_cluster, "cloud_edge": resolve_cloud_edge}

# A run's rows take consecutive seeds.
SEEDS_PER_RUN = 10_000

LINEAR = "lin_"
# Arguments of the algorithms that a run decides itself, or that need more than a number.
_NOT_HYPERPARAMETERS = frozenset(
    {"self", "policy", "env", "policy_kwargs", "verbose", "seed", "device", "tensorboard_log"}
    | {"_init_setup_model", "use_sde", "sde_sample_freq", "optimize_memory_usage"}
    | {"rollout_buffer_class", "rollout_buffer_kwargs", "replay_buffer_class", "replay_buffer_kwargs"}
)

Crossed = dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]]


class PolicyConfig(FrozenModel):
    """The network: `set` fits any number of replicas or destinations, `mlp` only the one trained with."""

    network: Literal["set", "mlp"]
    hidden: int = Field(ge=1, le=1024)


class EvaluationConfig(FrozenModel):
    """When and on what a router in training is held against others.

    Attributes:
        every: steps from one evaluation, and checkpoint, to the next.
        seeds: episodes of each condition; development seeds only (DESIGN 6). A range reads `10000-10007`.
        conditions: fields of the environment's config and the values to cross; other fields are as trained.
        references: names of routers whose scores are shown beside it.
    """

    every: int = Field(ge=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    conditions: Crossed
    references: tuple[str, ...]

    @field_validator("seeds", mode="before")
    @classmethod
    def _range(cls, value: Any) -> Any:
        if isinstance(value, str):
            first, dash, last = value.partition("-")
            if not (dash and first.strip().isdecimal() and last.strip().isdecimal()):
                raise ValueError("must be a list of seeds, or a range such as 10000-10007")
            return tuple(range(int(first), int(last) + 1))
        return value

    @field_validator("seeds")
    @classmethod
    def _for_development(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value) or not set(value) <= set(DEVELOPMENT_SEEDS):
            raise ValueError(
                f"what is chosen by its score may only see development seeds: distinct ones from "
                f"{DEVELOPMENT_SEEDS[0]} to {DEVELOPMENT_SEEDS[-1]}"
            )
        return value

    @field_validator("references")
    @classmethod
    def _registered(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = list_policies()
        unknown = [name for name in value if name not in known]
        if unknown:
            raise ValueError(f"no router is named {unknown[0]!r}; there are {', '.join(known)}")
        return value


class TrainConfig(FrozenModel):
    """A training run; `create` reads it.

    Attributes:
        env: the environment's id.
        env_kwargs: its arguments: `config`, and fields laid over it.
        vary: fields of its config and the values to cross; the rows share these conditions out in turn.
        reward_features: whether the router is told the weights of the reward, so that they steer it.
        algorithm: a class of Stable-Baselines3 or sb3-contrib.
        rows: episodes side by side.
        steps: decisions in all; rounded up to whole updates.
        seed: of the run. Episodes take seeds from 1,000,000 + 10,000 · seed on.
        policy: the network.
        hyperparameters: arguments of the algorithm; those left out take its defaults. `lin_3e-4` falls
            linearly to 0 over the run.
        normalise_reward: whether rewards are divided by the spread of the return.
        torch_threads: threads that PyTorch may use.
        log_every: steps from one line of progress to the next.
        evaluation: what the router is held against.

    Raises:
        pydantic.ValidationError: on construction; `create` words the same as a `ConfigError`.
        ImportError: the algorithm's package is not installed.
    """

    env: str
    env_kwargs: dict[str, Any]
    vary: Crossed = Field(default={})
    reward_features: bool = False
    algorithm: Literal["PPO", "MaskablePPO", "A2C", "DQN"]
    rows: int = Field(ge=1, le=SEEDS_PER_RUN)
    steps: int = Field(ge=1)
    seed: int = Field(ge=0, le=10_000)
    policy: PolicyConfig
    hyperparameters: dict[str, Any]
    normalise_reward: bool
    torch_threads: int = Field(ge=1)
    log_every: int = Field(ge=1)
    evaluation: EvaluationConfig

    @field_validator("env")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in FAMILIES:
            raise ValueError(f"must be one of {', '.join(FAMILIES)}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        if self.reward_features and self.family != "cluster":
            raise ValueError(f"reward_features = True: {self.env} has no weights of rewards to be told")
        self.algorithm_arguments()
        self.conditions()
        family = f"{self.family}/"
        for name in self.evaluation.references:
            if not name.startswith(family):
                raise ValueError(f"evaluation.references: {name} does not route in {self.env}")
        hyperparameters = self.hyperparameters
        if self.algorithm in ("PPO", "MaskablePPO") and {"n_steps", "batch_size"} <= hyperparameters.keys():
            rollout, batch = self.rows * hyperparameters["n_steps"], hyperparameters["batch_size"]
            if batch < 2 or rollout % batch:
                raise ValueError(
                    f"hyperparameters.batch_size = {batch}: must divide a rollout, rows × n_steps = {rollout}"
                )
        return self

    @classmethod
    def create(cls, name: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] = {}) -> TrainConfig:
        """Build a config from a shipped name, a YAML path or a mapping, and fields laid over it.

        Args:
            name: of a file in configs/agents, a path, or `{environment's id: fields}`.
            overrides: fields by name; one inside another is written with a dot, as `policy.hidden`.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
            ImportError: the algorithm's package is not installed.
        """
        data = dict(name) if isinstance(name, Mapping) else load_yaml("agents", name)
        if len(data) != 1 or not isinstance(next(iter(data.values())), Mapping):
            raise ConfigError(
                f"{'the config' if isinstance(name, Mapping) else name} must hold one environment's id and "
                f"its fields below it, not {', '.join(map(str, data)) or 'nothing'}"
            )
        ((env, fields),) = data.items()
        return validate(cls, merge({"env": env, **fields}, _nested(overrides)))

    def to_yaml(self) -> str:
        """Return the config as `create` reads it."""
        fields = self.model_dump(mode="json")
        text: str = yaml.safe_dump({fields.pop("env"): fields}, sort_keys=False, allow_unicode=True)
        return text

    @property
    def family(self) -> str:
        """The environment's family, `cluster` or `cloud_edge`."""
        return FAMILIES[self.env]

    @property
    def first_seed(self) -> int:
        """Seed of the first row's first episode; row i takes the i-th after it."""
        return TRAINING_SEEDS_FROM + SEEDS_PER_RUN * self.seed

    @property
    def trained_on(self) -> Any:
        """The condition trained on, or the distribution of them; where rows vary, that of the first."""
        return self.row_conditions()[0]

    def row_conditions(self) -> list[Any]:
        """Return what each row is trained on: a condition, or a distribution of them."""
        resolve = RESOLVERS[self.family]
        fields = dict(self.env_kwargs)
        given = [fields.pop("config")] if "config" in fields else []
        try:
            different = [resolve(*given, **{**fields, **varied}) for varied in _combinations(self.vary)]
        except ConfigError as error:
            raise ValueError(f"env_kwargs{' or vary' if self.vary else ''}: {error}") from error
        return [different[row % len(different)] for row in range(self.rows)]

    def conditions(self) -> list[Condition]:
        """Return the conditions of evaluations."""
        trained_on = self.trained_on
        base = trained_on.base if isinstance(trained_on, ClusterDistribution) else trained_on
        conditions = []
        for fields in _combinations(self.evaluation.conditions):
            name = ", ".join(f"{field} {value}" for field, value in fields.items()) or "as trained"
            try:
                conditions.append(Condition(name, base.replace(**fields), fields))
            except ConfigError as error:
                raise ValueError(f"evaluation.conditions: {error}") from error
        return conditions

    def algorithm_class(self) -> Any:
        """Return the algorithm.

        Raises:
            ImportError: its package is not installed.
        """
        try:
            if self.algorithm == "MaskablePPO":
                import sb3_contrib

                return sb3_contrib.MaskablePPO
            import stable_baselines3
        except ImportError as error:
            raise missing_extra(error) from error
        return getattr(stable_baselines3, self.algorithm)

    def algorithm_arguments(self) -> dict[str, Any]:
        """Return the hyperparameters as the algorithm takes them.

        Raises:
            ValueError: one that it does not have, or of a wrong type.
            ImportError: its package is not installed.
        """
        parameters = inspect.signature(self.algorithm_class()).parameters
        types = {name: of.annotation for name, of in parameters.items() if name not in _NOT_HYPERPARAMETERS}
        return {name: _argument(name, value, types) for name, value in self.hyperparameters.items()}


def missing_extra(error: ImportError) -> ImportError:
    """Return an error that says what to install, for one of a package that is not."""
    package = str(error.name).partition(".")[0]
    return ImportError(f'training needs {package}: pip install "routing-gym[agents]"', name=package)


def _argument(name: str, value: Any, types: Mapping[str, Any]) -> Any:
    where = f"hyperparameters.{name}"
    if name not in types:
        raise ValueError(f"{where} is not a hyperparameter; allowed: {', '.join(types)}")
    kinds = [typing.get_origin(part) for part in typing.get_args(types[name])]
    if collections.abc.Callable in kinds and isinstance(value, str) and value.startswith(LINEAR):
        from stable_baselines3.common.utils import LinearSchedule

        return LinearSchedule(_checked(where, value.removeprefix(LINEAR), float), 0.0, 1.0)
    return _checked(where, value, types[name])


def _checked(where: str, value: Any, type_: Any) -> Any:
    try:
        return TypeAdapter(type_).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{where} = {value!r}: {error.errors(include_url=False)[0]['msg']}") from None


def _combinations(crossed: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(crossed, values, strict=True)) for values in itertools.product(*crossed.values())]


def _nested(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with those of dotted names inside mappings."""
    nested: dict[str, Any] = {}
    for name, value in overrides.items():
        for part in reversed(name.split(".")):
            value = {part: value}
        nested = merge(nested, value)
    return nested
