"""What the pictures of all families share: renderers, colours, a pen on a frame, plain text.

A family says how a row of its state is written and drawn; nothing is remembered between two pictures.
The colours are Okabe and Ito's, which the colour-blind tell apart; shape or text says the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

COLUMNS = 92  # of a text
BARS = "▁▂▃▄▅▆▇█"

RGB = tuple[int, int, int]
INK, GREY, LINE, CARD = (26, 26, 26), (88, 88, 88), (190, 190, 190), (241, 242, 245)
PAPER = (255, 255, 255)
BLUE, GREEN, VERMILION, ORANGE = (0, 114, 178), (0, 158, 115), (213, 94, 0), (230, 159, 0)

WIDTH, LEFT, RIGHT = 960, 24, 936  # of a frame, pixels

Write = Callable[[Any, int, Any], str]
Draw = Callable[[Any, Any, int, Any], "Pen"]
Marks = Iterable[tuple[float, str]]


def make_renderer(
    render_mode: str, fps: int, title: str, write: Write, draw: Draw
) -> TextRenderer | FrameRenderer:
    """Return the renderer of a mode.

    Args:
        render_mode: `ansi`, `rgb_array` or `human`.
        fps: pictures per second that a window shows at most.
        title: of the window.
        write: returns row `e` of a state as text, from (state, e, config).
        draw: returns a pen that has drawn it, from (pygame, state, e, config).

    Raises:
        gymnasium.error.DependencyNotInstalled: frames and windows need pygame.
    """
    if render_mode == "ansi":
        return TextRenderer(write)
    return FrameRenderer(draw, title, fps if render_mode == "human" else None)


class TextRenderer:
    """Renders plain text, 92 columns wide."""

    def __init__(self, write: Write) -> None:
        """Write with `write`; see `make_renderer`."""
        self._write = write

    def render(self, state: Any, e: int, config: Any) -> str:
        """Return row `e` of the state as text."""
        return self._write(state, e, config)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class FrameRenderer:
    """Renders frames, which needs no display, or shows them in a window.

    Args:
        draw: see `make_renderer`.
        title: of the window.
        fps: None for frames; otherwise how many per second the window shows at most.

    Raises:
        gymnasium.error.DependencyNotInstalled: pygame is not installed.
    """

    def __init__(self, draw: Draw, title: str, fps: int | None = None) -> None:
        # It would greet on standard output, which belongs to the user's program.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError as error:
            hint = 'pygame is not installed, run: pip install "routing-gym[render]"'
            raise DependencyNotInstalled(hint) from error
        self.pygame, self.fps = pygame, fps
        self._draw, self._title = draw, title
        self._window: Any = None

    def render(self, state: Any, e: int, config: Any) -> NDArray[Any] | None:
        """Draw row `e` of the state; return uint8 (H, W, 3), both even and fixed by M or N, or None."""
        surface = self._draw(self.pygame, state, e, config).surface
        if self.fps is None:
            pixels = np.frombuffer(self.pygame.image.tobytes(surface, "RGB"), np.uint8)
            return pixels.reshape(surface.get_height(), WIDTH, 3).copy()
        if self._window is None:
            self.pygame.display.init()
            self.pygame.display.set_caption(self._title)
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


@lru_cache(maxsize=1024)
def _written(pygame: Any, text: str, size: int, colour: RGB) -> Any:
    # In pygame's own font, which is the same everywhere. It is loaded anew, as anyone may have
    # called pygame.quit(), and drawn large and shrunk, as hinting distorts its small letters.
    pygame.font.init()
    large = pygame.font.Font(None, 4 * size).render(text, True, colour)
    return pygame.transform.smoothscale(large, (large.get_width() // 4, large.get_height() // 4))


class Pen(NamedTuple):
    """Draws on a frame."""

    pygame: Any
    surface: Any

    @classmethod
    def on_paper(cls, pygame: Any, height: int) -> Pen:
        """Return a pen on an empty frame, at least so high."""
        surface = pygame.Surface((WIDTH, height + height % 2), 0, 32)
        surface.fill(PAPER)
        return cls(pygame, surface)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int,
        colour: RGB = INK,
        align: float = 0,
        room: float = WIDTH,
    ) -> float:
        """Write, centred at height y, from x (align 0) or up to x (1); return the width.

        What is wider than `room` is cut.
        """
        written = _written(self.pygame, text, size, colour)
        while written.get_width() > room and text != "…":
            text = text[: -2 if text.endswith("…") else -1] + "…"
            written = _written(self.pygame, text, size, colour)
        width, height = written.get_size()
        self.surface.blit(written, (round(x - align * width), round(y - height / 2)))
        return float(width)

    def box(self, x: float, y: float, w: float, h: float, colour: RGB, line: int = 0) -> None:
        """Draw a box, filled or with a line of so many pixels."""
        rect = (round(x), round(y), round(x + w) - round(x), round(y + h) - round(y))
        self.pygame.draw.rect(self.surface, colour, rect, line)

    def block(self, x: float, base: float, w: float, h: float, marked: bool, colour: RGB = BLUE) -> None:
        """Draw a block that stands for a request: filled, or hollow and vermilion where it is marked."""
        h = max(h, 4)
        self.box(x, base - h, w, h, *((VERMILION, 2) if marked else (colour, 0)))

    def time_bar(self, base: float, height: float, share: float, marks: Marks) -> None:
        """Draw how far an episode is, below a strip of a height, and what happens when."""
        width = RIGHT - LEFT
        self.box(LEFT, base + 3, width, 7, LINE)
        self.box(LEFT, base + 3, width * share, 7, INK)
        free = float(LEFT)
        for when, what in sorted(marks):
            x = LEFT + when * width
            self.box(x - 1, base - height - 4, 2, height + 20, INK)
            half = _written(self.pygame, what, 20, INK).get_width() / 2
            x = min(max(x, LEFT + half), RIGHT - half)
            if x - half >= free:  # what would overlap is left out; its mark is there
                self.text(x, base + 26, what, 20, align=0.5)
                free = x + half + 10


def text_time_bar(share: float, marks: Marks) -> str:
    """Return how far an episode is, and when something happens, as a line of text."""
    width = COLUMNS - 2
    bar = ["=" if k < share * width else "-" for k in range(width)]
    for when, _ in marks:
        bar[min(int(when * width), width - 1)] = "|"
    return f"[{''.join(bar)}]"


def spread(left: str, right: str) -> str:
    """Return a line of text with one part at each end."""
    return f"{left} {right:>{max(COLUMNS - len(left) - 1, 0)}}"


def text_table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Any:
    """Return a plain table; what is too long shortens the last column."""
    from rich.table import Table

    table = Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    return table


def plain_text(*parts: Any) -> str:
    """Return lines of text and tables below each other, without colours or trailing blanks."""
    from rich.console import Console

    console = Console(width=COLUMNS, height=COLUMNS, color_system=None, force_jupyter=False, markup=False)
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"
