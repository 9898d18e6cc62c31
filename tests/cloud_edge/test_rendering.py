"""Rendering: frames and texts of the right form, that say what the state holds and leave it alone."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled, ResetNeeded

import routing_gym  # noqa: F401  (registers the environments)
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.env import CloudEdgeBatch
from routing_gym.cloud_edge.rendering import make_renderer
from routing_gym.cloud_edge.request_env import CloudEdgeRequest
from routing_gym.cloud_edge.state import CloudEdgeState
from routing_gym.common.drawing import BARS, BLUE, COLUMNS, GREY, ORANGE, VERMILION, Pen

ENVIRONMENTS = [CloudEdgeBatch, CloudEdgeRequest]
DESTINATIONS = [1, 6, 11, 22, 88]
BUSY = {
    "rate_per_s": 14,
    "windows": 8,
    "max_requests": 16,
    "edge_only_share": 0.3,
    "catalogue": {"speedup": 2.0},
    "outages": [{"node": "A10", "window": 2, "windows": 3}, {"node": "H100", "window": 4, "windows": 40}],
    "weights": [0.4, 0.3, 0.2, 0.1],
}


@pytest.fixture
def pygame(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    return pytest.importorskip(
        "pygame", reason="frames and windows need pygame: pip install 'routing-gym[render]'"
    )


def sized(count):
    """Return fields that make so many destinations."""
    if count % 11 == 0:
        return {"replicate": count // 11}
    catalogue = CloudEdgeConfig.create().catalogue.model_dump(mode="json", exclude_none=True)
    node, *others = catalogue["nodes"]
    node = {**node, "name": "A-NODE-WITH-QUITE-A-LONG-NAME", "tier": "edge"}
    nodes = [{**n, "models": n["models"][:1]} for n in (node, *others, {**node, "name": "Z"})]
    return {"catalogue": {**catalogue, "nodes": nodes[:count]}}


def make(kind, render_mode, **fields):
    env = kind(render_mode=render_mode, **fields)
    env.reset(seed=7)
    return env


def play(env, steps, legal=False):
    """Take so many random steps, or as many as there are."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        if env._finished:
            break
        masks = np.atleast_2d(env._mask())
        choices = [rng.choice(np.flatnonzero(m) if legal else len(m)) for m in masks]
        env.step(np.array(choices) if isinstance(env, CloudEdgeBatch) else int(choices[0]))
    return env


def same_state(arrays, others):
    return all(np.array_equal(arrays[name], others[name]) for name in arrays)


def lanes(text):
    """Return what a text says of each destination."""
    pattern = r"^ ?(\d+) (\S+) +(cloud|edge)( DOWN)? +(\d+)  [#.]{6} ([\d.]+)/([\d.]+)"
    pattern += r" +(\d+) ([^\s\d]*) +(\d+) ?(.*)$"
    found = {}
    for k, name, tier, down, *rest in re.findall(pattern, text, re.MULTILINE):
        opened, backlog, shown, sent, sent_bars, assigned, assigned_bars = rest
        numbers = {"open": opened, "backlog": backlog, "shown": shown, "sent": sent, "assigned": assigned}
        found[int(k)] = {name: float(number) for name, number in numbers.items()}
        found[int(k)] |= {"name": name, "tier": tier, "down": bool(down)}
        found[int(k)] |= {"sent_bars": sent_bars, "assigned_bars": assigned_bars}
    return found


def figures(text):
    """Return the numbers of the header: J and its mean, and of each term the value and the bar's."""
    found = re.findall(r"^(J|mean J), .+?  +(\S+) +predicted (\S+)$", text, re.MULTILINE)
    assert [name for name, *_ in found] == ["J", "mean J"]
    terms = re.findall(r"^(.+) ×(\S+) +\$?([\d.e+-]+)(?: k?[Js])? +([#.]+) (\S+)$", text, re.MULTILINE)
    assert [name for name, *_ in terms] == ["quality loss", "cost", "energy", "completion"]
    return [[float(x) for x in row[1:]] for row in found], terms


