"""Folders that appear complete or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Give a new, empty folder to write into; when that is done it takes the place of `folder`.

    It is written beside its place and then renamed. On an error what was there stays, or comes back. The
    parent is made where it is missing.
    """
    place = folder.absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
    try:
        new, old = work / "new", work / "old"
        new.mkdir()
        yield new
        if place.exists():
            place.rename(old)
        try:
            new.rename(place)
        except OSError:
            if old.exists():
                old.rename(place)
            raise
    finally:
        shutil.rmtree(work)
