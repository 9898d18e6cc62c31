"""Cloud–edge batches as a Gymnasium environment: one step is one window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from routing_gym.cloud_edge.base_env import CloudEdgeEnv
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.engine import advance_batch
from routing_gym.cloud_edge.observation import batch_layout
from routing_gym.cloud_edge.spaces import batch_action_space, batch_observation_space
from routing_gym.cloud_edge.state import LEGAL
from routing_gym.cloud_edge.workload import Workload
from routing_gym.common.buffer import BufferLayout
from routing_gym.rewards import CLOUD_EDGE_TERMS


class CloudEdgeBatch(CloudEdgeEnv):
    """A router in front of cloud and edge nodes; each second it assigns a batch of requests.

    ## Description

    Requests arrive during a window of Δ = 1 s and are dispatched together at its end, each to one of M
    destinations: a model on a node. Destinations differ in answer quality, price, energy, speed and distance.
    A destination serves its batch together, at a throughput that saturates, so requests sent to it delay
    each other (those sent to other models of the node do not); what is not done when the next batch comes is
    carried over as backlog.

    The model is DESIGN section 4, after "CEMA-Router: Infrastructure-Aware Batch Routing for LLM Inference in
    Cloud–Edge Systems". Every draw of an episode is made before its first decision, and which requests form a
    batch does not depend on earlier decisions, so that all routers meet the same batches. A router is shown
    predictions (quality, output tokens); what is paid is what happens.

    ## Action Space

    `MultiDiscrete([M] * R_max)`: a destination for each slot of the batch. Requests fill the first slots;
    what is said of inactive ones is ignored. A destination that is not legal for a request (its node is down,
    or it lies in the cloud and the request must stay at the edge) is replaced by the next legal one in
    cyclic order, which is counted as an invalid action. An action outside the space raises `ValueError`.

    `info["action_mask"]` (int8, `(R_max, M)`; its tuple goes to `action_space.sample`) and `action_masks()`
    (bool, flat, for MaskablePPO) tell what is legal; of inactive slots only index 0 is.

    ## Observation Space

    A `Dict` of float32 boxes in raw units: seconds, tokens, joules, USD. Tables of pairs are flattened row by
    row, a request's M destinations after another's. Inactive slots are 0, but for `legal` at index 0.

    | key | shape | what |
    |---|---|---|
    | `active` | `(R_max,)` | 1 where the slot holds a request |
    | `input_tokens`, `predicted_output_tokens` | `(R_max,)` | its length, and its answer's as predicted |
    | `quality` | `(R_max·M,)` | predicted quality of the answer, in [0, 1] |
    | `cluster_error` | `(R_max·M,)` | 1 - mean quality over the cluster of prompts it seems to belong to |
    | `cost`, `energy` | `(R_max·M,)` | USD and J, as predicted |
    | `infer_s`, `transfer_s` | `(R_max·M,)` | T_infer and T_trans, s, as predicted |
    | `legal` | `(R_max·M,)` | 1 where the request may go |
    | `backlog_s` | `(M,)` | predicted work left of earlier batches, s |
    | `speedup` | `(M,)` | saturated-batch over single-request throughput |
    | `is_cloud` | `(M,)` | 1 in the cloud, 0 at the edge |
    | `token_price` | `(M,)` | mean of input and output price, USD per 1M tokens |
    | `outstanding` | `(M,)` | requests sent that have not finished |
    | `weights` | `(4,)` | of quality loss, cost, energy and completion time in J |

    ## Rewards

    -J, with J = Σ ω (term - lo)/(hi - lo) over the batch's mean quality loss, cost, energy and completion
    time. The bounds are fixed for a batch, over its legal pairs and without backlog: no router can move them.
    J lies in [0, 1] where no backlog is carried and grows beyond it with backlog. An empty batch pays 0.
    `reward_on="predicted"` pays what the router could know instead; `credit` has no effect here.
    `info["reward_terms"]` are the four terms, normalised and negative; weighted by ω they sum to the reward.

    ## Starting State

    Idle nodes; the first observation is the batch of the first window.

    ## Episode End

    Truncated after 60 windows (`windows`), each of which is one step, an empty one too; never terminated.

    ## Information

    `action_mask` and `reward_terms` (float64, `(4,)`) at every step; `episode_metrics` with the last one
    (see `routing_gym.cloud_edge.metrics.episode_metrics`; undefined metrics are left out).

    `assignment_log()` returns a structured array with a row per request that has arrived.

    ## Arguments

    | argument | default | what |
    |---|---|---|
    | `config` | `"routerbench-5node"` | or `"testbed-6node"`, a YAML path, a mapping, an object |
    | `render_mode` | `None` | `"ansi"`, `"rgb_array"` or `"human"` |
    | any field of `CloudEdgeConfig` | | laid over `config` |

    The fields most used are `rate_per_s`, `requests`, `windows`, `max_requests`, `weights`, `replicate`,
    `reward_on`, `outages`, `edge_only_share` and `trace`; `configs/cloud_edge/default.yaml` lists all and
    marks the constants that are this project's own.

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = {**CloudEdgeEnv.metadata, "render_fps": 4}  # noqa: RUF012 (as Gymnasium)

    def _build(self, workload: Workload) -> None:
        self.observation_space = batch_observation_space(workload)
        self.action_space = batch_action_space(workload.config)

    def _make_layout(self, config: CloudEdgeConfig) -> BufferLayout:
        return batch_layout(1, config.max_requests, config.destination_count)

    def _kernel(self) -> Any:
        return advance_batch

    def _mask(self) -> NDArray[np.int8]:
        return self._state.tables[0, :, LEGAL].astype(np.int8)

    def _checked(self, action: Any) -> NDArray[Any]:
        choices, slots = np.asarray(action), self._state.slots.shape[1]
        if choices.shape != (slots,) or choices.dtype.kind not in "iu":
            raise ValueError(
                f"action has shape {choices.shape} and type {choices.dtype}: must be {slots} whole numbers "
                f"from 0 to {self._width - 1}"
            )
        if choices.min() < 0 or choices.max() >= self._width:
            slot = int(np.flatnonzero((choices < 0) | (choices >= self._width))[0])
            raise ValueError(f"action[{slot}] = {choices[slot]}: must be from 0 to {self._width - 1}")
        return choices

    def _place(self, choice: NDArray[Any]) -> None:
        self._state.slots["choice"][0] = choice


class MOCloudEdgeBatch(CloudEdgeBatch):
    """Cloud–edge batches with the four reward terms as a vector, in the MO-Gymnasium convention.

    As `CloudEdgeBatch`, whose manual this shares, but `step` returns the terms themselves, to be maximised: a
    float64 array `(4,)` of minus the normalised quality loss, cost, energy and completion time, within
    `reward_space`. `weights` does not change them.
    """

    vector_reward: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build the environment; see `CloudEdgeBatch` for the arguments."""
        super().__init__(*args, **kwargs)
        self.reward_space = reward_space()


def reward_space(configs: Iterable[CloudEdgeConfig] = ()) -> gym.spaces.Box:
    """Return the space of the four reward terms, of requests of any of these conditions.

    With backlog the last has no lower bound; with `credit = decision` what was paid ahead may come back.
    """
    low, high = np.array([-1.0, -1.0, -1.0, -np.inf]), np.zeros(len(CLOUD_EDGE_TERMS))
    if any(config.credit == "decision" for config in configs):
        high[-1] = np.inf
    return gym.spaces.Box(low, high, dtype=np.float64)
