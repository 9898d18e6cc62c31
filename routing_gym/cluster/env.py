"""The inference cluster as a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from routing_gym.cluster.distribution import Conditions, resolve
from routing_gym.cluster.engine import compiled_advance
from routing_gym.cluster.metrics import Horizon, episode_metrics
from routing_gym.cluster.observation import observation_layout
from routing_gym.cluster.spaces import action_space, observation_space, reward_space
from routing_gym.cluster.state import ClusterState
from routing_gym.cluster.workload import EpisodeSource
from routing_gym.common.buffer import Observation
from routing_gym.common.env import RoutingEnv


class InferenceCluster(RoutingEnv):
    """A router in front of a few unequal replicas; it sends each request to one of them.

    ## Description

    Requests arrive, each with a known prompt and an output whose length is only predicted, and must be sent
    at once to one of N replicas. A replica serves one request at a time and keeps the others in a FIFO
    queue. Replicas differ in speed, and events change them during an episode: a burst of arrivals, a
    straggler, a failure. What counts is the share of all arrivals finished within the deadline.

    The model is DESIGN section 3, after "Adaptive Routing in a Tiny Inference Cluster"; time runs in steps
    of 0.5 ms, and a step of the environment goes from one decision to the next. Every draw of an episode is
    made before its first decision, so that all routers meet the same workload.

    ## Action Space

    `Discrete(N)`: the replica that gets the pending request. One that is failed or full passes the request
    on to the next eligible replica in cyclic order, which is counted as an invalid action. With
    `admission=True` the space is `Discrete(N + 1)` and action N rejects the request. A request that no
    replica can take is shed and asks no decision. An action outside the space raises `ValueError`.

    `info["action_mask"]` (int8, for `action_space.sample`) and `action_masks()` (bool, for MaskablePPO) tell
    which replicas are eligible; at least one always is.

    ## Observation Space

    A `Dict` of float32 boxes in raw units: milliseconds, tokens, counts. Per replica, shape `(N,)`, from the
    router's own records:

    | key | what |
    |---|---|
    | `outstanding` | requests sent and not completed |
    | `outstanding_prompt_tokens`, `outstanding_predicted_tokens` | their tokens |
    | `service_ewma` | average of observed service times, ms |
    | `speed_ewma` | average of service time per ms of demand; 1 is the reference replica |
    | `reward_ewma` | average of max(0, 1 - service/60) |
    | `completed` | requests completed |
    | `oldest_age` | since the arrival of the oldest outstanding request, ms; 0 without one |
    | `since_completion` | since the last completion (before the first: since the start), ms |
    | `healthy`, `eligible` | 1 or 0; eligible is healthy with room in the queue |

    Reported by the replicas, left out under `observation="router"`, `(N,)`:

    | key | what |
    |---|---|
    | `waiting`, `in_flight` | requests in the queue and in service |
    | `in_flight_age` | since the request in service started, ms; 0 when idle |

    And for the request to route:

    | key | shape | what |
    |---|---|---|
    | `request` | `(3,)` | prompt tokens, predicted output tokens, age in ms |
    | `arrival_gap` | `(1,)` | average gap between arrivals, ms; 0 before the second |
    | `deadline` | `(1,)` | ms |
    | `signal_age` | `(1,)` | age of what replicas report, ms; not under `observation="router"` |

    Averages are exponentially weighted with α = .15. There is no clock: events come at fixed times, and a
    policy must not learn them. The closing observation has a zero request and an all-ones mask.

    ## Rewards

    Weights times five terms, summed since the last decision over all requests, those of the warm-up too:
    requests finished on time, finished late, and shed, the sum of latencies (ms) of those finished, and the
    integral of the outstanding count (ms). What happens before the first decision is paid with the first
    step. `reward` names the weights: `on_time` (1, 0, 0, 0, 0), `slo` (1, -1, -1, 0, 0),
    `latency` (0, 0, -10, -1/deadline, 0), `weighted` (1, -1, -1, 0, -1/1000), or gives five numbers.

    `credit="decision"` pays a request's outcome with its decision, as far as it can be foreseen, instead of
    with its completion, which helps learning: the undiscounted form of potential-based shaping (Ng, Harada
    and Russell 1999).

    The return counts more than the cohort that is measured: it is not attainment × arrivals. And a discount
    is per decision, which at 250 requests/s is 4 ms of time and at 100/s is 10.

    ## Starting State

    Empty, healthy replicas at time 0; the first observation is that of the first decision.

    ## Episode End

    Truncated at the cutoff, 15 s: 3 s of warm-up and 12 s measured; never terminated. Nothing is drained.
    An episode in which no decision is asked is one step.

    ## Information

    `action_mask` and `reward_terms` (float64, `(5,)`) at every step; `episode_metrics` with the last one
    (see `routing_gym.cluster.metrics.episode_metrics`; undefined metrics are left out).

    `request_log()` returns a structured array with a row per request that has arrived.

    ## Arguments

    | argument | default | what |
    |---|---|---|
    | `config` | `"default"` | a shipped config's name, a YAML path, a mapping, or an object |
    | `render_mode` | `None` | `"ansi"`, `"rgb_array"` or `"human"` |
    | any field of `ClusterConfig` | | laid over `config` |

    `config="training"` samples a condition at each reset. The fields most used are `scenario`,
    `rate_per_s`, `replicas`, `heterogeneity`, `trace`, `load`, `admission`, `observation`,
    `prediction_sigma`, `signal_interval_ms` and `reward`; `configs/cluster/default.yaml` lists all and
    marks the constants that are this project's own.

    ## Version History

    * v0: first version.
    """

    views: ClassVar[tuple[str, ...]] = (
        "_advance",
        "_arrays",
        "_command",
        "_action",
        "_reward",
        "_done",
        "_terms",
        "_offered",
    )

    def __init__(
        self,
        config: Conditions | str | Path | Mapping[str, Any] = "default",
        render_mode: str | None = None,
        **overrides: Any,
    ) -> None:
        """Build the environment; see the class for the arguments.

        Raises:
            ConfigError: names each bad field, its value and what is allowed.
            ValueError: an unknown render mode.
        """
        super().__init__(render_mode)
        self.conditions = resolve(config, **overrides)
        self._source = EpisodeSource(self.conditions)
        base = self._source.config
        self.observation_space = observation_space(self.conditions, self._source.workload)
        self.action_space = action_space(base)
        self._rejects = base.admission
        self._actions = base.replicas + base.admission
        self._layout = observation_layout(1, base.replicas, base.observation == "full")
        self._state = ClusterState(1, base.replicas)
        self._bind()

    def request_log(self) -> NDArray[Any]:
        """Return a row for each request that has arrived; see `ClusterState.request_log`."""
        return self._state.request_log(0)

    def episode_metrics(self) -> dict[str, Any]:
        """Return the metrics of the episode so far, None where undefined (final once truncated)."""
        workload = self._episode.workload if self._episode else self._source.workload
        return episode_metrics(
            self._state.outcome(0), Horizon.of(workload), int(self._state.rows["invalid_actions"][0])
        )

    def _make_renderer(self, render_mode: str) -> Any:
        from routing_gym.cluster.rendering import make_renderer

        return make_renderer(render_mode, self.metadata["render_fps"])

    def _checked(self, action: Any) -> int:
        try:
            choice = index(action)
        except TypeError:
            choice = -1
        if not 0 <= choice < self._actions:
            raise ValueError(f"action = {action!r}: must be a whole number from 0 to {self._actions - 1}")
        return choice

    def _place(self, choice: int) -> None:
        self._action[0] = choice

    def _bind(self) -> None:
        state = self._state
        self._advance = compiled_advance()
        self._arrays = (state.rows, state.replicas, state.requests, state.events)
        rows = state.rows
        self._command, self._action = rows["command"], rows["action"]
        self._reward, self._done, self._terms = rows["reward"], rows["done"], rows["terms"][0]
        self._offered = self._state.replicas["offered"][0]

    def _run(self, command: int) -> Observation:
        self._command[0] = command
        buffer = np.empty(self._layout.size, np.float32)
        self._advance(*self._arrays, buffer)
        return self._layout.single(buffer)

    def _mask(self) -> NDArray[np.int8]:
        if not self._rejects:
            return self._offered.copy()
        mask = np.ones(self._actions, np.int8)
        mask[:-1] = self._offered
        return mask


class MOInferenceCluster(InferenceCluster):
    """The inference cluster with its five reward terms as a vector, in the MO-Gymnasium convention.

    As `InferenceCluster`, whose manual this shares, but `step` returns the terms themselves: a float64 array
    `(5,)` of on time, late, shed, latency (ms) and outstanding integral (ms), within `reward_space`. `reward`
    has no effect, `credit` has.
    """

    vector_reward: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build the environment; see `InferenceCluster` for the arguments."""
        super().__init__(*args, **kwargs)
        self.reward_space = reward_space([self._source.config])
