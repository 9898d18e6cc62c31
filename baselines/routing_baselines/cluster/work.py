"""This project's own routers: they count expected work instead of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing_baselines.cluster.documented import per_row
from routing_baselines.cluster.router import Bools, StatelessRouter, View, default, lowest
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.features import expected_work
from routing_gym.cluster.workload import make_workload


class LeastWork(StatelessRouter):
    """The replica that would be done with the request first, by predicted tokens and learned speed.

    Attributes:
        demand: (a, b, c), ms of demand per request, per prompt token and per output token. `configure`
            takes over the environment's, which an operator knows from measuring the service.
    """

    def __init__(self, demand: tuple[float, float, float] | None = None) -> None:
        """Set the demand coefficients; by default those of the shipped config."""
        self.demand: tuple[Any, Any, Any] = demand or ClusterConfig.create().demand.coefficients

    def configure(self, configs: Sequence[ClusterConfig]) -> None:
        """Take over each row's demand coefficients."""
        # Rows mostly share a few conditions, and a trace's coefficients need the trace.
        different = {id(config): config for config in configs}
        known = {key: make_workload(config).demand for key, config in different.items()}
        rows = [known[id(config)] for config in configs]
        a, b, c = (per_row([row[k] for row in rows]) for k in range(3))
        self.demand = (a, b, c)

    def work(self, view: View) -> NDArray[np.float64]:
        """Return the expected time until each replica would be done with the request, ms (…, N)."""
        return expected_work(
            view.outstanding,
            view.outstanding_prompt_tokens,
            view.outstanding_predicted_tokens,
            view.request,
            view.speed_ewma,
            self.demand,
        )

    def route(self, view: View, eligible: Bools) -> NDArray[np.int64]:
        """Return the argmin of expected work."""
        return lowest(self.work(view), eligible)


class DeadlineAware(LeastWork):
    """Least work, but a request that is bound to be late must not delay those that can still make it.

    One that would miss the margin everywhere goes to the replica with the most work; under admission it is
    rejected.

    Attributes:
        margin: the share of the deadline by which a request must be expected to be done.
        admission: whether the action N rejects; `configure` takes over the environment's.
    """

    def __init__(
        self,
        margin: float | None = None,
        demand: tuple[float, float, float] | None = None,
        admission: bool = False,
    ) -> None:
        """Set the margin and the demand coefficients (by default the shipped ones), and admission.

        Raises:
            ValueError: a margin that is not positive.
        """
        margin = default("deadline_aware", "margin") if margin is None else margin
        if margin <= 0:
            raise ValueError(f"margin = {margin}: must be above 0")
        super().__init__(demand)
        self.margin = margin
        self.admission = admission

    def configure(self, configs: Sequence[ClusterConfig]) -> None:
        """Take over demand coefficients and whether requests may be rejected."""
        super().configure(configs)
        self.admission = configs[0].admission

    def route(self, view: View, eligible: Bools) -> NDArray[np.int64]:
        """Return the argmin of expected work, or where nothing is in time the argmax (or N: reject)."""
        work = self.work(view)
        late = view.request[..., 2:] + work > self.margin * view.deadline
        hopeless = (late | ~eligible).all(axis=-1)
        otherwise: Any = eligible.shape[-1] if self.admission else lowest(-work, eligible)
        return np.where(hopeless, otherwise, lowest(work, eligible))
