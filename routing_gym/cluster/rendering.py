"""Pictures of a running episode: text (`ansi`), frames (`rgb_array`) and a window (`human`).

All is read from the state, and nothing written to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.state import NONE, ClusterState
from routing_gym.common import drawing
from routing_gym.common.drawing import (
    BARS,
    BLUE,
    CARD,
    GREEN,
    GREY,
    INK,
    LEFT,
    LINE,
    ORANGE,
    RIGHT,
    VERMILION,
    FrameRenderer,
    Pen,
    TextRenderer,
)
from routing_gym.common.percentiles import nearest_rank

SHOWN = 24  # replicas drawn or listed; the others are summed up
TALLEST = 3.0  # the demand of a full block, in reference requests

MISSED = (250, 214, 190)

# Pixels. A replica that is TALL has a second line.
TOP, BOTTOM = 156, 112
ROOM, LEAST, MOST, TALL = 276, 24, 92, 56
NAME, SERVICE, SLOT, COUNT, QUEUE, QUEUE_WIDTH = 42, 186, 306, 464, 476, 450
BINS = 114  # of the strip above the time bar


def make_renderer(render_mode: str, fps: int) -> TextRenderer | FrameRenderer:
    """Return the renderer of a mode; see `drawing.make_renderer`."""
    return drawing.make_renderer(render_mode, fps, "Routing Gym: inference cluster", _write, _draw)


class _Scene:
    """What there is to show of an episode."""

    def __init__(self, state: ClusterState, e: int, config: ClusterConfig) -> None:
        row = state.rows[e]
        self.step_ms, self.tick = float(row["step_ms"]), int(row["tick"])
        if self.step_ms == 0.0:
            raise ResetNeeded("there is no episode to render; call reset first")
        self.config, self.replicas = config, state.replicas[e]
        self.now_ms, self.end_ms = self.tick * self.step_ms, float(row["cutoff"]) * self.step_ms
        self.requests = requests = state.requests[e, : row["next_request"]]
        self.latency = requests["finish"] * self.step_ms - requests["arrival"]
        self.completed, self.shed = requests["finish"] >= 0, requests["shed"] != 0
        self.on_time = self.completed & (self.latency <= config.deadline_ms)
        self.past = ~self.completed & (self.now_ms - requests["arrival"] > config.deadline_ms)
        # Whose fate is known. Who waits past the deadline is in it: else a router would look best
        # while its queues grow.
        self.settled = self.completed | self.shed | self.past | bool(row["done"])
        self.pending = NONE if row["done"] else int(row["current"])
        self.last = self._last_routed()
        self.last_replica = NONE if self.last == NONE else int(requests["replica"][self.last])

    def _last_routed(self) -> int:
        requests, accepted = self.requests, (self.requests["replica"] >= 0) & ~self.shed
        if self.pending != NONE:
            accepted[self.pending] = False
            if requests["reroutes"][self.pending] > 0:
                # The decision before was on the re-routed request before, not on the newest one.
                again = accepted & (requests["reroutes"] > 0) & (requests["start"] < 0)
                again[self.pending :] = False
                accepted = again if again.any() else accepted
        routed = np.flatnonzero(accepted)
        return int(routed[-1]) if len(routed) else NONE

    def queue(self, i: int) -> list[int]:
        """Return the requests that wait at replica `i`, the next one first."""
        waiting, r = [], int(self.replicas["head"][i])
        while r != NONE:
            waiting.append(r)
            r = int(self.requests["next"][r])
        return waiting

    def size(self, r: int) -> float:
        return min(float(self.requests["demand"][r]) / (TALLEST * self.config.reference_ms), 1.0)

    def service(self, i: int) -> tuple[float, str]:
        """Return what share of its request in flight replica `i` has done, and say it."""
        replica = self.replicas[i]
        if replica["in_flight"] == NONE:
            return 0.0, "starts" if replica["waiting"] else "idle"
        done = (self.tick - int(replica["started"])) * self.step_ms
        whole = int(replica["finish"] - replica["started"]) * self.step_ms
        return done / whole, f"{done:.0f} of {whole:.0f} ms"

    def late(self, r: int) -> bool:
        return bool(r != NONE and self.past[r])

    def health(self, i: int) -> str:
        slow, healthy = float(self.replicas["slow"][i]), bool(self.replicas["healthy"][i])
        if slow == 1.0:
            return "healthy" if healthy else "FAILED"
        return f"{'slow' if healthy else 'FAILED'} ×{slow:.3g}"

    def figures(self) -> tuple[list[tuple[str, str]], str]:
        """Return the running figures, at the end the episode's metrics, and whom they count."""
        whom, first = "warm-up, all arrivals", 0
        if self.now_ms > self.config.warmup_ms:
            whom = f"arrivals since {self.config.warmup_s:g} s"
            first = int(np.searchsorted(self.requests["arrival"], self.config.warmup_ms, "right"))
        latency = np.sort(self.latency[first:][self.completed[first:]])
        p99 = nearest_rank(latency, 99, len(latency))
        on_time, settled = self.on_time[first:].sum(), self.settled[first:].sum()
        return [
            ("on time", f"{100 * on_time / settled:.1f} %" if settled else "–"),
            ("p99 latency", "–" if p99 is None else f"{p99:.0f} ms"),
            ("completed", f"{len(latency)} of {len(self.requests) - first}"),
            ("shed", f"{self.shed[first:].sum()}"),
        ], whom

    def condition(self) -> str:
        config = self.config
        arrivals = [Path(config.trace).name] if config.trace else []
        if config.load or not config.trace:
            rate = f"{config.rate_per_s:g} requests/s"
            arrivals.append(f"load {config.load:.3g}" if config.load else rate)
        changes = [e for e in config.timeline if e.kind == "rate"]
        factors = [e.factor for e in changes if e.time_s * 1000 <= self.now_ms]
        if factors and factors[-1] != 1.0:
            arrivals.append(f"×{factors[-1]:g}")
        return f"{' '.join(arrivals)} · deadline {config.deadline_ms:g} ms"

    def next_and_last(self) -> tuple[str, str]:
        """Describe the request to route, and say where the last one went."""
        last = "none" if self.last == NONE else f"#{self.last} to R{self.last_replica}"
        if self.pending == NONE:
            return "none, the episode is over", last
        request = self.requests[self.pending]
        tokens = f"{request['prompt']} prompt + about {request['predicted']:.0f} output tokens"
        again = "re-routed, " if request["reroutes"] else ""
        age = f"{self.now_ms - request['arrival']:.1f} ms old"
        return f"#{self.pending} · {tokens} · {again}{age}", last

    def others(self) -> str:
        """Sum up the replicas that are not shown; empty without any."""
        rest = self.replicas[SHOWN:]
        sums = f"{rest['waiting'].sum()} waiting, {np.count_nonzero(rest['healthy'] == 0)} failed"
        return f"+ {len(rest)} more: {sums}" if len(rest) else ""

    def events(self) -> list[tuple[float, str]]:
        """Return when events of this episode come, as shares of it, and what they are."""
        words = {"slowdown": "service ×", "rate": "×", "failure": "fails", "recovery": "back"}
        events = []
        for event in self.config.timeline:
            who = "rate" if event.replica is None else f"R{event.replica}"
            what = words[event.kind] + ("" if event.factor is None else f"{event.factor:g}")
            events.append((event.time_s * 1000 / self.end_ms, f"{who} {what}"))
        return [event for event in events if event[0] <= 1.0]


