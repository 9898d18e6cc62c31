"""Lets a router that acts on requests play whole batches, as `CloudEdgeRequest` would ask it (DESIGN 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.evaluator import BatchTables, term_bounds
from routing_gym.cloud_edge.observation import DESTINATION_FIELDS, PAIR_FIELDS
from routing_gym.policy import Policy

Rows = NDArray[np.int64]


class Sequential(Policy):
    """Drives a batch with a policy of single requests: longest predicted output first, ties to the earlier.

    The policy sees what `CloudEdgeRequest` shows, made from the batch observation in float64 and rounded to
    float32. Only rows that still have a request at hand are shown to it, so its state moves on once per
    request of a row, as in the environment, and not at all over an empty window. Choices are passed on as
    they are; where one is not legal, the next legal destination in cyclic order bears the load.

    A policy may do so itself, if it can do it faster: by a method `assign_batches(observation)` that returns
    its deterministic choices for a batch observation, (…, R_max), or None where it cannot. They must be those
    that it would make one by one, up to rounding, without moving its state.

    The policy's state must be None, or an array with one row per episode, or a tuple or dict of these.
    This router's own state is a pair: the policy's, and per row whether an episode has begun that has not
    had a request yet.

    Attributes:
        policy: the router of requests.
        family, role, max_rows: the policy's.
    """

    acts_on: ClassVar[Any] = "batch"

    def __init__(self, policy: Policy) -> None:
        """Wrap a policy that predicts on observations of `CloudEdgeRequest`."""
        self.policy = policy
        self._assign_batches = _batches_of(policy)
        vars(self).update(family=policy.family, role=policy.role, max_rows=policy.max_rows)

    def initial_state(self, seeds: Sequence[int]) -> tuple[Any, NDArray[np.bool_]]:
        """Return the policy's state of as many rows, none of which awaits an episode's first request."""
        return self.policy.initial_state(seeds), np.zeros(len(seeds), bool)

    def configure(self, configs: Sequence[Any]) -> None:
        """Pass on what an operator knows."""
        self.policy.configure(configs)

    def attach(self, envs: Any) -> None:
        """Pass on the vector environment."""
        self.policy.attach(envs)

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], tuple[Any, NDArray[np.bool_]]]:
        """Assign each row's batch (…, R_max), one request after the other; inactive slots get 0.

        See `Policy.predict`. `action_masks` is not needed: the observation says which pairs are legal.

        Raises:
            TypeError: the policy's state is none that can be split into rows, or changes its type.
        """
        *lead, slots = np.shape(observation["active"])
        count = int(np.prod(lead, dtype=np.int64))
        inner, waiting = self.initial_state(range(count)) if state is None else state
        start = waiting | np.reshape(False if episode_start is None else episode_start, -1)
        if deterministic and self._assign_batches is not None:
            whole = self._assign_batches(observation)
            if whole is not None:
                empty = ~(np.reshape(observation["active"], (count, slots)) > 0).any(axis=1)
                return whole, (inner, start & empty)
        walk = _Walk({name: each.reshape(count, each.shape[-1]) for name, each in observation.items()})
        actions = np.zeros((count, slots), np.int64)
        for position in range(walk.requests.max(initial=0)):
            rows = np.flatnonzero(walk.requests > position)
            shown = walk.show(rows, position)
            chosen, after = self.policy.predict(
                shown, _take(inner, rows), start[rows] & (position == 0), deterministic, shown["legal"] > 0
            )
            inner = _put(inner, rows, after)
            actions[rows, walk.order[rows, position]] = chosen
            walk.assign(rows, position, np.asarray(chosen, np.int64))
        return actions.reshape(*lead, slots), (inner, start & (walk.requests == 0))


class _Walk:
    """Batches on the way to their assignments, one per row.

    Attributes:
        requests: how many each batch has, (rows,).
        order: the slots in the order in which they are shown, (rows, R_max), inactive ones last.
    """

    def __init__(self, observation: Mapping[str, NDArray[Any]]) -> None:
        """Take batch observations whose fields have shape (rows, …)."""
        active = observation["active"] > 0
        self.requests: Rows = active.sum(axis=-1)
        # Inactive slots come last and hold zeros, so they stay last.
        self.order: Rows = np.argsort(-observation["predicted_output_tokens"], axis=-1, kind="stable")
        self._observation = observation
        per_pair = (*active.shape, observation["backlog_s"].shape[-1])
        self._pairs = {name: observation[name].reshape(per_pair) for name in PAIR_FIELDS}
        self._backlog = observation["backlog_s"].astype(np.float64)
        self._outstanding = observation["outstanding"].copy()
        self._work = np.zeros_like(self._backlog)
        self._longest = np.zeros_like(self._backlog)
        self._range = np.empty((len(active), 4))
        for row in range(len(active)):
            tables = BatchTables.from_observation({name: each[row] for name, each in observation.items()})
            self._range[row] = np.diff(term_bounds(tables))[:, 0]
            self._range[row, 0] *= self.requests[row]  # a step adds to the sum of losses, not to their mean

    def show(self, rows: Rows, position: int) -> dict[str, NDArray[np.float32]]:
        """Return what each of these rows' next request sees, with shapes (len(rows), …)."""
        slots = self.order[rows, position]
        seen = self._observation
        load = self._backlog + np.maximum(self._longest, self._work / seen["speedup"])
        shown = {
            name: seen[name][rows, slots][:, None] for name in ("input_tokens", "predicted_output_tokens")
        }
        shown |= {name: table[rows, slots] for name, table in self._pairs.items()}
        shown |= {name: seen[name][rows] for name in (*DESTINATION_FIELDS, "weights")}
        shown |= {
            "outstanding": self._outstanding[rows],
            "provisional_load_s": load[rows],
            "remaining": (self.requests[rows] - position)[:, None],
            "term_range": self._range[rows],
        }
        return {name: np.asarray(value, np.float32) for name, value in shown.items()}

    def assign(self, rows: Rows, position: int, choices: Rows) -> None:
        """Charge each of these rows' next request to the destination that takes it."""
        slots = self.order[rows, position]
        legal = self._pairs["legal"][rows, slots] > 0
        cyclic = (choices[:, None] + np.arange(legal.shape[-1])) % legal.shape[-1]
        tried = np.take_along_axis(legal, cyclic, axis=-1).argmax(axis=-1)
        taken = cyclic[np.arange(len(rows)), tried]
        infer = self._pairs["infer_s"][rows, slots, taken].astype(np.float64)
        self._work[rows, taken] += infer
        self._longest[rows, taken] = np.maximum(self._longest[rows, taken], infer)
        self._outstanding[rows, taken] += 1.0


