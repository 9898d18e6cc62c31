"""What the batch routers share: reading a batch out of an observation, one row at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.evaluator import BatchTables
from routing_gym.common.config import packaged
from routing_gym.policy import Policy


def default(router: str, parameter: str) -> Any:
    """Return the shipped value of a router's parameter, from `configs/routers/cloud_edge.yaml`."""
    return packaged("routers", "cloud_edge")[router][parameter]


class BatchRouter(Policy):
    """A router that assigns a whole batch, given its tables.

    Its state is one random state per row, uint64, which routers without randomness leave alone.

    Attributes:
        row: which row of the observation is being assigned.
        output_tokens: (R,), the predicted output of each of its requests.
    """

    family: ClassVar[str] = "cloud_edge"
    acts_on: ClassVar[Any] = "batch"

    row: int = 0
    output_tokens: NDArray[np.float64] = np.zeros(0)

    _diagnostics: Sequence[Mapping[str, Any]] = ()

    def initial_state(self, seeds: Sequence[int]) -> NDArray[np.uint64]:
        """Return a random state per row."""
        return np.array([seed % 2**64 for seed in seeds], np.uint64)

    def predict(
        self,
        observation: Mapping[str, NDArray[Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], Any]:
        """Assign each row's batch; inactive slots get 0. See `Policy.predict`.

        `action_masks` is not needed: the observation says which pairs are legal.
        """
        active = np.asarray(observation["active"])
        lead, slots = active.shape[:-1], active.shape[-1]
        rows = int(np.prod(lead, dtype=np.int64))
        flat = {name: np.reshape(values, (rows, -1)) for name, values in observation.items()}
        states = self.initial_state(range(rows)) if state is None else np.reshape(state, rows).copy()
        actions = np.zeros((rows, slots), np.int64)
        diagnostics: list[Mapping[str, Any]] = []
        for row in range(rows):
            tables = BatchTables.from_observation({name: values[row] for name, values in flat.items()})
            found: Mapping[str, Any] = {}
            if len(tables.infer):
                self.row = row
                tokens = flat["predicted_output_tokens"][row, : len(tables.infer)]
                self.output_tokens = np.asarray(tokens, np.float64)
                assignment, states[row], found = self.assign(tables, states[row])
                actions[row, : len(assignment)] = assignment
            diagnostics.append(found)
        self._diagnostics = diagnostics
        return actions.reshape(*lead, slots), states.reshape(lead)

    def diagnostics(self) -> Sequence[Mapping[str, Any]]:
        """Return what the last `predict` tells of each row's search; see `Policy.diagnostics`."""
        return self._diagnostics

    @abstractmethod
    def assign(
        self, tables: BatchTables, random: np.uint64
    ) -> tuple[NDArray[np.int64], np.uint64, Mapping[str, Any]]:
        """Assign one batch that is not empty.

        Args:
            tables: the batch; every request has a legal destination.
            random: the row's random state.

        Returns:
            A legal destination per request (R,), the random state to go on with, and diagnostics.
        """