# Frames


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("destinations", DESTINATIONS)
def test_frames_keep_their_even_shape_and_change_with_the_episode(pygame, kind, destinations):
    env = make(kind, "rgb_array", **sized(destinations), rate_per_s=60, windows=4, max_requests=128)
    frames = [env.render()]
    for steps in (1, 1, 500):
        frames.append(play(env, steps).render())
    assert env._finished
    for frame in frames:
        assert frame.dtype == np.uint8 and frame.flags.owndata and frame.flags.writeable
        assert frame.shape == frames[0].shape
        height, width, channels = frame.shape
        assert channels == 3 and height % 2 == 0 and width == 960 and 300 < height < 1000
    assert all((a != b).any() for a, b in pairwise(frames))
    np.testing.assert_array_equal(env.render(), frames[-1])


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("destinations", DESTINATIONS)
@pytest.mark.parametrize("crowded", [False, True])
def test_no_writing_is_cut_off_or_written_over(pygame, monkeypatch, tmp_path, kind, destinations, crowded):
    fields = {**sized(destinations), "rate_per_s": 200, "windows": 12, "max_requests": 128}
    fields["edge_only_share"] = 0.2
    if crowded:
        fields["trace"] = tmp_path / f"{'a-long-name-' * 12}.csv"
        rows = [f"{k / 200},{50 + k % 90},{300 - k % 280}\n" for k in range(3000)]
        fields["trace"].write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(rows))
        fields["catalogue"] = {**fields.get("catalogue", {}), "speedup": 1.0}
    env = make(kind, "rgb_array", reward_on="predicted", outage_probability=0.3, **fields)
    drawn, write, box = [], Pen.text, Pen.box

    def recorded(pen, x, y, text, size, *args, align=0, **kwargs):
        width = write(pen, x, y, text, size, *args, align=align, **kwargs)
        if text:
            drawn.append((text, x - align * width, y - size / 3, x + (1 - align) * width, y + size / 3))
        return width

    def recorded_box(pen, x, y, w, h, colour, line=0):
        box(pen, x, y, w, h, colour, line)
        if colour in (BLUE, ORANGE, GREY, VERMILION) and w < 900:
            drawn.append(("a box", x, y, x + w, y + h))

    monkeypatch.setattr(Pen, "text", recorded)
    monkeypatch.setattr(Pen, "box", recorded_box)
    for steps in (0, 1, 5 if kind is CloudEdgeBatch else 1000, 10_000):
        height, width, _ = play(env, steps).render().shape
        for k, (what, left, top, right, bottom) in enumerate(drawn):
            assert 0 <= left and right <= width and 0 <= top and bottom <= height, what
            for other, other_left, other_top, other_right, other_bottom in drawn[:k]:
                apart = right < other_left or other_right < left or bottom < other_top or other_bottom < top
                assert apart or what == other == "a box", (what, other)
        assert len(drawn) > 15
        drawn.clear()


@pytest.mark.parametrize("reward_on", ["actual", "predicted"])
def test_the_strip_shows_what_each_window_paid(pygame, monkeypatch, reward_on):
    env = make(CloudEdgeBatch, "rgb_array", rate_per_s=1, windows=12, reward_on=reward_on)
    rng, paid = np.random.default_rng(0), []
    for _ in range(12):
        _, reward, *_ = env.step(rng.integers(0, 11, 32))
        paid.append(-reward)
    boxes, box = [], Pen.box
    monkeypatch.setattr(Pen, "box", lambda pen, *args, **kw: boxes.append(args) or box(pen, *args, **kw))
    strip = env.render().shape[0] - 112
    boxes = [(x, h) for x, y, _, h, colour, *_ in boxes if colour == BLUE and y > strip]
    bars = {round(12 * (x - 24) / 912): h for x, h in boxes}
    heights = np.array([bars.get(k, 0.0) for k in range(12)])
    assert min(paid) == 0 and (heights == 0).sum() == paid.count(0)  # windows without requests
    np.testing.assert_allclose(
        heights / max(heights), np.array(paid) / max(paid), atol=0.03
    )  # no bar is thinner than a pixel


