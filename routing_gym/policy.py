"""The router protocol, and the registry of routers by name (DESIGN 5).

Routers are found through the entry-point group `routing_gym.policies`: a package that brings one declares
`"family/name" = "module:Class"` there, and `make_policy("family/name")` builds it.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

GROUP = "routing_gym.policies"

State = Any


class Policy(ABC):
    """A router: chooses an action from an observation, and from nothing else.

    The signature of `predict` is Stable-Baselines3's, so fixed and learned routers are interchangeable.

    Attributes:
        family: the environment family it is for, `cluster` or `cloud_edge`.
        role: `router`, or `yardstick` for one that knows more than a router can.
        acts_on: `request` or `batch`.
        max_rows: how many episodes it plays side by side at most.
    """

    family: ClassVar[str] = "cluster"
    role: ClassVar[Literal["router", "yardstick"]] = "router"
    acts_on: ClassVar[Literal["request", "batch"]] = "request"
    max_rows: ClassVar[int] = 576

    @abstractmethod
    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: State = None,
        episode_start: NDArray[np.bool_] | bool | None = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], State]:
        """Choose actions.

        Args:
            observation: one observation, or a batch with any leading axes.
            state: what the last call returned; None at first.
            episode_start: per row, whether a new episode begins; the state starts anew, but a generator
                runs on.
            deterministic: for learned routers, whether to take the likeliest action.
            action_masks: per row, which actions are valid, where the caller has them at hand.

        Returns:
            Actions of shape (…), int64, and the state to pass to the next call.
        """

    def initial_state(self, seeds: Sequence[int]) -> State:
        """Return the state of as many rows as there are seeds; None for a router without state."""
        return None

    @classmethod
    def variant(cls, config: Any) -> str | None:
        """Return which variant of the router plays a condition; None where there is only one.

        Conditions of different variants are not played side by side, as `configure` chooses one for all rows.
        """
        return None

    def configure(self, configs: Sequence[Any]) -> None:  # noqa: B027 (a hook that few routers need)
        """Learn what an operator knows in advance: the condition of each row, never its workload.

        The evaluation runner calls this before a run. The default does nothing.
        """

    def fingerprint(self) -> Mapping[str, str]:
        """Return what identifies the files that it plays with, once it is configured: SHA-256, by name.

        A run that is gone on with must find the same. Empty by default.
        """
        return {}

    def diagnostics(self) -> Sequence[Mapping[str, Any]]:
        """Tell, for each row of the last `predict`, what its decision cost and how it was found.

        Keys that the evaluation knows: `convergence`, (n, 2), seconds since the decision began and the best J
        so far; `status`, a word such as `optimal`; `bound`, a proven lower bound of J. Empty by default.
        """
        return ()

    def attach(self, envs: Any) -> None:  # noqa: B027 (a hook for yardsticks)
        """Let a yardstick look into the vector environment; no other router is ever given it."""


class Yardstick(ABC):
    """A figure to hold routers against that no router plays: a bound computed from an episode's workload."""

    family: ClassVar[str] = "cluster"
    role: ClassVar[Literal["yardstick"]] = "yardstick"
    max_rows: ClassVar[int] = 64

    @abstractmethod
    def measure(self, episode: Any) -> dict[str, Any]:
        """Return the metrics of a drawn episode that the yardstick knows, named as the routers' are."""


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def list_policies(family: str | None = None) -> list[str]:
    """Return the full names of all routers, `family/name`, those of third parties among them."""
    return sorted(name for name in _registered() if family is None or name.startswith(f"{family}/"))


def full_name(name: str, family: str | None = None) -> str:
    """Complete a router's bare name with its family.

    Args:
        name: `family/name`, or a bare name.
        family: where a bare name is looked for first; without one it must be unique.

    Raises:
        ValueError: no router has the name (the message offers the nearest), or more than one has.
    """
    return _complete(name, list_policies(), family)


def _complete(name: str, known: Sequence[str], family: str | None = None) -> str:
    own = f"{family}/"
    found = [full for full in known if name in (full, full.partition("/")[2])]
    if family and own + name in found:
        return own + name
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"router {name!r} is ambiguous: write {' or '.join(found)}")
    offered = [full for full in known if full.startswith(own)] or known
    bare = {full.partition("/")[2]: full for full in offered} | {full: full for full in offered}
    near = dict.fromkeys(bare[match] for match in difflib.get_close_matches(name, bare, n=6, cutoff=0.5))
    hint = f"did you mean {' or '.join(list(near)[:3])}?" if near else f"there are {', '.join(offered)}"
    raise ValueError(f"no router is named {name!r}; {hint}")


def policy_class(name: str) -> type[Policy] | type[Yardstick]:
    """Return the class registered under a router's name.

    Raises:
        ValueError: no such name, or what is registered is neither a `Policy` nor a `Yardstick`.
    """
    registered = _registered()  # once: it reads the metadata of every installed package
    full = _complete(name, sorted(registered))
    cls = registered[full].load()
    if not (isinstance(cls, type) and issubclass(cls, (Policy, Yardstick))):
        raise ValueError(f"router {full!r}: {registered[full].value} is not a subclass of routing_gym.Policy")
    return cls


def make_policy(name: str, /, **params: Any) -> Any:
    """Build a router by name.

    Args:
        name: `family/name`, or the bare name where it is unique.
        params: the router's parameters, such as `c=.2` for `adaptive`.

    Returns:
        A `Policy`, or for a name such as `cluster/bound` a `Yardstick`.

    Raises:
        ValueError: no such name; the message offers the nearest ones.
        TypeError: a parameter that the router does not take.
    """
    cls = policy_class(name)
    try:
        return cls(**params)
    except TypeError as error:
        given = ", ".join(f"{key} = {value!r}" for key, value in params.items())
        raise TypeError(f"router {full_name(name)!r} with {given or 'no parameters'}: {error}") from error
