"""Rendering: frames and texts of the right form, that say what the state holds and leave it alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled, ResetNeeded

import routing_gym  # noqa: F401  (registers the environments)
from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.env import InferenceCluster
from routing_gym.cluster.rendering import make_renderer
from routing_gym.cluster.state import NONE, ClusterState

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pygame(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    return pytest.importorskip(
        "pygame", reason="frames and windows need pygame: pip install 'routing-gym[render]'"
    )


def make(render_mode, **fields):
    env = InferenceCluster(render_mode=render_mode, **fields)
    env.reset(seed=7)
    return env


def play(env, until_s, choose=None):
    """Play up to a simulated time; by default, each request goes to a random eligible replica."""
    rng = np.random.default_rng(0)
    while now_ms(env) < until_s * 1000.0 and not env._finished:
        eligible = np.flatnonzero(env.action_masks())
        env.step(int(rng.choice(eligible)) if choose is None else choose)
    return env


def now_ms(env):
    row = env._state.rows[0]
    return float(row["tick"] * row["step_ms"])


def state_bytes(env):
    return {name: array.tobytes() for name, array in env._state.arrays().items()}


# Frames


@pytest.mark.parametrize("replicas", [1, 2, 3, 8, 24, 25, 256])
def test_frames_keep_their_even_shape_and_change_with_the_episode(pygame, replicas):
    env = make("rgb_array", replicas=replicas, load=1.2, warmup_s=0.2, measured_s=0.3)
    frames = [env.render()]
    for until_s in (0.1, 0.25, 9.0):
        frames.append(play(env, until_s).render())
    assert env._finished
    for frame in frames:
        assert frame.dtype == np.uint8 and frame.flags.owndata and frame.flags.writeable
        assert frame.shape == frames[0].shape
        height, width, channels = frame.shape
        assert channels == 3 and height % 2 == 0 and width % 2 == 0
        assert width == 960 and 300 < height < 1000
    assert all((a != b).any() for a, b in pairwise(frames))
    np.testing.assert_array_equal(env.render(), frames[-1])


@pytest.mark.parametrize("scenario", ["burst", "straggler", "failure"])
def test_an_event_shows_in_the_replica_that_it_strikes(pygame, scenario):
    """Two states that differ in a replica's health alone give two pictures."""
    env = play(make("rgb_array", scenario=scenario, warmup_s=0.2, measured_s=8), 0.5)
    before = env.render()
    for field, value in (("healthy", 0), ("slow", 3.0)):
        original = env._state.replicas[field][0, 1]
        env._state.replicas[field][0, 1] = value
        changed = (env.render() != before).any(axis=(1, 2))
        env._state.replicas[field][0, 1] = original
        assert changed.any()
        # Only the second of three rows, which take up the middle of the picture.
        assert np.flatnonzero(changed).min() > 200 and np.flatnonzero(changed).max() < 350
    np.testing.assert_array_equal(env.render(), before)


def test_frames_survive_that_somebody_quits_pygame(pygame):
    env = make("rgb_array")
    before = env.render()
    pygame.quit()
    np.testing.assert_array_equal(env.render(), before)
    play(env, 0.1)
    pygame.quit()
    assert (env.render() != before).any()


def test_frames_need_no_display(pygame):
    """In a process of its own, where no display is and no dummy stands in for one."""
    code = """
import sys
import routing_gym.cluster.env, routing_gym.cluster.rendering
assert "pygame" not in sys.modules
env = routing_gym.cluster.env.InferenceCluster(render_mode="rgb_array")
env.reset(seed=0)
assert env.render().shape[2] == 3
import pygame
assert not pygame.display.get_init()
"""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""  # pygame's greeting would be here


def test_a_missing_pygame_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    for mode in ("rgb_array", "human"):
        with pytest.raises(DependencyNotInstalled, match=r'pip install "routing-gym\[render\]"'):
            make_renderer(mode, 30)
    assert make("ansi").render()


# A window


