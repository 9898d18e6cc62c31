"""Record a straggler under two routers as a GIF: the same requests, one router above the other.

    pip install "routing-gym[render]"
    python examples/record_straggler_gif.py docs/straggler.gif

Replica 0 serves three times as slowly from second 6 to second 10. Both routers meet the same episode,
because every draw of it is made from the seed before the first decision.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import routing_gym

out = sys.argv[1] if len(sys.argv) > 1 else "straggler.gif"
routers = ("cluster/round_robin", "cluster/deadline_aware")
seed = 10000
times_ms = np.arange(5500, 11000, 60)  # simulated times of the pictures
pause_ms = 120  # after each: half of real time
title_height = 40


def play(name: str) -> Iterator[Image.Image]:
    """Play the episode under a router and yield a picture at each of the times."""
    env = gym.make("routing_gym/InferenceCluster-v0", scenario="straggler", render_mode="rgb_array")
    router = routing_gym.make_policy(name)
    observation, _ = env.reset(seed=seed)
    state = router.initial_state([seed])
    start = True
    for time_ms in times_ms:
        # The last request in the log is the one to route, so its arrival tells the time.
        while env.unwrapped.request_log()["arrival"][-1] < time_ms:
            action, state = router.predict(observation, state, start)
            observation, _, _, _, _ = env.step(int(action))
            start = False
        yield titled(env.render(), name.partition("/")[2])
    env.close()


def titled(frame: np.ndarray, title: str) -> Image.Image:
    """Put a title over a frame."""
    height, width, _ = frame.shape
    picture = Image.new("RGB", (width, height + title_height), "#1a1a1a")
    font = ImageFont.load_default(24)
    ImageDraw.Draw(picture).text((24, title_height / 2), title, "white", font, anchor="lm")
    picture.paste(Image.fromarray(frame), (0, title_height))
    return picture


pictures = []
for upper, lower in zip(*map(play, routers), strict=True):
    both = Image.new("RGB", (upper.width, upper.height + lower.height))
    both.paste(upper, (0, 0))
    both.paste(lower, (0, upper.height))
    pictures.append(both)

# One small palette for all, without dithering: flat colours stay flat, and the file small.
palette = pictures[-1].quantize(24, Image.Quantize.MAXCOVERAGE)
first, *rest = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
pauses_ms = [pause_ms] * len(rest) + [1000]  # the last picture stays a while
first.save(out, save_all=True, append_images=rest, duration=pauses_ms, loop=0, optimize=True)
print(f"{out}: {len(pictures)} pictures")