def rows_of(changed):
    """Return the first and the last row of pixels that differ."""
    rows = np.flatnonzero(changed.any(axis=(1, 2)))
    return rows.min(), rows.max()


def test_what_strikes_a_destination_shows_in_its_lane(pygame):
    """Two states that differ in one destination alone give pictures that differ in one lane."""
    env = play(make(CloudEdgeBatch, "rgb_array", windows=8), 3)
    state, before, window = env._state, env.render(), int(env._state.rows["window"][0])
    tops = []
    for d in range(11):
        state.paths["up"][0, window, d] = 0
        first, last = rows_of(env.render() != before)
        state.paths["up"][0, window, d] = 1
        assert last - first < 40
        tops.append(first)
        for field in ("outstanding", "backlog", "shown", "predicted_longest"):
            original = state.destinations[field][0, d]
            state.destinations[field][0, d] = original + 1 if field == "outstanding" else 0.5 - original
            inside = rows_of(env.render() != before)
            state.destinations[field][0, d] = original
            assert first <= inside[0] and inside[1] <= last
        sent = np.flatnonzero(
            (state.requests["window"][0] == window - 1) & (state.requests["destination"][0] == d)
        )
        if len(sent):
            state.requests["invalid"][0, sent[0]] ^= 1
            inside = rows_of(env.render() != before)
            state.requests["invalid"][0, sent[0]] ^= 1
            assert first <= inside[0] and inside[1] <= last
    assert tops == sorted(set(tops))  # the cloud comes first in this catalogue
    np.testing.assert_array_equal(env.render(), before)


def test_frames_survive_that_somebody_quits_pygame(pygame):
    env = make(CloudEdgeBatch, "rgb_array")
    before = env.render()
    pygame.quit()
    np.testing.assert_array_equal(env.render(), before)


def test_a_missing_pygame_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    for mode in ("rgb_array", "human"):
        with pytest.raises(DependencyNotInstalled, match=r'pip install "routing-gym\[render\]"'):
            make_renderer(mode, 30)
    assert make(CloudEdgeBatch, "ansi").render()


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_a_window_opens_and_closes(pygame, kind):
    env = make(kind, "human")  # reset has shown it
    shown = pygame.display.get_surface()
    assert shown.get_size()[0] == 960
    before = pygame.image.tobytes(shown, "RGB")
    play(env, 1)
    assert pygame.image.tobytes(shown, "RGB") != before
    assert env.render() is None
    env.close()
    assert not pygame.display.get_init()


# Texts


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("destinations", DESTINATIONS)
def test_text_has_a_line_for_each_destination_a_tier_after_the_other(kind, destinations):
    env = make(kind, "ansi", **sized(destinations), rate_per_s=60, windows=4, max_requests=128)
    for steps in (0, 1, 90, 500):
        text = play(env, steps).render()
        found = lanes(text)
        assert sorted(found) == list(range(min(destinations, 24)))
        for k, lane in found.items():
            name = env.config.destinations[k].name
            assert lane["name"] == (name if len(name) < 22 else name[:20] + "…")
            assert lane["tier"] == ("cloud" if env.config.destinations[k].is_cloud else "edge")
        assert list(found) == sorted(found, key=lambda k: (found[k]["tier"], k))
        assert ("more" in text) == (destinations > 24)
        assert max(map(len, text.splitlines())) <= COLUMNS
        assert "\x1b" not in text