def test_a_window_opens_is_paced_and_closes(pygame):
    env = make("human", replicas=3)  # reset has shown it
    assert pygame.display.get_surface().get_size()[0] == 960
    env.step(0)
    assert env.render() is None
    env.close()
    assert not pygame.display.get_init()

    state, renderer = env._state, make_renderer("human", 100)
    renderer.close()  # without a window, nothing to do
    renderer.render(state, 0, env.config)
    start = time.perf_counter()
    for _ in range(10):
        assert renderer.render(state, 0, env.config) is None
    # SDL waits in whole milliseconds and may round a picture's share down.
    assert time.perf_counter() - start > 0.9 * 10 / 100
    renderer.close()
    assert not pygame.display.get_init()


# Leaving the state alone


@pytest.mark.parametrize("mode", ["ansi", "rgb_array", "human"])
def test_rendering_changes_neither_the_state_nor_what_follows(pygame, mode):
    fields = {"scenario": "failure", "rate_per_s": 300, "warmup_s": 1, "measured_s": 5.2}
    shown, hidden = (play(make(m, **fields), 5.98) for m in ("ansi", None))
    renderer = make_renderer(mode, 1000)
    before = state_bytes(shown)
    renderer.render(shown._state, 0, shown.config)
    assert state_bytes(shown) == before
    while not hidden._finished:
        action = int(np.flatnonzero(hidden.action_masks())[0])
        seen, reward, _, _, info = shown.step(action)
        other, other_reward, _, _, other_info = hidden.step(action)
        renderer.render(shown._state, 0, shown.config)
        assert reward == other_reward
        for name in other:
            np.testing.assert_array_equal(seen[name], other[name])
    assert state_bytes(shown) == state_bytes(hidden)
    assert shown.request_log()["reroutes"].any()  # the failure was among it
    assert info["episode_metrics"]["p99_ms"] == other_info["episode_metrics"]["p99_ms"]
    renderer.close()


# Texts


@pytest.mark.parametrize("replicas", [1, 3, 8, 24])
def test_text_has_a_line_for_each_replica(replicas):
    text = play(make("ansi", replicas=replicas, load=0.9), 0.3).render()
    assert re.findall(r"^[> ] R(\d+) ", text, re.MULTILINE) == [str(i) for i in range(replicas)]
    assert "more" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text


def test_text_sums_up_the_replicas_it_has_no_room_for():
    env = play(make("ansi", replicas=256, load=1.5, warmup_s=0, measured_s=1), 0.4)
    env._state.replicas["healthy"][0, 200] = 0
    waiting = env._state.replicas["waiting"][0]
    listed = re.findall(r"^[> ] R\d+ ", env.render(), re.MULTILINE)
    rest = waiting[len(listed) :].sum()
    assert f"+ {256 - len(listed)} more: {rest} waiting, 1 failed" in env.render()


def test_text_names_health_slowness_and_events():
    events = [
        {"time_s": 0.1, "kind": "failure", "replica": 1},
        {"time_s": 0.1, "kind": "slowdown", "replica": 2, "factor": 2.5},
        {"time_s": 0.2, "kind": "rate", "factor": 1.5},
        {"time_s": 0.3, "kind": "recovery", "replica": 1},
        {"time_s": 99, "kind": "failure", "replica": 0},
    ]
    env = make("ansi", events=events, rate_per_s=200)
    assert re.search(r"R1 +healthy", env.render()) and "FAILED" not in env.render()
    text = play(env, 0.25).render()
    assert re.search(r"R0 +healthy", text)
    assert re.search(r"R1 +FAILED", text)
    assert re.search(r"R2 +slow ×2.5", text)
    assert "200 requests/s ×1.5" in text and "steady" in text
    assert "0.1 s R1 fails, 0.1 s R2 service ×2.5, 0.2 s rate ×1.5, 0.3 s R1 back\n" in text
    assert re.search(r"R1 +healthy", play(env, 0.35).render())