def _write(state: ClusterState, e: int, config: ClusterConfig) -> str:
    scene = _Scene(state, e, config)
    rows = []
    for i, replica in enumerate(scene.replicas[:SHOWN]):
        share, doing = scene.service(i)
        waiting = scene.queue(i)
        queue = ["x" if scene.late(r) else BARS[int(7 * scene.size(r))] for r in waiting]
        rows.append(
            (
                f"{'>' if i == scene.last_replica else ' '} R{i}",
                scene.health(i),
                f"{replica['service_ewma']:.1f} / {config.replica_service_ms[i]:.3g}",
                f"{'#' * int(6 * share):.<6} {doing}" + " x" * scene.late(replica["in_flight"]),
                f"{len(waiting):>7}",
                "".join(queue[:25]) + ("…" if len(queue) > 25 else ""),
            )
        )
    events = scene.events()
    times = [f"{share * scene.end_ms / 1000:.4g} s {what}" for share, what in events]
    now = f"{scene.now_ms / 1000:.3f} of {scene.end_ms / 1000:g} s"
    figures, whom = scene.figures()
    return drawing.plain_text(
        drawing.spread(f"{config.scenario} · {scene.condition()}", now),
        drawing.text_time_bar(scene.now_ms / scene.end_ms, events),
        f"events: {', '.join(times) or 'none'}",
        f"{', '.join(' '.join(figure) for figure in figures)} ({whom})\n",
        drawing.text_table(("  replica", "health", "service ms", "in service", "waiting", "queue"), rows),
        f"  {scene.others()}",
        "next: {}\nlast: {} (>)".format(*scene.next_and_last()),
        "queue: a bar is a request, as high as its demand; x: past its deadline",
    )


