"""Cloud–edge batches, one request at a time."""

from __future__ import annotations

from operator import index
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.base_env import CloudEdgeEnv
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.engine import advance_request
from routing_gym.cloud_edge.env import reward_space
from routing_gym.cloud_edge.observation import request_layout
from routing_gym.cloud_edge.spaces import request_action_space, request_observation_space
from routing_gym.cloud_edge.state import LEGAL
from routing_gym.cloud_edge.workload import Workload
from routing_gym.common.buffer import BufferLayout


class CloudEdgeRequest(CloudEdgeEnv):
    """Cloud–edge batches, assigned one request at a time.

    ## Description

    The model, the episodes and what is paid are those of `CloudEdgeBatch`, which see. Here a step assigns a
    single request: each batch is walked from its longest predicted output to its shortest, and dispatched
    when the walk is complete. Windows without requests are skipped, while backlog drains.

    ## Action Space

    `Discrete(M)`: the destination of the current request. An illegal one is replaced by the next legal one in
    cyclic order and counted; one outside the space raises `ValueError`. `info["action_mask"]` (int8) and
    `action_masks()` (bool) tell what is legal; at least one always is.

    ## Observation Space

    A `Dict` of float32 boxes in raw units. Of the current request, shape `(M,)` each: `quality`,
    `cluster_error`, `cost`, `energy`, `infer_s`, `transfer_s`, `legal`, as in `CloudEdgeBatch`; and `(1,)`
    each: `input_tokens`, `predicted_output_tokens`. Of destinations, `(M,)` each: `backlog_s`, `speedup`,
    `is_cloud`, `token_price`, `outstanding` (what was assigned in this walk counts as sent), and

    | key | shape | what |
    |---|---|---|
    | `provisional_load_s` | `(M,)` | backlog and what this batch adds so far, B + max(max T, ΣT/S), s |
    | `remaining` | `(1,)` | requests of the batch to be assigned, the current one included |
    | `term_range` | `(4,)` | hi - lo of the batch's terms as predicted; quality's is of the sum of losses |
    | `weights` | `(4,)` | ω |

    The closing observation has a zero request and an all-ones mask.

    ## Rewards

    -J when a batch is complete, 0 before; see `CloudEdgeBatch`. With `credit="decision"` each request pays
    its part at once, and the sum over a batch is -J all the same.

    ## Starting State

    Idle nodes; the first request of the first batch that is not empty.

    ## Episode End

    Truncated when the last batch of the 60 windows is assigned; never terminated. An episode in which no
    request arrives is one step.

    ## Information

    As in `CloudEdgeBatch`.

    ## Arguments

    As in `CloudEdgeBatch`.

    ## Version History

    * v0: first version.
    """

    def _build(self, workload: Workload) -> None:
        self.observation_space = request_observation_space(workload)
        self.action_space = request_action_space(workload.config)

    def _make_layout(self, config: CloudEdgeConfig) -> BufferLayout:
        return request_layout(1, config.destination_count)

    def _kernel(self) -> Any:
        return advance_request

    def _mask(self) -> NDArray[np.int8]:
        row = self._row[0]
        if not row["batch"]:
            return np.ones(self._width, np.int8)
        slot = self._state.slots[0, row["position"]]["order"]
        return self._state.tables[0, slot, LEGAL].astype(np.int8)

    def _checked(self, action: Any) -> int:
        try:
            choice = index(action)
        except TypeError:
            choice = -1
        if not 0 <= choice < self._width:
            raise ValueError(f"action = {action!r}: must be a whole number from 0 to {self._width - 1}")
        return choice

    def _place(self, choice: int) -> None:
        self._row["action"][0] = choice


class MOCloudEdgeRequest(CloudEdgeRequest):
    """`CloudEdgeRequest` with the four reward terms as a vector, as `MOCloudEdgeBatch` pays them."""

    vector_reward: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build the environment; see `CloudEdgeBatch` for the arguments."""
        super().__init__(*args, **kwargs)
        self.reward_space = reward_space([self._source.config])
