"""Catalogues: nodes, the models that they host, and the destinations that follow (DESIGN 4)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from routing_gym.cloud_edge.evaluator import BYTES_PER_TOKEN
from routing_gym.common.config import FrozenModel

# What the physics needs to know of a destination, per token or per request, in s, USD and W.
PHYSICS = np.dtype(
    [
        ("prefill_s", "f8"),  # 2P/FB, s per input token
        ("decode_s", "f8"),  # 2P/F1, s per output token
        ("up_s", "f8"),  # s per input token
        ("down_s", "f8"),  # s per output token
        ("price_in", "f8"),  # USD per input token
        ("price_out", "f8"),  # USD per output token
        ("price_traffic", "f8"),  # USD per token sent or received
        ("fee", "f8"),  # USD per request
        ("power_w", "f8"),  # while it infers: power times utilisation
        ("transmit_w", "f8"),
        ("receive_w", "f8"),
        ("speedup", "f8"),  # S = FB/F1
        ("token_price", "f8"),  # (p_in + p_out)/2, USD per 1M tokens
        ("model", "i4"),  # place among the catalogue's models
        ("is_cloud", "i1"),
    ],
    align=True,
)


class Model(FrozenModel):
    """A language model: its size and what it charges."""

    parameters_b: float = Field(gt=0)  # billions
    price_in_usd: float = Field(ge=0)  # per 1M input tokens
    price_out_usd: float = Field(ge=0)  # per 1M output tokens
    fee_usd: float = Field(default=0.0, ge=0)  # per request


class Path(FrozenModel):
    """The way from the router to a node and back."""

    rtt_ms: float = Field(ge=0)
    up_mbps: float = Field(gt=0)
    down_mbps: float = Field(gt=0)
    transmit_w: float = Field(ge=0)
    receive_w: float = Field(ge=0)
    price_gb_usd: float = Field(ge=0)


class Node(FrozenModel):
    """A machine and the models that it hosts.

    Its throughput is either `tflops`, the hardware's figure, of which one request gets the catalogue's
    `efficiency` and a full batch `speedup` times that; or the measured `single_tflops` (F1) and
    `batch_tflops` (FB).
    """

    name: str = Field(min_length=1)
    tier: Literal["cloud", "edge"]
    models: tuple[str, ...] = Field(min_length=1)
    power_w: float = Field(ge=0)
    tflops: float | None = Field(default=None, gt=0)
    single_tflops: float | None = Field(default=None, gt=0)
    batch_tflops: float | None = Field(default=None, gt=0)
    rtt_ms: float | None = Field(default=None, ge=0)  # instead of the tier's

    @model_validator(mode="after")
    def _one_throughput(self) -> Node:
        measured = self.single_tflops is not None, self.batch_tflops is not None
        if any(measured) == (self.tflops is not None) or measured[0] != measured[1]:
            raise ValueError(
                f"node {self.name!r} needs either tflops, or both single_tflops and batch_tflops"
            )
        return self


class Destination(NamedTuple):
    """A node–model pair, resolved: what a request can be sent to.

    F1 and FB in FLOP/s, `parameters` a count, `power_w` without utilisation.
    """

    name: str
    node: str
    model: str
    is_cloud: bool
    parameters: float
    single_flops: float
    batch_flops: float
    power_w: float
    utilisation: float
    path: Path
    price: Model

    @property
    def speedup(self) -> float:
        """S = FB/F1."""
        return self.batch_flops / self.single_flops

    @property
    def token_price(self) -> float:
        """(p_in + p_out)/2, USD per 1M tokens; the mean is ours."""
        return (self.price.price_in_usd + self.price.price_out_usd) / 2.0


class Catalogue(FrozenModel):
    """What there is to route to.

    Attributes:
        efficiency: share of a node's `tflops` that a single request gets.
        speedup: a full batch's throughput over a single request's, where a node does not state both.
        utilisation: share of a node's power that inference draws.
        network: the path to each tier.
        nodes: in the order in which their destinations are numbered.
        models: what is hosted, by name.
    """

    efficiency: float = Field(gt=0, le=1)
    speedup: float = Field(ge=1)
    utilisation: float = Field(gt=0, le=1)
    network: dict[Literal["cloud", "edge"], Path]
    nodes: tuple[Node, ...] = Field(min_length=1)
    models: dict[str, Model]

    @model_validator(mode="after")
    def _consistent(self) -> Catalogue:
        names = [node.name for node in self.nodes]
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise ValueError(f"nodes: {double[0]!r} is listed twice; each needs a name of its own")
        for node in self.nodes:
            if node.tier not in self.network:
                raise ValueError(
                    f"network: has no path to tier {node.tier!r}, which node {node.name!r} is in"
                )
            for model in node.models:
                if model not in self.models:
                    raise ValueError(
                        f"nodes: {node.name!r} hosts {model!r}; models has {', '.join(self.models)}"
                    )
            if len(set(node.models)) < len(node.models):
                raise ValueError(f"nodes: {node.name!r} lists a model twice")
        return self

    def destinations(self, replicate: int = 1) -> tuple[Destination, ...]:
        """Flatten the node–model pairs, the whole catalogue `replicate` times over."""
        return tuple(
            self._destination(node, model, copy) for copy in range(replicate) for node, model in self._pairs()
        )

    def node_names(self, replicate: int = 1) -> tuple[str, ...]:
        """Name every node, copies as `NAME#2` and so on."""
        return tuple(_copy_name(node.name, copy) for copy in range(replicate) for node in self.nodes)

    def without(self, models: Collection[str]) -> Catalogue:
        """Return the catalogue without some models, and without the nodes that then host none."""
        nodes = []
        for node in self.nodes:
            left = tuple(model for model in node.models if model not in models)
            if left:
                nodes.append(node.model_copy(update={"models": left}))
        return self.model_copy(update={"nodes": tuple(nodes)})

    @property
    def hosted(self) -> tuple[str, ...]:
        """The models that some node hosts, in the order of their first destination."""
        return tuple(dict.fromkeys(model for _, model in self._pairs()))

    def _pairs(self) -> list[tuple[Node, str]]:
        return [(node, model) for node in self.nodes for model in node.models]

    def _destination(self, node: Node, name: str, copy: int) -> Destination:
        model, path = self.models[name], self.network[node.tier]
        if node.rtt_ms is not None:
            path = path.model_copy(update={"rtt_ms": node.rtt_ms})
        if node.tflops is not None:
            single = node.tflops * self.efficiency
            batch = single * self.speedup
        else:
            assert node.single_tflops is not None and node.batch_tflops is not None
            single, batch = node.single_tflops, node.batch_tflops
        place = _copy_name(node.name, copy)
        return Destination(
            f"{place}/{name}",
            place,
            name,
            node.tier == "cloud",
            model.parameters_b * 1e9,
            single * 1e12,
            batch * 1e12,
            node.power_w,
            self.utilisation,
            path,
            model,
        )


def _copy_name(name: str, copy: int) -> str:
    return name if copy == 0 else f"{name}#{copy + 1}"


def physics_table(destinations: tuple[Destination, ...], models: tuple[str, ...]) -> NDArray[Any]:
    """Return the destinations as the records (M,), dtype `PHYSICS`, that the kernels read."""
    table = np.zeros(len(destinations), PHYSICS)
    bits = 8.0 * BYTES_PER_TOKEN
    for record, d in zip(table, destinations, strict=True):
        record["prefill_s"] = 2.0 * d.parameters / d.batch_flops
        record["decode_s"] = 2.0 * d.parameters / d.single_flops
        record["up_s"] = bits / (1e6 * d.path.up_mbps)
        record["down_s"] = bits / (1e6 * d.path.down_mbps)
        record["price_in"] = d.price.price_in_usd / 1e6
        record["price_out"] = d.price.price_out_usd / 1e6
        record["price_traffic"] = BYTES_PER_TOKEN / 1e9 * d.path.price_gb_usd
        record["fee"] = d.price.fee_usd
        record["power_w"] = d.power_w * d.utilisation
        record["transmit_w"] = d.path.transmit_w
        record["receive_w"] = d.path.receive_w
        record["speedup"] = d.speedup
        record["token_price"] = d.token_price
        record["model"] = models.index(d.model)
        record["is_cloud"] = d.is_cloud
    return table
