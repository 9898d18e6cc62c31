"""Record two routers on the six-node testbed as a GIF: the same batches, one router above the other.

    pip install "routing-gym[render]"
    python examples/record_cloud_edge_gif.py docs/cloud_edge.gif

A node is down from second 20 to second 32. Both routers meet the same episode, because every draw of it is
made from the seed before the first decision.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import routing_gym

out = sys.argv[1] if len(sys.argv) > 1 else "cloud_edge.gif"
routers = ("cloud_edge/round_robin", "cloud_edge/cema")
seed = 10000
condition = {
    "config": "testbed-6node",
    "rate_per_s": 8.0,
    "outages": [{"node": "A30-1", "window": 20, "windows": 12}],
}
pause_ms = 250  # after each window
title_height = 40


def play(name: str) -> Iterator[np.ndarray]:
    """Play the episode under a router and yield a frame before each window and after the last."""
    env = gym.make("routing_gym/CloudEdgeBatch-v0", render_mode="rgb_array", **condition)
    router = routing_gym.make_policy(name)
    observation, _ = env.reset(seed=seed)
    state, start, over = router.initial_state([seed]), True, False
    yield env.render()
    while not over:
        action, state = router.predict(observation, state, start)
        observation, _, _, over, _ = env.step(action)
        start = False
        yield env.render()
    env.close()


def stacked(frames: tuple[np.ndarray, ...]) -> Image.Image:
    """Put the routers' frames below each other, each under its name."""
    height, width, _ = frames[0].shape
    picture = Image.new("RGB", (width, len(frames) * (height + title_height)), "#1a1a1a")
    font = ImageFont.load_default(24)
    for k, (frame, name) in enumerate(zip(frames, routers, strict=True)):
        top = k * (height + title_height)
        title = name.partition("/")[2]
        ImageDraw.Draw(picture).text((24, top + title_height / 2), title, "white", font, anchor="lm")
        picture.paste(Image.fromarray(frame), (0, top + title_height))
    return picture


pictures = [stacked(frames) for frames in zip(*map(play, routers), strict=True)]
# One small palette for all, without dithering: flat colours stay flat, and the file small. It is made from
# the middle, where the node is down.
palette = pictures[len(pictures) // 2].quantize(48, Image.Quantize.MAXCOVERAGE)
first, *rest = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
pauses_ms = [pause_ms] * len(rest) + [2000]  # the last picture stays a while
first.save(out, save_all=True, append_images=rest, duration=pauses_ms, loop=0, optimize=True)
print(f"{out}: {len(pictures)} pictures")