def close(said, value):
    """Whether a number of seconds is what the text says, as exactly as it says it."""
    return abs(said - value) <= (0.50001 if value >= 10 else 0.00501)


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_text_says_of_each_destination_what_is_and_what_the_router_is_shown(kind):
    env = make(kind, "ansi", **BUSY)
    destinations, rng = env._state.destinations[0], np.random.default_rng(1)
    outages = {
        outage.node: range(outage.window, outage.window + outage.windows) for outage in env.config.outages
    }
    carried = illegal = assigned = down = 0
    while not env._finished:
        batch = kind is CloudEdgeBatch
        observation, *_ = env.step(rng.integers(0, 11, 16) if batch else int(rng.integers(11)))
        text, log = env.render(), env.assignment_log()
        window = min(int(env._state.rows["window"][0]), 7)
        last = log[log["window"] == log["window"].max()]
        provisional = env._state.slots[0][env._state.slots["order"][0, : env._state.rows["position"][0]]]
        for d, lane in lanes(text).items():
            assert lane["open"] + lane["assigned"] == observation["outstanding"][d]
            assert close(lane["shown"], observation["backlog_s"][d])
            assert close(lane["backlog"], destinations["backlog"][d])
            assert lane["down"] == (window in outages.get(env.config.destinations[d].node, ()))
            sent = last[last["destination"] == d] if last["window"].max() >= 0 else last[:0]
            assert lane["sent"] == len(sent)
            assert lane["sent_bars"].count("x") == sent["invalid"][:9].sum()
            assert lane["assigned"] == (provisional["choice"] == d).sum()
            assert len(lane["assigned_bars"]) == min(lane["assigned"], 10)
            carried, down = carried + lane["backlog"], down + lane["down"]
            illegal, assigned = illegal + sent["invalid"].sum(), assigned + lane["assigned"]
    assert carried > 1 and illegal > 10 and down > 10
    assert (assigned > 10) == (kind is CloudEdgeRequest)


def test_a_bar_is_as_high_as_its_request_takes_long():
    env = make(CloudEdgeBatch, "ansi", windows=20)
    heights = set()
    for _ in range(20):
        text, log = play(env, 1, legal=True).render(), env.assignment_log()
        last = log[log["window"] == log["window"].max()]
        assert f"the highest takes {last['infer'].max():.2f} s" in text
        for d, lane in lanes(text).items():
            shares = last["infer"][last["destination"] == d] / last["infer"].max()
            bars = "".join(BARS[int(7 * share)] for share in shares[:9])
            assert lane["sent_bars"] == bars + "…" * (len(shares) > 9)
            heights |= set(lane["sent_bars"])
    assert len(heights) > 4


def test_text_says_what_is_next_in_the_walk():
    env = make(CloudEdgeRequest, "ansi", **BUSY)
    observation, _ = env.set_state(env.get_state())
    pattern = r"^to assign: (\d+) of (\d+)(?: · (\d+) edge-only)? · longest #\d+: (.*)$"
    edge_only = 0
    for _ in range(40):
        size = (observation[name].item() for name in ("input_tokens", "predicted_output_tokens"))
        said = re.search(pattern, env.render(), re.MULTILINE)
        assert said[4] == "{:.0f} tokens in, about {:.0f} out".format(*size)
        assert int(said[1]) == observation["remaining"].item()
        row, slots = env._state.rows[0], env._state.slots[0]
        assert int(said[2]) == row["batch"]
        left = slots["request"][slots["order"][row["position"] : row["batch"]]]
        assert int(said[3] or 0) == env._state.requests["edge_only"][0, left].sum()
        edge_only += int(said[3] or 0)
        observation, *_ = env.step(10)
    assert edge_only > 10


