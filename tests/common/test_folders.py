"""Folders that appear complete or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from routing_gym.common.folders import replaced


def write(folder: Path, text: str) -> None:
    with replaced(folder) as new:
        (new / "file").write_text(text)


def test_a_folder_is_made_and_replaced_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "some" / "where"
    write(place, "one")
    (place / "left over").touch()
    write(place, "two")
    assert {path.name: path.read_text() for path in place.iterdir()} == {"file": "two"}
    assert [path.name for path in place.parent.iterdir()] == ["where"]


def test_an_error_while_writing_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "place"
    for before in ([], ["file"]):
        with pytest.raises(KeyboardInterrupt), replaced(place) as new:
            (new / "half").touch()
            raise KeyboardInterrupt
        assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
            [*before, *(["place"] if before else [])]
        )
        write(place, "whole")


def test_an_error_while_renaming_brings_back_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    write(place, "old")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(28, "no space left")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        write(place, "new")
    assert (place / "file").read_text() == "old" and list(tmp_path.iterdir()) == [place]
