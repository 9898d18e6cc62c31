"""Reports on disk: one page of HTML, the same in Markdown, and each figure as PNG and CSV."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from routing_gym.evaluation.results import EPISODES, PLAN, ResultsError
from routing_gym.reporting import html, markdown
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.render import csv_of, write_png
from routing_gym.reporting.sections import Section, section_of, slug
from routing_gym.studies.results import STUDY, PartResults, read_parts
from routing_gym.studies.storage import SHARDS

HTML, MARKDOWN, FIGURES = "report.html", "report.md", "figures"


def report(folder: Path, out: Path | None = None, names: Sequence[str] | None = None) -> list[Path]:
    """Write the report of a study's folder, of one of its parts, or of a comparison's folder.

    Args:
        folder: with the results.
        out: where the report goes; by default beside them.
        names: of the parts to report; None takes all.

    Returns:
        The files written.

    Raises:
        ResultsError: there are no results, they lack what a report needs, or there is no such part.
    """
    title, about, parts = read_study(folder, names)
    return write_report(parts, out or folder, title, about)


def read_study(folder: Path, names: Sequence[str] | None = None) -> tuple[str | None, str, list[PartResults]]:
    """Read a folder of results: title and what it is about where it is a study's, and the parts on disk.

    Raises:
        ResultsError: there are no results, the study's description is damaged, or there is no such part.
    """
    if (folder / PLAN).is_file():
        title, about, parts = None, "", read_parts(folder)
    else:
        study = _read_yaml(folder / STUDY) if (folder / STUDY).is_file() else {}
        title, about = study.get("title"), str(study.get("about") or "")
        listed = study.get("parts") or sorted(path.parent.name for path in folder.glob(f"*/{PLAN}"))
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise ResultsError(f"{folder / STUDY}: parts = {listed!r}: must be a list of names")
        begun = [name for name in listed if _begun(folder / name)]
        parts = read_parts(folder, begun)
        if len(begun) < len(listed):
            about += f" Not played yet: {', '.join(name for name in listed if name not in begun)}."
    known = [part.name for part in parts]
    for name in names or ():
        if name not in known:
            raise ResultsError(f"--parts {name}: must be of {', '.join(known)}")
    return title, about.strip(), [part for part in parts if names is None or part.name in names]


def _begun(folder: Path) -> bool:
    return (folder / PLAN).is_file() and ((folder / SHARDS).is_dir() or (folder / EPISODES).is_file())


def _read_yaml(file: Path) -> Mapping[str, Any]:
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ResultsError(f"cannot read {file}: {error}") from error
    if not isinstance(data, dict):
        raise ResultsError(f"{file} must hold a mapping with title, about and parts")
    return data


def write_report(
    parts: Sequence[PartResults], out: Path, title: str | None = None, about: str = ""
) -> list[Path]:
    """Write `report.html`, `report.md` and the figures of parts.

    Without matplotlib there are no figures, and the report says so.

    Args:
        parts: at least one.
        out: the folder, created where missing.
        title: of the report; by default the part's, or the folder's name.
        about: a paragraph below the title.

    Returns:
        The files written.

    Raises:
        ResultsError: results lack what a report needs, or the folder cannot be written.
    """
    sections = [section_of(part) for part in parts]
    title = title or (sections[0].title if len(sections) == 1 else out.resolve().name)
    paragraphs = [about] if about else []
    pictures: dict[str, Path] = {}
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for section in sections:
            for figure in _figures(section):
                (out / FIGURES).mkdir(exist_ok=True)
                name = f"{section.name}-{slug(figure.name)}"
                pictures[name] = Path(FIGURES) / f"{name}.png"
                written += [write_png(figure, out / pictures[name]), out / FIGURES / f"{name}.csv"]
                written[-1].write_text(csv_of(figure), encoding="utf-8")
        texts = {
            HTML: html.page(title, paragraphs, sections),
            MARKDOWN: markdown.page(title, paragraphs, sections, pictures),
        }
        for file, text in texts.items():
            (out / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"cannot write the report to {out}: {error.strerror}") from error
    return [*(out / file for file in texts), *written]


def write_docs(page: Path, name: str, out: Path) -> None:
    """Put what a study came out with into a page of docs, between its markers.

    Its pictures go into a folder of the page's name beside it.

    Args:
        page: with the markers `<!-- study NAME -->` and `<!-- end of study NAME -->`.
        name: of the study.
        out: the study's folder, its report included.

    Raises:
        ResultsError: the page lacks the markers, results lack what a report needs, or the report has no such
            picture although it could be drawn.
    """
    _, about, parts = read_study(out)
    pictures = {}
    for part in parts:
        prefix = f"{slug(part.name)}-"
        for figure in part.part.get("pictures", ()):
            picture = out / FIGURES / f"{prefix}{slug(figure)}.png"
            if picture.is_file():
                pictures[picture.stem] = Path(page.stem) / f"{name}_{picture.name}"
                (page.parent / page.stem).mkdir(exist_ok=True)
                shutil.copyfile(picture, page.parent / pictures[picture.stem])
            elif importlib.util.find_spec("matplotlib") is not None:
                there = sorted((out / FIGURES).glob(f"{prefix}*.png"))
                known = ", ".join(path.stem.removeprefix(prefix) for path in there) or "none"
                raise ResultsError(f"{part.name}: pictures: {figure}: must be of its figures: {known}")
    text = f"{markdown.escaped(about)}\n\n{markdown.section(parts, pictures)}"
    page.write_text(markdown.place(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")


def _figures(section: Section) -> list[Figure]:
    return [block for chapter in section.chapters for block in chapter.blocks if isinstance(block, Figure)]
