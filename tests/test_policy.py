"""The registry of routers: names, answers to wrong ones, and what may be registered."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

import routing_gym
from routing_gym import policy
from routing_gym.policy import GROUP, Policy, Yardstick, full_name, list_policies, make_policy, policy_class


class Echo(Policy):
    """A router of a third party."""

    def __init__(self, volume: float = 1.0) -> None:
        self.volume = volume

    def predict(self, observation: Any, state: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return np.zeros((), np.int64), state


class Unfinished(Policy):
    """It lacks `predict`."""


class Ruler(Yardstick):
    """A yardstick of a third party."""

    def measure(self, episode: Any) -> dict[str, Any]:
        return {}


class Stranger:
    """Not a policy."""


def not_a_class() -> None:
    """Not a class either."""


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register what a few other packages would, and nothing else."""
    names = {
        "cluster/echo": "Echo",
        "cloud_edge/echo": "Echo",
        "cluster/loudest": "Echo",
        "cluster/unfinished": "Unfinished",
        "cluster/ruler": "Ruler",
        "cluster/stranger": "Stranger",
        "cluster/function": "not_a_class",
        "cluster/missing": "Gone",
    }
    points = [EntryPoint(name, f"{__name__}:{value}", GROUP) for name, value in names.items()]
    monkeypatch.setattr(policy, "entry_points", lambda group: [p for p in points if p.group == group])


def test_routers_of_the_design_are_registered() -> None:
    routers = (
        "round_robin",
        "least_queue",
        "latency_aware",
        "adaptive",
        "random",
        "power_of_two",
        "least_work",
    )
    expected = {f"cluster/{name}" for name in (*routers, "deadline_aware", "clairvoyant", "bound")}
    assert expected <= set(list_policies("cluster"))
    assert routing_gym.make_policy is make_policy
    assert type(make_policy("adaptive", c=0.2)).__module__ == "routing_baselines.cluster.documented"


@pytest.mark.usefixtures("registered")
class TestNames:
    def test_lists_are_sorted_and_by_family(self) -> None:
        assert list_policies("cloud_edge") == ["cloud_edge/echo"]
        assert list_policies() == sorted(list_policies())
        assert list_policies() == ["cloud_edge/echo", *list_policies("cluster")]
        assert list_policies("cloud") == []

    def test_full_names_and_bare_ones_that_are_unique(self) -> None:
        assert full_name("cluster/loudest") == full_name("loudest") == "cluster/loudest"
        assert full_name("cloud_edge/echo") == "cloud_edge/echo"
        loud = make_policy("loudest", volume=11)
        assert isinstance(loud, Echo)
        assert loud.volume == 11
        assert isinstance(make_policy("cluster/echo"), Echo)

    def test_an_ambiguous_name_is_answered_with_its_full_names(self) -> None:
        with pytest.raises(ValueError, match="'echo' is ambiguous: write cloud_edge/echo or cluster/echo"):
            make_policy("echo")

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("loudset", "no router is named 'loudset'; did you mean cluster/loudest?"),
            ("cluster/loudst", "no router is named 'cluster/loudst'; did you mean cluster/loudest"),
            ("cluster/unfinshed", "did you mean cluster/unfinished"),
            ("edge/echo", "did you mean cloud_edge/echo"),
            ("zzz", "no router is named 'zzz'; there are cloud_edge/echo, cluster/echo, cluster/function, "),
            ("", "no router is named ''; there are "),
        ],
    )
    def test_an_unknown_name_is_answered_with_the_nearest(self, name: str, told: str) -> None:
        with pytest.raises(ValueError, match=re.escape(told)):
            make_policy(name)
        with pytest.raises(ValueError, match=re.escape(told)):
            full_name(name)

    def test_yardsticks_may_be_registered(self) -> None:
        assert policy_class("ruler") is Ruler
        assert isinstance(make_policy("ruler"), Yardstick)

    @pytest.mark.parametrize("name", ["stranger", "function"])
    def test_what_is_no_policy_is_refused(self, name: str) -> None:
        told = rf"router 'cluster/{name}': {re.escape(__name__)}:\w+ is not a subclass of routing_gym.Policy"
        with pytest.raises(ValueError, match=told):
            make_policy(name)

    def test_a_wrong_parameter_names_the_router(self) -> None:
        with pytest.raises(
            TypeError, match=r"router 'cluster/loudest' with pitch = 3: .*unexpected keyword argument 'pitch'"
        ):
            make_policy("loudest", pitch=3)
        with pytest.raises(TypeError, match=r"router 'cluster/unfinished'.*abstract"):
            make_policy("unfinished")

    def test_a_class_that_is_not_there(self) -> None:
        with pytest.raises(AttributeError, match="Gone"):
            make_policy("missing")


def test_nearest_names_among_the_shipped_routers() -> None:
    for wrong, meant in (("adaptiv", "cluster/adaptive"), ("least-work", "cluster/least_work"), ("rr", None)):
        with pytest.raises(
            ValueError, match=f"did you mean.*{meant}" if meant else "there are .*cluster/adaptive"
        ):
            make_policy(wrong)


def test_a_router_needs_no_more_than_predict() -> None:
    echo = Echo()
    assert (echo.family, echo.role, echo.acts_on) == ("cluster", "router", "request")
    assert echo.initial_state([1, 2]) is None
    assert echo.configure([object()]) is None
    assert echo.attach(object()) is None
    assert Ruler.role == "yardstick"