def test_text_says_what_is_next_and_where_the_last_request_went():
    env = make("ansi", scenario="failure", rate_per_s=250)
    play(env, 5.99, choose=0)  # a long queue, to be re-routed at 6 s
    rng = np.random.default_rng(1)
    rerouted = 0
    for _ in range(120):
        request = int(env._state.rows["current"][0])
        again = env._state.requests["reroutes"][0, request] > 0
        action = int(rng.choice(np.flatnonzero(env.action_masks())))
        env.step(action)
        text = env.render()
        following = int(env._state.rows["current"][0])
        assert f"next: #{following} · " in text
        if again and env._state.requests["reroutes"][0, following] == 0:
            continue  # back to arrivals: the newest accepted is named, not the last re-routed
        assert f"last: #{request} to R{action} " in text
        assert re.search(rf"^> R{action} ", text, re.MULTILINE)
        rerouted += again
    assert rerouted > 10


def test_figures_end_as_the_metrics_of_the_episode():
    env = play(make("ansi", rate_per_s=350, warmup_s=1, measured_s=3, queue_capacity=15), 9)
    assert env._finished
    metrics, text = env.episode_metrics(), env.render()
    assert metrics["shed"] > 0 and metrics["unfinished"] > 0
    assert f"on time {100 * metrics['attainment']:.1f} %" in text
    assert f"p99 latency {metrics['p99_ms']:.0f} ms" in text
    assert f"completed {metrics['completed']} of {metrics['arrivals']}, " in text
    assert f"shed {metrics['shed']} (arrivals since 1 s)" in text
    assert "next: none, the episode is over" in text


def test_figures_count_who_waits_past_the_deadline_as_missed():
    """All to one replica: at the start its queue grows, and the misses are yet to complete."""
    env = play(make("ansi", rate_per_s=250), 0.11, choose=2)
    log, now = env.request_log(), now_ms(env)
    age = now - log["arrival"]
    overdue = np.isnan(log["completion"]) & (age > 50)
    on_time = (log["completion"] - log["arrival"] <= 50).sum()
    settled = (~np.isnan(log["completion"]) | overdue).sum()
    text = env.render()
    assert overdue.sum() > 3
    assert f"on time {100 * on_time / settled:.1f} %" in text and "warm-up" in text
    (line,) = re.findall(r"^. R2 .*$", text, re.MULTILINE)
    bars = line.split()[-1]
    assert len(bars) == env._state.replicas["waiting"][0, 2]
    assert bars.count("x") == (overdue & np.isnan(log["start"]) & (log["replica"] == 2)).sum()


# Where there is little to show


def test_an_episode_without_requests(pygame):
    env = make("ansi", rate_per_s=0, warmup_s=0, measured_s=1)
    assert int(env._state.rows["current"][0]) == NONE
    text = env.render()
    assert "on time –" in text and "last: none" in text and "idle" in text
    assert make("rgb_array", rate_per_s=0, warmup_s=0, measured_s=1).render().any()


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_nothing_to_show_before_the_first_reset(pygame, mode):
    with pytest.raises(ResetNeeded, match="reset"):
        make_renderer(mode, 30).render(ClusterState(1, 3), 0, ClusterConfig.create())


# Through Gymnasium


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_a_vector_environment_renders_each_row(pygame, mode):
    envs = gym.make_vec("routing_gym/InferenceCluster-v0", num_envs=3, render_mode=mode)
    envs.reset(seed=5)
    for _ in range(40):
        envs.step(np.arange(3))
    pictures = envs.render()
    assert isinstance(pictures, tuple) and len(pictures) == 3
    for row, picture in enumerate(pictures):
        env = gym.make("routing_gym/InferenceCluster-v0", render_mode=mode)
        env.reset(seed=5 + row)
        for _ in range(40):
            env.step(row)
        np.testing.assert_array_equal(picture, env.render())
        env.close()
    envs.close()


@pytest.mark.slow
def test_the_example_records_a_gif_fit_for_the_readme(pygame, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="the example writes its GIF with Pillow")
    out = tmp_path / "straggler.gif"
    script = ROOT / "examples" / "record_straggler_gif.py"
    subprocess.run([sys.executable, str(script), str(out)], check=True, timeout=300)
    assert out.stat().st_size < 2_000_000
    with image.open(out) as gif:
        durations = []
        for k in range(gif.n_frames):
            gif.seek(k)
            durations.append(gif.info["duration"])
        assert gif.size[0] == 960 and 10_000 < sum(durations) < 13_000
