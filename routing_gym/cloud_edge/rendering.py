"""Pictures of a running episode: text (`ansi`), frames (`rgb_array`) and a window (`human`).

All is read from the state, and nothing written to it. Windows are counted from 1.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from routing_gym.cloud_edge.catalogue import physics_table
from routing_gym.cloud_edge.config import CloudEdgeConfig
from routing_gym.cloud_edge.evaluator import BatchTables, normalise, pair_parts, term_bounds
from routing_gym.cloud_edge.state import NONE, CloudEdgeState
from routing_gym.common import drawing
from routing_gym.common.drawing import (
    BARS,
    BLUE,
    CARD,
    GREEN,
    GREY,
    LEFT,
    LINE,
    ORANGE,
    RIGHT,
    VERMILION,
    FrameRenderer,
    Pen,
    TextRenderer,
)
from routing_gym.common.jit import njit

SHOWN = 24  # destinations drawn or listed; the others are summed up
TERMS = ("quality loss", "cost", "energy", "completion")

# Pixels.
TOP, BOTTOM, ROOM, LEAST, MOST, GAP, TIER_GAP = 184, 112, 330, 24, 40, 4, 10
INDEX, SIGN, NAME, NAME_WIDTH, TIER, OUTSTANDING = 52, 66, 78, 172, 258, 388
BACKLOG, BACKLOG_WIDTH, SECONDS = 404, 110, 556
SENT, SENT_WIDTH, ASSIGNED, ASSIGNED_WIDTH = 594, 160, 790, 138
WIDEST, THIN = 8, 3  # of blocks; thin ones stand without gaps
FIGURE, BAR = (RIGHT - LEFT) // 6, 84
BINS = 114  # of the strip above the time bar


def make_renderer(render_mode: str, fps: int) -> TextRenderer | FrameRenderer:
    """Return the renderer of a mode; see `drawing.make_renderer`."""
    return drawing.make_renderer(render_mode, fps, "Routing Gym: cloud–edge batches", _write, _draw)


class _Block(NamedTuple):
    """A request at a destination: its T_infer, s, and whether an illegal one was chosen for it."""

    infer: float
    illegal: bool


class _Figure(NamedTuple):
    """A number of the header; `share` is what its bar is filled by, where it has one."""

    name: str
    value: str
    more: str
    share: float | None = None


class _Scene:
    """What there is to show of an episode."""

    def __init__(self, state: CloudEdgeState, e: int, config: CloudEdgeConfig) -> None:
        self.row = row = state.rows[e]
        if row["window_s"] == 0.0:
            raise ResetNeeded("there is no episode to render; call reset first")
        self.config, self.destinations = config, state.destinations[e]
        self.physics = physics_table(config.destinations, config.served.hosted)
        self.window, self.window_count = int(row["window"]), int(row["window_count"])
        self.share = self.window / self.window_count  # of the episode that is over
        self.requests = state.requests[e, : row["next_request"]]
        self.windows = state.windows[e, : self.window]
        self.filled = np.flatnonzero(self.windows["requests"])
        self.up = state.paths["up"][e, min(self.window, self.window_count - 1)] != 0
        self.cloud = self.physics["is_cloud"] != 0
        count = len(self.destinations)
        # One tier after the other; a node's destinations stand together as they are.
        self.order = sorted(range(min(count, SHOWN)), key=lambda d: not self.cloud[d])

        self.sent: list[list[_Block]] = [[] for _ in range(count)]
        self.assigned: list[list[_Block]] = [[] for _ in range(count)]
        self.normalised = self._settle(state, e) if len(self.filled) else np.zeros(4)
        slots, walked = state.slots[e, : row["batch"]], int(row["position"])
        for i in np.sort(slots["order"][:walked]):
            d, r = slots["choice"][i], slots["request"][i]
            infer, *_ = pair_parts(self.physics[d], *self._size(r), 0.0)
            self.assigned[d].append(_Block(infer, self._illegal(r)))
        self.batch, self.to_assign = slots["request"], slots["request"][slots["order"][walked:]]

        lanes = (*self.sent, *self.assigned)
        self.longest = max((block.infer for lane in lanes for block in lane), default=0.0)
        self.most = max(map(len, lanes))
        d = self.destinations
        # As the router is shown it, with what is assigned so far.
        self.load = d["shown"] + np.maximum(
            d["predicted_longest"], d["predicted_work"] / self.physics["speedup"]
        )
        self.scale_s = _round_up(max(d["backlog"].max(), self.load.max(), float(row["window_s"])))

    def _size(self, r: int) -> tuple[float, float]:
        """Return the tokens of a request, and of its answer as predicted."""
        return float(self.requests["input"][r]), float(self.requests["predicted_output"][r])

    def _illegal(self, r: int) -> bool:
        return bool(self.requests["invalid"][r])

    def _settle(self, state: CloudEdgeState, e: int) -> NDArray[np.float64]:
        """Work out the last batch again; return its terms within their bounds, (4,)."""
        window = self.filled[-1]
        batch, path = np.flatnonzero(self.requests["window"] == window), state.paths[e, window]
        edge_only = self.requests["edge_only"][batch, None] != 0
        legal = (path["up"] != 0) & ~(edge_only & self.cloud)
        loss, cost, energy, infer, transfer = np.empty((5, *legal.shape))
        speedup, weights = self.physics["speedup"].copy(), self.row["weights"].copy()
        idle = np.zeros(len(speedup))
        tables = BatchTables(loss, cost, energy, infer, transfer, legal, idle, speedup, weights)
        _fill(batch, self.requests, self.physics, state.pairs[e], path, tables)
        for i, r in enumerate(batch.tolist()):
            d = self.requests["destination"][r]
            self.sent[d].append(_Block(float(infer[i, d]), self._illegal(r)))
        return normalise(self.windows["terms"][window], term_bounds(tables))

    def size(self, block: _Block) -> float:
        return block.infer / self.longest

    def tier(self, d: int) -> str:
        return ("cloud" if self.cloud[d] else "edge") + ("" if self.up[d] else " DOWN")

    def condition(self) -> str:
        config = self.config
        if config.requests is not None:
            arrivals = [f"{config.requests} requests a window"]
        else:
            arrivals = [Path(config.trace).name] if config.trace else []
            arrivals += [] if config.rate_per_s is None else [f"{config.rate_per_s:g} requests/s"]
        paid = "" if self.row["on_actual"] else " · paid as predicted"
        return f"{' at '.join(arrivals)} · at most {config.max_requests} a batch{paid}"

    def position(self) -> tuple[str, str]:
        return f"{min(self.window + 1, self.window_count)}", f"of {self.window_count}"

    def last(self) -> str:
        return f"window {self.filled[-1] + 1}" if len(self.filled) else "none yet"

    def figures(self) -> list[_Figure]:
        """Return J of the last batch, its mean so far, and the last batch's terms, as they were."""
        filled = self.windows[self.filled]
        figures = []
        for name, windows in (
            (f"J, {self.last()}", filled[-1:]),
            (f"mean J, {_many(len(filled), 'batch', 'batches')}", filled),
        ):
            if len(windows):
                actual, predicted = windows["objective"].mean(), windows["objective_predicted"].mean()
                figures.append(_Figure(name, _short(actual), f"predicted {_short(predicted)}"))
            else:
                figures.append(_Figure(name, "–", ""))
        values = ["–"] * 4
        if len(filled):
            loss, cost, energy, completion = filled["terms"][-1]
            values = [f"{loss:.3f}", f"${cost:.3g}", _joules(energy), f"{_seconds(completion)} s"]
        for name, weight, value, share in zip(
            TERMS, self.row["weights"], values, self.normalised, strict=True
        ):
            more = _short(share) if len(filled) else ""
            figures.append(_Figure(f"{name} ×{weight:.2g}", value, more, float(share)))
        return figures

    def coming(self) -> tuple[str, str]:
        """Say what is to be assigned, and who waits for a later window."""
        coming = "none, the episode is over" if self.row["done"] else "none, the batch is empty"
        if len(self.to_assign):
            r = self.to_assign[0]
            tokens = "{:.0f} tokens in, about {:.0f} out".format(*self._size(r))
            kept = np.count_nonzero(self.requests["edge_only"][self.to_assign])
            edge = f" · {kept} edge-only" if kept else ""
            coming = f"{len(self.to_assign)} of {len(self.batch)}{edge} · longest #{r}: {tokens}"
        left = self.requests["window"] == NONE
        left[self.batch] = False
        somewhere = (self.up & ~self.cloud).any() | (self.up.any() & (self.requests["edge_only"] == 0))
        stranded = np.count_nonzero(left & ~somewhere)
        return coming, f"{left.sum()}" + (f", {stranded} with nowhere to go" if stranded else "")

    def others(self) -> list[str]:
        """Sum up the destinations that are not shown, a line for each tier."""
        lines = []
        for where, tier in (("in the cloud", self.cloud), ("at the edge", ~self.cloud)):
            rest = SHOWN + np.flatnonzero(tier[SHOWN:])
            if len(rest):
                d = self.destinations[rest]
                sent, assigned = (sum(len(lanes[k]) for k in rest) for lanes in (self.sent, self.assigned))
                lines.append(
                    f"+ {len(rest)} more {where}: {np.count_nonzero(~self.up[rest])} down, "
                    f"{d['outstanding'].sum()} outstanding, backlog up to {_seconds(d['backlog'].max())} s, "
                    f"{sent} sent, {assigned} assigned"
                )
        return lines

    def outages(self) -> list[tuple[float, str]]:
        """Return when scheduled outages begin and end, as shares of the episode, and what they are."""
        marks = []
        for outage in self.config.outages:
            first, end = outage.window, outage.window + outage.windows
            marks += [(first / self.window_count, f"{outage.node} down")]
            marks += [(end / self.window_count, f"{outage.node} back")]
        return [mark for mark in marks if mark[0] < 1.0]


