"""Pictures of a running episode: text (`ansi`), frames (`rgb_array`) and a window (`human`).

Nothing is remembered between two pictures: all is read from the state, and nothing written to it.
The colours are Okabe and Ito's, which the colour-blind tell apart; shape or text says the same.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import DependencyNotInstalled, ResetNeeded
from numpy.typing import NDArray

from routing_gym.cluster.config import ClusterConfig
from routing_gym.cluster.state import NONE, ClusterState
from routing_gym.common.percentiles import nearest_rank

SHOWN = 24  # replicas drawn or listed; the others are summed up
TALLEST = 3.0  # the demand of a full block, in reference requests
COLUMNS = 92  # of the text
BARS = "▁▂▃▄▅▆▇█"

RGB = tuple[int, int, int]
INK, GREY, LINE, CARD = (26, 26, 26), (88, 88, 88), (190, 190, 190), (241, 242, 245)
PAPER, MISSED = (255, 255, 255), (250, 214, 190)
BLUE, GREEN, VERMILION, ORANGE = (0, 114, 178), (0, 158, 115), (213, 94, 0), (230, 159, 0)

# Pixels. A replica that is TALL has a second line.
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960, 24, 936, 156, 112
ROOM, LEAST, MOST, TALL = 276, 24, 92, 56
NAME, SERVICE, SLOT, COUNT, QUEUE, QUEUE_WIDTH = 42, 186, 306, 464, 476, 450
BINS = 114  # of the strip above the time bar


def make_renderer(render_mode: str, fps: int) -> TextRenderer | FrameRenderer:
    """Return the renderer of a mode.

    Args:
        render_mode: `ansi`, `rgb_array` or `human`.
        fps: pictures per second that a window shows at most.

    Raises:
        gymnasium.error.DependencyNotInstalled: frames and windows need pygame.
    """
    if render_mode == "ansi":
        return TextRenderer()
    return FrameRenderer(fps if render_mode == "human" else None)


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


class TextRenderer:
    """Renders plain text, 92 columns wide."""

    def render(self, state: ClusterState, e: int, config: ClusterConfig) -> str:
        """Return row `e` of the state as text."""
        from rich.console import Console
        from rich.table import Table

        scene, width = _Scene(state, e, config), COLUMNS - 2
        names = ("  replica", "health", "service ms", "in service", "waiting", "queue")
        table = Table(*names, box=None, padding=(0, 2, 0, 0), header_style="")
        for column in table.columns[:-1]:
            column.no_wrap = True  # what is too long shortens the queue
        for i, replica in enumerate(scene.replicas[:SHOWN]):
            share, doing = scene.service(i)
            waiting = scene.queue(i)
            queue = ["x" if scene.late(r) else BARS[int(7 * scene.size(r))] for r in waiting]
            table.add_row(
                f"{'>' if i == scene.last_replica else ' '} R{i}",
                scene.health(i),
                f"{replica['service_ewma']:.1f} / {config.replica_service_ms[i]:.3g}",
                f"{'#' * int(6 * share):.<6} {doing}" + " x" * scene.late(replica["in_flight"]),
                f"{len(waiting):>7}",
                "".join(queue[:25]) + ("…" if len(queue) > 25 else ""),
            )
        bar = ["=" if k * scene.end_ms < scene.now_ms * width else "-" for k in range(width)]
        for share, _ in scene.events():
            bar[min(int(share * width), width - 1)] = "|"
        events = [f"{share * scene.end_ms / 1000:.4g} s {what}" for share, what in scene.events()]
        title = f"{config.scenario} · {scene.condition()}"
        now = f"{scene.now_ms / 1000:.3f} of {scene.end_ms / 1000:g} s"
        figures, whom = scene.figures()
        console = Console(width=COLUMNS, height=COLUMNS, color_system=None, force_jupyter=False, markup=False)
        with console.capture() as capture:
            console.print(f"{title}{now:>{max(COLUMNS - len(title), 1)}}\n[{''.join(bar)}]")
            console.print(f"events: {', '.join(events) or 'none'}")
            console.print(", ".join(" ".join(figure) for figure in figures), f"({whom})\n")
            console.print(table, f"  {scene.others()}", sep="\n")
            console.print("next: {}\nlast: {} (>)".format(*scene.next_and_last()))
            console.print("queue: a bar is a request, as high as its demand; x: past its deadline")
        return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class FrameRenderer:
    """Renders frames, which needs no display, or shows them in a window.

    Args:
        fps: None for frames; otherwise how many per second the window shows at most.

    Raises:
        gymnasium.error.DependencyNotInstalled: pygame is not installed.
    """

    def __init__(self, fps: int | None = None) -> None:
        # It would greet on standard output, which belongs to the user's program.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError as error:
            hint = 'pygame is not installed, run: pip install "routing-gym[render]"'
            raise DependencyNotInstalled(hint) from error
        self.pygame, self.fps = pygame, fps
        self._window: Any = None

    def render(self, state: ClusterState, e: int, config: ClusterConfig) -> NDArray[Any] | None:
        """Draw row `e` of the state; return uint8 (H, W, 3), both even and fixed by N, or None."""
        surface = self._draw(_Scene(state, e, config))
        if self.fps is None:
            pixels = np.frombuffer(self.pygame.image.tobytes(surface, "RGB"), np.uint8)
            return pixels.reshape(surface.get_height(), WIDTH, 3).copy()
        if self._window is None:
            self.pygame.display.init()
            self.pygame.display.set_caption("Routing Gym: inference cluster")
            self._window = self.pygame.display.set_mode(surface.get_size())
            self._clock = self.pygame.time.Clock()
        self._window.blit(surface, (0, 0))
        self.pygame.event.pump()
        self.pygame.display.flip()
        self._clock.tick(self.fps)
        return None

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self.pygame.display.quit()
            self._window = None

    def _draw(self, scene: _Scene) -> Any:
        count = len(scene.replicas)
        height = min(max(ROOM // count, LEAST), MOST)
        end = TOP + min(count, SHOWN) * height
        total = end + (LEAST if count > SHOWN else 0) + BOTTOM
        surface = self.pygame.Surface((WIDTH, total + total % 2), 0, 32)
        surface.fill(PAPER)
        pen = _Pen(self.pygame, surface)
        _draw_header(pen, scene)
        for i in range(min(count, SHOWN)):
            _draw_replica(pen, scene, i, TOP + i * height, height)
        pen.text(NAME, end + 12, scene.others(), 20, GREY)
        _draw_time(pen, scene, total - BOTTOM + 14)
        return surface


@lru_cache(maxsize=1024)
def _written(pygame: Any, text: str, size: int, colour: RGB) -> Any:
    # In pygame's own font, which is the same everywhere. It is loaded anew, as anyone may have
    # called pygame.quit(), and drawn large and shrunk, as hinting distorts its small letters.
    pygame.font.init()
    large = pygame.font.Font(None, 4 * size).render(text, True, colour)
    return pygame.transform.smoothscale(large, (large.get_width() // 4, large.get_height() // 4))


class _Pen(NamedTuple):
    pygame: Any
    surface: Any

    def text(self, x: float, y: float, text: str, size: int, colour: RGB = INK, align: float = 0) -> float:
        """Write, centred at height y, from x (align 0) or up to x (1); return the width."""
        written = _written(self.pygame, text, size, colour)
        width, height = written.get_size()
        self.surface.blit(written, (round(x - align * width), round(y - height / 2)))
        return float(width)

    def box(self, x: float, y: float, w: float, h: float, colour: RGB, line: int = 0) -> None:
        rect = (round(x), round(y), round(x + w) - round(x), round(y + h) - round(y))
        self.pygame.draw.rect(self.surface, colour, rect, line)

    def request(self, x: float, base: float, w: float, h: float, late: bool) -> None:
        """Draw a waiting request: filled, or hollow where it is past its deadline."""
        h = max(h, 4)
        self.box(x, base - h, w, h, *((VERMILION, 2) if late else (BLUE, 0)))


def _draw_header(pen: _Pen, scene: _Scene) -> None:
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
    pen.request(x, 149, 8, 12, late=True)
    pen.text(x + 14, 143, "past its deadline", 18, GREY)


def _draw_replica(pen: _Pen, scene: _Scene, i: int, top: float, height: float) -> None:
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
    pen.request(SLOT, line + 8, wide * share, 16, scene.late(replica["in_flight"]))
    pen.text(SLOT if tall else SLOT + wide + 8, second, doing, 20)

    queue, base = scene.queue(i), top + height - (14 if tall else 3)
    pen.text(COUNT, middle, f"{len(queue)}", size, align=1)
    pitch = min(max(QUEUE_WIDTH // config.queue_capacity, 7), 14)
    room = min(QUEUE_WIDTH // pitch, config.queue_capacity)
    pen.box(QUEUE, base, room * pitch, 1, LINE)
    for k, r in enumerate(queue[:room]):
        x, h = QUEUE + k * pitch, (base - top - 4) * scene.size(r)
        pen.request(x, base, pitch - 1, h, scene.late(r))
        if tall and r == scene.last:
            pen.box(x, base + 3, pitch - 1, 6, ORANGE)


def _draw_time(pen: _Pen, scene: _Scene, top: float) -> None:
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
    pen.box(LEFT, base + 3, width, 7, LINE)
    pen.box(LEFT, base + 3, width * scene.now_ms / scene.end_ms, 7, INK)
    free = float(LEFT)
    warm_up = scene.config.warmup_ms / scene.end_ms
    for share, what in sorted([(warm_up, "measured from here"), *scene.events()]):
        x = LEFT + share * width
        pen.box(x - 1, base - height - 4, 2, height + 20, INK)
        half = _written(pen.pygame, what, 20, INK).get_width() / 2
        x = min(max(x, LEFT + half), RIGHT - half)
        if x - half >= free:  # what would overlap is left out; its mark is there
            pen.text(x, base + 26, what, 20, align=0.5)
            free = x + half + 10
