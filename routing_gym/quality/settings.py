"""Settings of quality prediction; their values and what is ours are in `configs/quality/default.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from routing_gym.common.config import FrozenModel, merge, packaged


class FitSettings(FrozenModel):
    """How a table is split by prompt, and how quality is predicted from it.

    Fields left out take the shipped values.

    Attributes:
        profile: share of prompts whose outcomes are retrieved.
        validation: share of prompts for errors by cluster; what is left is for tests.
        seed: of the split and of k-means.
        neighbours: K of equation 1 of "CEMA-Router".
        threshold: cosine that a neighbour must exceed.
        clusters: number of clusters of prompts.
    """

    profile: float = Field(gt=0, lt=1)
    validation: float = Field(gt=0, lt=1)
    seed: int = Field(ge=0, lt=2**32)
    neighbours: int = Field(ge=1, le=4096)
    threshold: float = Field(ge=-1, lt=1)
    clusters: int = Field(ge=1, le=4096)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        return merge(packaged("quality", "default")["fit"], data) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _leaves_some(self) -> FitSettings:
        if self.profile + self.validation >= 1.0:
            raise ValueError(
                f"profile {self.profile:g} and validation {self.validation:g} leave no prompts for tests; "
                "their sum must be below 1"
            )
        return self