@pytest.mark.parametrize("reward_on", ["actual", "predicted"])
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_the_header_says_what_the_last_batch_was_worth(kind, reward_on):
    slow = {**BUSY, "rate_per_s": 6, "catalogue": {"speedup": 1.0}}
    env = make(kind, "ansi", **slow, reward_on=reward_on)
    weights, paid = np.array(env.config.weights), ["actual", "predicted"].index(reward_on)
    rng, rewards, over, mid_walk = np.random.default_rng(1), [], 0, 0
    while not env._finished:
        batch = kind is CloudEdgeBatch
        _, reward, *_, info = env.step(rng.integers(0, 11, 16) if batch else int(rng.integers(11)))
        log, text = env.assignment_log(), env.render()
        if log["window"].max() < 0:
            assert re.search(r"^J, none yet +–$", text, re.MULTILINE)
            continue
        (j, mean), terms = figures(text)
        if reward != 0.0:
            rewards.append(reward)
            if reward_on == "actual":
                np.testing.assert_allclose([float(t[-1]) for t in terms], -info["reward_terms"], atol=6e-4)
        else:
            mid_walk += env._state.rows["position"][0] > 0
        metrics = env.episode_metrics()
        assert j[paid] == pytest.approx(-rewards[-1], abs=6e-4)
        assert mean[paid] == pytest.approx(metrics["objective"], abs=6e-4)
        assert mean[1] == pytest.approx(metrics["objective_predicted"], abs=6e-4)
        assert f"mean J, {metrics['nonempty_windows']} batch" in text
        last = log[log["window"] == log["window"].max()]
        raw = [1 - last["quality"].mean(), last["cost"].sum(), last["energy"].sum(), last["finish"].max()]
        for (_, weight, value, bar, share), expected, omega in zip(terms, raw, weights, strict=True):
            assert float(value) == pytest.approx(expected, rel=2e-3, abs=6e-3) and float(weight) == omega
            assert bar.count("#") == pytest.approx(20 * min(float(share), 1.0), abs=0.52)
            over += float(share) > 1
        assert weights @ [float(t[-1]) for t in terms] == pytest.approx(j[0], abs=2e-3)
    assert over > 0 and (mid_walk > 0) == (kind is CloudEdgeRequest)
    assert "to assign: none, the episode is over" in text and "window 8 of 8" in text


def test_text_tells_who_waits_and_who_has_nowhere_to_go():
    nodes = ("A10", "T4", "H100", "A100", "A100-250")
    edge = [{"node": node, "window": 1, "windows": 5} for node in nodes[:2]]
    cloud = [{"node": node, "window": 3, "windows": 1} for node in nodes[2:]]
    fields = {"requests": 14, "windows": 6, "max_requests": 6, "edge_only_share": 0.3}
    env = make(CloudEdgeBatch, "ansi", **fields, outages=edge + cloud)
    kept = env._state.requests["edge_only"][0] != 0
    seen = []
    for window in range(6):
        text, log = env.render(), env.assignment_log()
        waiting = log["window"] < 0
        waiting[env._state.slots["request"][0, : env._state.rows["batch"][0]]] = False
        stranded = waiting & ((window == 3) | (kept[: len(log)] & (window >= 1)))
        said = re.search(r"^waiting: (\d+)(?:, (\d+) with nowhere to go)?$", text, re.MULTILINE)
        assert (int(said[1]), int(said[2] or 0)) == (waiting.sum(), stranded.sum())
        seen.append((waiting.sum(), stranded.sum()))
        assert ("to assign: none, the batch is empty" in text) == (window == 3)
        play(env, 1)
    assert seen[0] == (8, 0) and seen[3][0] == seen[3][1] > 10 and seen[1][0] > seen[1][1] > 0
    assert "outages: A10 down at 1 s, T4 down at 1 s, H100 down at 3 s, H100 back at 4 s, " in text


def test_text_sums_up_the_destinations_it_has_no_room_for():
    env = play(make(CloudEdgeRequest, "ansi", replicate=8, rate_per_s=200, max_requests=128), 600)
    env._state.paths["up"][0, :, 80] = 0
    text, log, destinations = env.render(), env.assignment_log(), env._state.destinations[0]
    sent = log["destination"][log["window"] == log["window"].max()]
    cloud = destinations["is_cloud"] != 0
    for where, tier, down in (("in the cloud", cloud, 1), ("at the edge", ~cloud, 0)):
        rest = 24 + np.flatnonzero(tier[24:])
        assert (
            f"+ {len(rest)} more {where}: {down} down, "
            f"{destinations['outstanding'][rest].sum()} outstanding, "
            f"backlog up to {destinations['backlog'][rest].max():.2f} s, "
            f"{np.isin(sent, rest).sum()} sent, {destinations['assigned'][rest].sum()} assigned\n"
        ) in text
    assert destinations["assigned"][24:].any()


