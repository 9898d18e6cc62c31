"""What the study of learned routers says of each part for its page alone (DESIGN 6)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from routing_gym.common.config import FrozenModel


class Report(FrozenModel):
    """What stands under `report` in a part of a study.

    Attributes:
        also: further routers that differences are taken to.
        beside: another part, whose routers are shown where conditions and seeds are the same.
        split: a crossed field each of whose values gets tables of its own.
        decision_batch: decisions are timed on batches of so many requests.
        steered: the trained routers are one, told rewards between two: each one's share of the second, w.
        train: the command that trains such a router.
    """

    also: tuple[str, ...] = ()
    beside: str | None = None
    split: str | None = None
    decision_batch: int | None = Field(default=None, ge=1)
    steered: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = ()
    train: str
