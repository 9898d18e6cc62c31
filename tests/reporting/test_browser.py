"""The report in a browser: readable on a laptop and on a phone, in light and in dark, without the network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing_gym.evaluation.results import ResultFolder
from routing_gym.evaluation.runner import make_jobs, run_jobs
from routing_gym.reporting import figures
from routing_gym.reporting.page import HTML, write_report
from routing_gym.studies.results import read_part
from tests.evaluation.runs import condition, plan_of, router
from tests.reporting.runs import a_figure

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib", reason="needs the extra `plots`")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, to drive a browser")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
LAPTOP, PHONE = (1280, 800), (390, 844)
LEAST_TEXT, LEAST_CONTRAST = 9.0, 4.5

# Every text that can be seen: its size on the screen, its colour, and the colours it stands on.
TEXTS = """() => {
  const clear = /rgba?\\(.*, ?0\\)|transparent|none/;
  const found = [];
  for (const details of document.querySelectorAll("details")) details.open = true;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), inner = element instanceof SVGElement;
    let size = parseFloat(style.fontSize), colour = style.color;
    if (inner) {
      const matrix = element.getScreenCTM();
      size *= Math.hypot(matrix.a, matrix.b);
      colour = style.fill;
    }
    let under = "";
    if (inner) {
      element.scrollIntoView({block: "center", inline: "center"});
      const box = element.getBoundingClientRect();
      const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
      for (const shape of document.elementsFromPoint(x, y)) {
        if (shape instanceof SVGGeometryElement) {
          const fill = getComputedStyle(shape);
          if (!clear.test(fill.fill) && parseFloat(fill.fillOpacity) * parseFloat(fill.opacity) > 0.99) {
            under = fill.fill;
            break;
          }
        }
      }
    }
    for (let parent = element; !under && parent; parent = parent.parentElement) {
      const back = getComputedStyle(parent).backgroundColor;
      if (!clear.test(back)) under = back;
    }
    found.push([text, size, colour, under]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is on the path")
    with playwright.sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report two conditions of the cluster that were really played, with a figure of a wide panel besides."""
    folder = tmp_path_factory.mktemp("report") / "run"
    routers = [
        *map(router, ("random", "round_robin", "least_queue", "adaptive", "clairvoyant", "bound")),
        router("adaptive", "adaptive:c=0.123456", c=0.123456),
    ]
    places = [condition(f"steady, {rate}/s", rate_per_s=rate) for rate in (120.0, 240.0)]
    seeds = [20_000, 20_001, 20_002]
    plan = plan_of(routers, places, seeds, "adaptive")
    plan["part"] = {
        "groups": {"documented": ["round_robin", "least_queue", "adaptive"]},
        "axis": "rate_per_s",
    }
    kept = ResultFolder(folder, plan)
    for result in run_jobs(make_jobs(routers, places, seeds), curves=True):
        kept.add(result)
    kept.finish()
    usual = figures.figures_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "figures_of", lambda *about: [*usual(*about), *a_figure()])
        return write_report([read_part(folder)], folder)[0]


class Shown:
    """The page as it is shown, and what went wrong meanwhile."""

    def __init__(self, browser: Any, file: Path, size: tuple[int, int], scheme: str) -> None:
        self.wrong: list[str] = []
        self.context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, offline=True
        )
        self.page = self.context.new_page()
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", self._requested)
        self.page.goto(file.as_uri())

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.wrong.append(request.url)


@pytest.fixture(
    scope="module", params=[(LAPTOP, "light"), (LAPTOP, "dark"), (PHONE, "light"), (PHONE, "dark")]
)
def shown(request: Any, browser: Any, page_file: Path) -> Iterator[Shown]:
    assert page_file.name == HTML
    one = Shown(browser, page_file, *request.param)
    yield one
    one.context.close()


def test_it_loads_alone_and_without_errors(shown: Shown) -> None:
    assert shown.wrong == []


def test_it_is_no_wider_than_the_screen(shown: Shown) -> None:
    assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_every_picture_has_a_size(shown: Shown) -> None:
    sizes = shown.page.evaluate(
        "[...document.querySelectorAll('svg, img')].map(one => one.getBoundingClientRect())"
        ".map(box => [box.width, box.height])"
    )
    assert len(sizes) > 0 and np.min(sizes) > 0


def test_every_text_is_large_enough_and_stands_out(shown: Shown) -> None:
    texts = shown.page.evaluate(TEXTS)
    assert any("adaptive:c=0.123456" in text for text, *_ in texts)
    small = {text: size for text, size, *_ in texts if size < LEAST_TEXT}
    faint = {
        text: (colour, under, contrast(colour, under))
        for text, _, colour, under in texts
        if contrast(colour, under) < LEAST_CONTRAST
    }
    assert not small
    assert not faint


def test_panels_stand_side_by_side_on_a_laptop_only(shown: Shown) -> None:
    tops = shown.page.evaluate(
        "[...document.querySelectorAll('.panels')].map(row => [...row.children].map(one => one.offsetTop))"
    )
    beside = any(len(set(row)) < len(row) for row in tops)
    assert beside == (shown.page.viewport_size["width"] == LAPTOP[0])


def contrast(colour: str, under: str) -> float:
    """Return the contrast of two opaque colours (WCAG 2, 1.4.3)."""
    light, dark = sorted((_luminance(colour), _luminance(under)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = [float(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