# Where the state comes from, and that it is left alone


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_saved_and_copied_environments_look_the_same(pygame, kind, mode):
    env = play(make(kind, mode, **BUSY), 4)
    picture, saved = env.render(), env.get_state()
    for same in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        np.testing.assert_array_equal(same.render(), picture)
    play(env, 3)
    assert np.any(env.render() != picture)
    env.set_state(saved)
    np.testing.assert_array_equal(env.render(), picture)


@pytest.mark.parametrize("kind", ENVIRONMENTS)
@pytest.mark.parametrize("mode", ["ansi", "rgb_array", "human"])
def test_rendering_changes_neither_the_state_nor_what_follows(pygame, kind, mode):
    shown, hidden = (make(kind, None, **BUSY) for _ in range(2))
    renderer = make_renderer(mode, 1000)
    rng = np.random.default_rng(3)
    while not hidden._finished:
        before = shown._state.arrays()
        renderer.render(shown._state, 0, shown.config)
        assert same_state(shown._state.arrays(), before)
        action = rng.integers(0, 11, 16) if kind is CloudEdgeBatch else int(rng.integers(11))
        seen, reward, *_ = shown.step(action)
        other, other_reward, *_ = hidden.step(action)
        assert reward == other_reward
        for name in other:
            np.testing.assert_array_equal(seen[name], other[name])
    assert same_state(shown._state.arrays(), hidden._state.arrays())
    renderer.close()


@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_an_episode_without_requests(pygame, kind):
    for mode in ("ansi", "rgb_array"):
        env = make(kind, mode, requests=0, windows=3)
        empty = env.render()
        play(env, 9)
        assert env._finished and np.shape(env.render()) == np.shape(empty)
    text = make(kind, "ansi", requests=0, windows=3).render()
    assert re.search(r"^mean J, 0 batches +–$", text, re.MULTILINE) and "none yet" in text


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_nothing_to_show_before_the_first_reset(pygame, mode):
    with pytest.raises(ResetNeeded, match="there is no episode to render; call reset first"):
        make_renderer(mode, 30).render(CloudEdgeState(1, 11, 32), 0, CloudEdgeConfig.create())


# Through Gymnasium


@pytest.mark.parametrize("name", ["CloudEdgeBatch-v0", "CloudEdgeRequest-v0"])
@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_a_vector_environment_renders_each_row(pygame, name, mode):
    envs = gym.make_vec(f"routing_gym/{name}", num_envs=3, render_mode=mode)
    envs.reset(seed=5)
    action = envs.single_action_space.sample()
    for _ in range(4):
        envs.step(np.array([action] * 3))
    pictures = envs.render()
    assert isinstance(pictures, tuple) and len(pictures) == 3
    for row, picture in enumerate(pictures):
        env = gym.make(f"routing_gym/{name}", render_mode=mode)
        env.reset(seed=5 + row)
        for _ in range(4):
            env.step(action)
        np.testing.assert_array_equal(picture, env.render())
        env.close()
    envs.close()


@pytest.mark.slow
def test_the_example_records_a_gif_fit_for_the_readme(pygame, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="the example writes its GIF with Pillow")
    out = tmp_path / "cloud_edge.gif"
    script = Path(__file__).parents[2] / "examples" / "record_cloud_edge_gif.py"
    subprocess.run([sys.executable, str(script), str(out)], check=True, timeout=300)
    assert out.stat().st_size < 1_500_000
    with image.open(out) as gif:
        assert gif.size[0] == 960 and gif.n_frames == 61