def _batches_of(policy: Any) -> Callable[..., Any] | None:
    """Return a policy's `assign_batches`, unless a subclass has a `predict` of its own, which then counts."""
    for cls in type(policy).__mro__:
        if "assign_batches" in vars(cls):
            batches: Callable[..., Any] = policy.assign_batches
            return batches
        if "predict" in vars(cls):
            return None
    return None


def _each(change: Callable[..., NDArray[Any]], *states: Any) -> Any:
    """Apply a function to the arrays of states that are built alike."""
    kinds = {type(state) for state in states}
    if kinds == {type(None)}:
        return None
    if kinds == {np.ndarray}:
        return change(*states)
    if kinds == {dict}:
        return {key: _each(change, *(state[key] for state in states)) for key in states[0]}
    if kinds == {tuple}:
        return tuple(_each(change, *parts) for parts in zip(*states, strict=True))
    names = " or ".join(sorted(kind.__name__ for kind in kinds))
    raise TypeError(
        f"the policy's state is of type {names}: it must be None, or an array with one row per episode, or a "
        "tuple or dict of these, and the same throughout"
    )


def _take(state: Any, rows: Rows) -> Any:
    """Return a copy of these rows of a state."""
    return _each(lambda whole: whole[rows], state)


def _put(state: Any, rows: Rows, part: Any) -> Any:
    """Return a copy of a state in which these rows are those of `part`."""

    def replaced(whole: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        changed = whole.copy()
        changed[rows] = new
        return changed

    return _each(replaced, state, part)