def _draw(pygame: Any, state: ClusterState, e: int, config: ClusterConfig) -> Pen:
    scene = _Scene(state, e, config)
    count = len(scene.replicas)
    height = min(max(ROOM // count, LEAST), MOST)
    end = TOP + min(count, SHOWN) * height
    total = end + (LEAST if count > SHOWN else 0) + BOTTOM
    pen = Pen.on_paper(pygame, total)
    _draw_header(pen, scene)
    for i in range(min(count, SHOWN)):
        _draw_replica(pen, scene, i, TOP + i * height, height)
    pen.text(NAME, end + 12, scene.others(), 20, GREY)
    _draw_time(pen, scene, total - BOTTOM + 14)
    return pen


def _draw_header(pen: Pen, scene: _Scene) -> None:
    x = LEFT + pen.text(LEFT, 30, scene.config.scenario, 38)
    pen.text(x + 14, 33, scene.condition(), 23, GREY)
    x = RIGHT - pen.text(RIGHT, 33, f"of {scene.end_ms / 1000:g} s", 23, GREY, align=1)
    pen.text(x - 7, 30, f"{scene.now_ms / 1000:.2f}", 38, align=1)
    figures, whom = scene.figures()
    pen.text(RIGHT, 66, whom, 20, GREY, align=1)
    x = LEFT
    for name, value in figures:
        pen.text(x, 66, name, 20, GREY)
        x += max(pen.text(x, 88, value, 30), 120) + 36
    coming, last = scene.next_and_last()
    pen.text(LEFT, 118, f"next  {coming}", 20)
    x = RIGHT - pen.text(RIGHT, 118, f"last  {last}", 20, align=1)
    pen.box(x - 14, 110, 6, 16, ORANGE)
    for x, caption in ((NAME, "replica"), (SERVICE, "service / nominal"), (SLOT, "in service")):
        pen.text(x, 143, caption, 18, GREY)
    x = QUEUE + pen.text(QUEUE, 143, "waiting, height is demand", 18, GREY) + 22
    pen.block(x, 149, 8, 12, marked=True)
    pen.text(x + 14, 143, "past its deadline", 18, GREY)


def _draw_replica(pen: Pen, scene: _Scene, i: int, top: float, height: float) -> None:
    replica, config, tall = scene.replicas[i], scene.config, height >= TALL
    height, size = (height - 8, 28) if tall else (height - 2, 22)
    middle = top + height / 2
    line, second = (middle - 13, middle + 16) if tall else (middle, middle)
    healthy = bool(replica["healthy"])
    pen.box(LEFT, top, RIGHT - LEFT, height, CARD if healthy else VERMILION, line=2 * (not healthy))
    if i == scene.last_replica:
        pen.box(LEFT, top, 6, height, ORANGE)

    pen.text(NAME, line, f"R{i}", size)
    x = NAME + (6.0 if tall else 50.0)
    sign = "X" if not healthy else "•" if replica["slow"] == 1.0 else "!"
    pen.text(x, second, sign, 28, GREEN if sign == "•" else VERMILION, align=0.5)
    pen.text(x + 12, second, scene.health(i), 20)

    ewma, nominal = float(replica["service_ewma"]), config.replica_service_ms[i]
    x = SERVICE + pen.text(SERVICE, line, f"{ewma:.1f}", size)
    pen.text(x + 6, line + (1 if tall else 0), f"/ {nominal:.3g} ms", 20, GREY)
    if tall:
        scale = 100 / config.service_ceiling_ms
        pen.box(SERVICE, second - 4, 100, 8, LINE)
        pen.box(SERVICE, second - 4, min(ewma * scale, 100), 8, GREY)
        pen.box(SERVICE + min(nominal * scale, 100) - 1, second - 8, 3, 16, INK)

    share, doing = scene.service(i)
    wide = 106 if tall else 34
    pen.box(SLOT - 1, line - 9, wide + 2, 18, GREY, line=1)
    pen.block(SLOT, line + 8, wide * share, 16, scene.late(replica["in_flight"]))
    pen.text(SLOT if tall else SLOT + wide + 8, second, doing, 20)

    queue, base = scene.queue(i), top + height - (14 if tall else 3)
    pen.text(COUNT, middle, f"{len(queue)}", size, align=1)
    pitch = min(max(QUEUE_WIDTH // config.queue_capacity, 7), 14)
    room = min(QUEUE_WIDTH // pitch, config.queue_capacity)
    pen.box(QUEUE, base, room * pitch, 1, LINE)
    for k, r in enumerate(queue[:room]):
        x, h = QUEUE + k * pitch, (base - top - 4) * scene.size(r)
        pen.block(x, base, pitch - 1, h, scene.late(r))
        if tall and r == scene.last:
            pen.box(x, base + 3, pitch - 1, 6, ORANGE)


def _draw_time(pen: Pen, scene: _Scene, top: float) -> None:
    width, height, step = RIGHT - LEFT, 40, (RIGHT - LEFT) / BINS
    bins = (scene.requests["arrival"] * (BINS / scene.end_ms)).astype(int)
    arrived = np.bincount(bins, minlength=BINS)
    settled = np.bincount(bins[scene.settled], minlength=BINS)
    on_time = np.bincount(bins[scene.on_time], minlength=BINS)
    pen.text(LEFT, top, "share on time, by arrival", 18, GREY)
    base = top + 10 + height
    pen.box(LEFT, base - height, width, height, CARD)
    for k in np.flatnonzero(settled[:BINS]):
        made, known = height * on_time[k] / arrived[k], height * settled[k] / arrived[k]
        pen.box(LEFT + k * step, base - made, step - 1, made, BLUE)
        pen.box(LEFT + k * step, base - height, step - 1, known - made, MISSED)
    warm_up = scene.config.warmup_ms / scene.end_ms
    marks = [(warm_up, "measured from here"), *scene.events()]
    pen.time_bar(base, height, scene.now_ms / scene.end_ms, marks)
