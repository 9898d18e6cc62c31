"""Drawing: what every family's pictures are made with."""

from __future__ import annotations

import numpy as np
import pytest

from routing_gym.common.drawing import (
    COLUMNS,
    INK,
    LEFT,
    RIGHT,
    WIDTH,
    Pen,
    plain_text,
    spread,
    text_table,
    text_time_bar,
)


@pytest.fixture
def pen():
    pygame = pytest.importorskip("pygame", reason="drawing needs pygame: pip install 'routing-gym[render]'")
    return Pen.on_paper(pygame, 101)


def inked(pen):
    """Return which pixels are not white, (H, W)."""
    pixels = np.frombuffer(pen.pygame.image.tobytes(pen.surface, "RGB"), np.uint8)
    return (pixels.reshape(pen.surface.get_height(), WIDTH, 3) != 255).any(axis=2)


def test_paper_is_white_and_of_even_height(pen):
    assert inked(pen).shape == (102, WIDTH) and not inked(pen).any()


@pytest.mark.parametrize("align", [0, 0.5, 1])
def test_writing_lies_where_it_is_said_to(pen, align):
    width = pen.text(400, 50, "Wide", 30, align=align)
    rows, columns = np.nonzero(inked(pen))
    left = 400 - align * width
    assert left - 1 <= columns.min() <= left + 4 and left + width - 4 <= columns.max() <= left + width
    assert abs((rows.min() + rows.max()) / 2 - 50) < 4


def test_writing_is_cut_to_its_room(pen):
    whole = pen.text(0, 20, "a rather long sentence", 20)
    assert pen.text(0, 40, "a rather long sentence", 20, room=whole) == whole
    widths = [pen.text(0, 60, "a rather long sentence", 20, room=room) for room in (150, 90, 20, 0)]
    assert all(w <= room for w, room in zip(widths[:3], (150, 90, 20), strict=True))
    assert widths[0] > 130 and widths[1] > 70  # no more is cut than must be
    assert pen.text(0, 80, "…", 20) == widths[3]  # something is always left


def test_marks_stand_in_time_and_labels_do_not_overlap(pen):
    pen.time_bar(60, 20, 0.25, [(0.5, "half"), (0.503, "left out"), (0.0, "start"), (1.0, "end")])
    pixels = inked(pen)
    marks = LEFT + np.array([0.0, 0.5, 0.503, 1.0]) * (RIGHT - LEFT)
    assert pixels[40][np.minimum(marks.round().astype(int), WIDTH - 1)].all()
    labels = np.flatnonzero(pixels[80:].any(axis=0))
    assert labels.min() >= LEFT - 1 and labels.max() <= RIGHT + 1
    assert (np.diff(labels) > 100).sum() == 2  # three labels, far apart
    colours = np.frombuffer(pen.pygame.image.tobytes(pen.surface, "RGB"), np.uint8).reshape(102, WIDTH, 3)
    done = (colours[66] == INK).all(axis=1)
    assert done[LEFT + 2 : LEFT + 226].all() and not done[LEFT + 232 : LEFT + 440].any()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_time_bar_of_text_is_filled_up_to_now(share):
    line = text_time_bar(share, [])
    assert len(line) == COLUMNS and line.strip("[]").count("=") == round(share * 90)
    assert "=-" in line or share in (0.0, 1.0)
    marked = text_time_bar(share, [(0.0, "a"), (0.5, "b"), (1.0, "c")])
    assert [k for k, sign in enumerate(marked) if sign == "|"] == [1, 46, 90]


def test_text_is_plain_and_narrow():
    table = text_table(("a", "last"), [("[red]", "x" * 200), ("b", "y")])
    text = plain_text(spread("left", "right"), table, "end  ")
    lines = text.splitlines()
    assert lines[0] == "left" + " " * (COLUMNS - 9) + "right"
    assert lines[1].split() == ["a", "last"] and lines[2].startswith("[red]") and lines[-1] == "end"
    assert max(map(len, lines)) <= COLUMNS and text.endswith("end\n") and "\x1b" not in text
    assert spread("x" * COLUMNS, "y").endswith("x y")