@njit
def _fill(batch: Any, requests: Any, physics: Any, pairs: Any, path: Any, tables: BatchTables) -> None:
    """Write what each request of a batch really takes at each destination."""
    for i in range(len(batch)):
        r = batch[i]
        for d in range(len(physics)):
            pair = pairs[r, physics[d].model]
            infer, transfer, cost, energy = pair_parts(
                physics[d], requests[r].input, float(pair.output), path[d].rtt_s
            )
            tables.loss[i, d] = 1.0 - pair.quality
            tables.cost[i, d], tables.energy[i, d] = cost, energy
            tables.infer[i, d], tables.transfer[i, d] = infer, transfer


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.3g}"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _joules(value: float) -> str:
    return f"{value:.4g} J" if value < 10_000 else f"{value / 1000:.4g} kJ"


def _round_up(value: float) -> float:
    """Return the least of …, 1, 2, 5, 10, … that is not below a value above 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= value)


def _bars(scene: _Scene, blocks: list[_Block]) -> str:
    drawn = ["x" if block.illegal else BARS[int(7 * scene.size(block))] for block in blocks[:9]]
    return f"{len(blocks):>3} {''.join(drawn)}" + ("…" if len(blocks) > 9 else "")


def _write(state: CloudEdgeState, e: int, config: CloudEdgeConfig) -> str:
    scene = _Scene(state, e, config)
    rows = []
    for k in scene.order:
        d, name = scene.destinations[k], config.destinations[k].name
        filled = "#" * round(6 * d["backlog"] / scene.scale_s)
        rows.append(
            (
                f"{k:>2} {name if len(name) < 22 else name[:20] + '…'}",
                scene.tier(k),
                f"{d['outstanding']:>4}",
                f"{filled:.<6} {_seconds(d['backlog'])}/{_seconds(d['shown'])}",
                _bars(scene, scene.sent[k]),
                _bars(scene, scene.assigned[k]),
            )
        )
    marks, (coming, waiting) = scene.outages(), scene.coming()
    times = [f"{what} at {share * scene.window_count * config.window_s:g} s" for share, what in marks]
    figures = []
    for f in scene.figures():
        bar = "" if f.share is None else f"{'#' * round(20 * min(f.share, 1.0)):.<20} "
        figures.append(f"{f.name:<24}{f.value:<10}{bar}{f.more}")
    columns = (" # destination", "tier", "open", f"backlog, 0–{scene.scale_s:g} s", scene.last(), "assigned")
    return drawing.plain_text(
        drawing.spread(scene.condition(), "window {} {}".format(*scene.position())),
        drawing.text_time_bar(scene.share, marks),
        f"outages: {', '.join(times) or 'none'}\n",
        *figures,
        "",
        drawing.text_table(columns, rows),
        *scene.others(),
        f"\nto assign: {coming}\nwaiting: {waiting}",
        "open: requests that have not finished; backlog: as it is / as the router is shown it",
        f"a bar is a request, the highest takes {_seconds(scene.longest)} s; x: an illegal one was chosen",
    )


def _draw(pygame: Any, state: CloudEdgeState, e: int, config: CloudEdgeConfig) -> Pen:
    scene = _Scene(state, e, config)
    count, others = len(scene.destinations), scene.others()
    height = min(max(ROOM // count, LEAST), MOST)
    tops, top, before = [], TOP, scene.order[0]
    for d in scene.order:
        if scene.cloud[d] != scene.cloud[before]:
            top += TIER_GAP
        elif config.destinations[d].node != config.destinations[before].node:
            top += GAP
        tops.append(top)
        top, before = top + height, d
    total = top + LEAST * len(others) + BOTTOM
    pen = Pen.on_paper(pygame, total)
    _draw_header(pen, scene)
    for d, y in zip(scene.order, tops, strict=True):
        _draw_lane(pen, scene, d, y, height)
    for k, line in enumerate(others):
        pen.text(NAME, top + 13 + k * LEAST, line, 20, GREY)
    _draw_time(pen, scene, total - BOTTOM + 14)
    return pen


def _draw_header(pen: Pen, scene: _Scene) -> None:
    number, total = scene.position()
    x = RIGHT - pen.text(RIGHT, 33, total, 23, GREY, align=1)
    x -= 7 + pen.text(x - 7, 30, number, 38, align=1)
    x -= 14 + pen.text(x - 7, 33, "window", 23, GREY, align=1)
    free = LEFT + 14 + pen.text(LEFT, 30, _many(len(scene.destinations), "destination"), 34)
    pen.text(free, 33, scene.condition(), 22, GREY, room=x - free)
    for k, figure in enumerate(scene.figures()):
        x = LEFT + k * FIGURE
        pen.text(x, 64, figure.name, 19, GREY, room=FIGURE - 8)
        pen.text(x, 87, figure.value, 30, room=FIGURE - 8)
        if figure.share is None:
            pen.text(x, 111, figure.more, 19, GREY)
        else:
            pen.box(x, 107, BAR, 8, LINE)
            pen.box(x, 107, BAR * min(figure.share, 1.0), 8, BLUE if figure.share <= 1 else VERMILION)
            pen.text(x + BAR + 6, 111, figure.more, 19)
    coming, waiting = scene.coming()
    x = RIGHT - pen.text(RIGHT, 138, f"waiting  {waiting}", 20, align=1)
    pen.text(LEFT, 138, f"to assign  {coming}", 20, room=x - LEFT - 14)

    pen.text(NAME, 170, "destination", 18, GREY)
    pen.text(TIER, 170, "tier", 18, GREY)
    pen.text(OUTSTANDING, 170, "outstanding", 18, GREY, align=1)
    pen.text(BACKLOG, 170, f"backlog / shown, 0–{scene.scale_s:g} s", 18, GREY, room=SENT - BACKLOG - 8)
    sent = f"{scene.last()}, highest {_seconds(scene.longest)} s"
    pen.text(SENT, 170, sent, 18, GREY, room=ASSIGNED - SENT - 8)
    x = ASSIGNED + pen.text(ASSIGNED, 170, "assigned", 18, GREY) + 16
    pen.block(x, 176, 8, 12, marked=True)
    pen.text(x + 13, 170, "illegal", 18, GREY)


def _draw_lane(pen: Pen, scene: _Scene, k: int, top: float, height: float) -> None:
    d, up, middle = scene.destinations[k], bool(scene.up[k]), top + height / 2
    pen.box(LEFT, top, RIGHT - LEFT, height - 1, *((CARD, 0) if up else (VERMILION, 2)))
    pen.text(INDEX, middle, f"{k}", 20, GREY, align=1)
    pen.text(SIGN, middle, "•" if up else "X", 28 if up else 22, GREEN if up else VERMILION, align=0.5)
    pen.text(NAME, middle, scene.config.destinations[k].name, 20, room=NAME_WIDTH)
    pen.text(TIER, middle, scene.tier(k), 20)
    pen.text(OUTSTANDING, middle, f"{d['outstanding']}", 20, align=1)

    scale = BACKLOG_WIDTH / scene.scale_s
    pen.box(BACKLOG, middle - 7, BACKLOG_WIDTH, 8, LINE)
    pen.box(BACKLOG, middle - 7, scale * d["backlog"], 8, BLUE)
    pen.box(BACKLOG, middle + 3, BACKLOG_WIDTH, 4, LINE)
    pen.box(BACKLOG, middle + 3, scale * scene.load[k], 4, ORANGE)
    pen.box(BACKLOG, middle + 3, scale * d["shown"], 4, GREY)
    pen.text(SECONDS, middle, _seconds(d["backlog"]), 20, align=1)

    for x, width, blocks, colour in (
        (SENT, SENT_WIDTH, scene.sent[k], BLUE),
        (ASSIGNED, ASSIGNED_WIDTH, scene.assigned[k], ORANGE),
    ):
        if blocks:
            pen.text(x - 6, middle, f"{len(blocks)}", 20, align=1)
        pitch = min(width / max(scene.most, 1), WIDEST)
        for j, block in enumerate(blocks):
            left, right = round(x + j * pitch), round(x + (j + 1) * pitch)
            wide = right - left - (pitch >= THIN)
            high = max((height - 7) * scene.size(block), 7.0 * block.illegal)  # or its hollow would not show
            pen.block(left, top + height - 4, wide, high, block.illegal, colour)


def _draw_time(pen: Pen, scene: _Scene, top: float) -> None:
    width, height, bins = RIGHT - LEFT, 40, min(BINS, scene.window_count)
    paid = scene.windows["objective" if scene.row["on_actual"] else "objective_predicted"][scene.filled]
    places = scene.filled * bins // scene.window_count
    batches = np.bincount(places, minlength=bins)
    mean = np.bincount(places, paid, bins) / np.maximum(batches, 1)
    full = _round_up(max(mean.max(), 0.1))
    pen.text(LEFT, top, f"J paid by window, 0–{full:g}", 18, GREY)
    base, step = top + 10 + height, width / bins
    pen.box(LEFT, base - height, width, height, CARD)
    for k in np.flatnonzero(batches):
        high = max(height * mean[k] / full, 1.0)
        pen.box(LEFT + k * step, base - high, step - 1, high, BLUE)
    pen.time_bar(base, height, scene.share, scene.outages())
