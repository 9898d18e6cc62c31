"""Saved stores and predictors: the same to the last bit, and any damage is refused, saying what differs."""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing_gym.quality import folder as module
from routing_gym.quality.folder import (
    ARRAYS,
    EVALUATION,
    EVALUATION_FILES,
    INDEX,
    MANIFEST,
    Contents,
    FolderError,
    check_free,
    load,
    save,
)
from routing_gym.quality.store import KIND, RetrievalStore

faiss = pytest.importorskip("faiss", reason="FAISS is not installed")

NAN = math.nan
FILES = (INDEX, ARRAYS, MANIFEST)
# The same folders serve all examples: each one puts back what it changes.
ONE_FOLDER = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def small_store(models: int = 2, prompts: int = 9, dimension: int = 3) -> RetrievalStore:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((prompts, dimension))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[0] = NAN
    scores, tokens = rng.random((prompts, models)), rng.integers(1, 9, (prompts, models)).astype(float)
    scores[1, 0] = tokens[2, 1] = NAN
    store = RetrievalStore([f"model {k}" for k in range(models)], neighbours=3, threshold=0.25)
    store.add([f"prömpt {row}" for row in range(prompts)], vectors, scores, tokens)
    return store


def queries(dimension: int = 3) -> Any:
    vectors = np.random.default_rng(1).standard_normal((40, dimension))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_store().save(tmp_path / "saved")
    return tmp_path / "saved"


def signed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as if it had been written so, hashes of the files included."""
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"] = {name: module._fingerprint(folder / name) for name in (INDEX, ARRAYS)}
    change(manifest)
    (folder / MANIFEST).write_bytes(module._rendered(manifest))


def repacked(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the arrays as if they had been written so."""
    with np.load(folder / ARRAYS) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(folder / ARRAYS, **arrays)
    signed(folder, lambda manifest: None)


# Round trips


def test_a_store_comes_back_to_the_last_bit(folder: Path) -> None:
    store, again = small_store(), RetrievalStore.load(folder)
    for found, due in zip(again.predict(queries()), store.predict(queries()), strict=True):
        np.testing.assert_array_equal(found, due, strict=True)
    for name in ("scores", "tokens"):
        assert getattr(again, name).tobytes() == getattr(store, name).tobytes()
    assert (again.ids, again.models) == (store.ids, store.models)
    assert (again.neighbours, again.threshold, len(again)) == (3, 0.25, 9)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_a_saved_store_can_be_saved_and_grown_like_the_first(folder: Path, tmp_path: Path) -> None:
    store, again = small_store(), RetrievalStore.load(folder)
    for one in (store, again):
        one.add(["new"], [[0, 0, 1]], [[1, 0]], [[NAN, 3]])
    again.save(tmp_path / "again")
    due = store.predict(queries())
    for one in (again, RetrievalStore.load(tmp_path / "again")):
        np.testing.assert_array_equal(one.predict(queries()).scores, due.scores)
    with pytest.raises(ValueError, match="'new' is there already"):
        again.add(["new"], [[0, 0, 1]], [[1, 0]], [[NAN, 3]])


def test_an_approximate_index_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    store = small_store(prompts=4200, dimension=8)
    store.save(tmp_path / "saved")
    again = RetrievalStore.load(tmp_path / "saved")
    assert not store.exact and not again.exact
    for found, due in zip(again.predict(queries(8)), store.predict(queries(8)), strict=True):
        np.testing.assert_array_equal(found, due, strict=True)
    more = np.random.default_rng(2).standard_normal((5000, 8))
    more /= np.linalg.norm(more, axis=1, keepdims=True)
    for first, last, trained_on in ((0, 10, 4199), (10, 5000, 9199)):  # the index stays, and is trained anew
        ids, ones = [str(row) for row in range(first, last)], np.ones((last - first, 2))
        for one in (store, again):
            one.add(ids, more[first:last], ones, ones)
            assert one.contents().details["trained_on"] == trained_on
        np.testing.assert_array_equal(again.predict(queries(8)).scores, store.predict(queries(8)).scores)


def test_a_store_without_embeddings_comes_back(tmp_path: Path) -> None:
    store = RetrievalStore(["a"], neighbours=1, threshold=0.0)
    store.save(tmp_path / "empty")
    assert len(RetrievalStore.load(tmp_path / "empty")) == 0
    store.add(["x"], [[NAN, NAN]], [[0.5]], [[NAN]])
    store.save(tmp_path / "means")
    again = RetrievalStore.load(tmp_path / "means")
    assert again.predict([[1, 0]]).scores.tolist() == [[0.5]] and again.ids == ("x",)
    again.add(["y"], [[1, 0, 0]], [[1]], [[2]])  # no dimension was settled yet
    assert again.predict([[1, 0, 0]]).found.tolist() == [1]


def test_the_manifest_is_for_people(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    assert list(manifest) == ["format", "kind", "versions", "details", "files", "sha256"]
    assert list(manifest["versions"]) == ["routing-gym", "faiss", "numpy"]
    assert manifest["details"]["models"] == ["model 0", "model 1"]
    assert manifest["details"]["prompts"] == 9 and manifest["details"]["indexed"] == 8
    assert {"bytes", "sha256"} == set(manifest["files"][INDEX])


# Damage


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FolderError, match=re.escape(f"{name} is missing")):
        RetrievalStore.load(folder)


@ONE_FOLDER
@given(data=st.data(), name=st.sampled_from(FILES))
def test_a_truncated_file(folder: Path, name: str, data: st.DataObject) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(FolderError, match=re.escape(name)):
        RetrievalStore.load(folder)
    (folder / name).write_bytes(whole)
    RetrievalStore.load(folder)


@ONE_FOLDER
@given(data=st.data(), name=st.sampled_from(FILES), change=st.integers(1, 255))
def test_a_flipped_byte(folder: Path, name: str, data: st.DataObject, change: int) -> None:
    whole = (folder / name).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
    with pytest.raises(FolderError, match=re.escape(name)):
        RetrievalStore.load(folder)
    (folder / name).write_bytes(whole)


def test_what_differs_is_said(folder: Path) -> None:
    whole = (folder / ARRAYS).read_bytes()
    (folder / ARRAYS).write_bytes(whole + b"\0")
    with pytest.raises(
        FolderError, match=f"arrays.npz is damaged: bytes = {len(whole) + 1}; .* {len(whole)}$"
    ):
        RetrievalStore.load(folder)
    (folder / ARRAYS).write_bytes(bytes(len(whole)))
    with pytest.raises(
        FolderError, match=r"damaged: sha256 = [0-9a-f]{64}; manifest.json says [0-9a-f]{64}$"
    ):
        RetrievalStore.load(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"threshold": 0.25', '"threshold": 0.5'),
        ('"model 1"', '"model 2"'),
        ('"prompts": 9', '"prompts": 8'),
        ('"sha256": "', '"sha256": "0'),
        ('"details"', '"Details"'),
        ("\n", "\r\n"),
    ],
)
def test_an_edited_manifest(folder: Path, old: str, new: str) -> None:
    text = (folder / MANIFEST).read_text()
    assert old in text
    (folder / MANIFEST).write_bytes(text.replace(old, new).encode())
    with pytest.raises(FolderError, match=r"manifest\.json: was changed"):
        RetrievalStore.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "\xff"])
def test_a_manifest_that_is_no_manifest(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(FolderError, match=r"manifest\.json: (is not valid JSON|must hold an object)"):
        RetrievalStore.load(folder)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format(folder: Path, version: Any) -> None:
    signed(folder, lambda manifest: manifest.update(format=version))
    message = f"format = {version!r}; this version of routing-gym reads format 1"
    with pytest.raises(FolderError, match=re.escape(message)):
        RetrievalStore.load(folder)


def test_another_kind(folder: Path) -> None:
    with pytest.raises(FolderError, match="kind = 'retrieval store'; expected 'quality predictor'"):
        load(folder, "quality predictor")


FINGERPRINT = {"bytes": 1, "sha256": ""}


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("kind", None, "kind = None; expected 'retrieval store'"),
        ("details", None, "details = None; must be an object"),
        ("details", [1], "details = [1]; must be an object"),
        ("versions", None, "versions = None; must be an object"),
        ("files", None, "files = None; must be an object"),
        ("files", "x", "files = 'x'; must be an object"),
        ("files", {}, "files are none; must be index.faiss, arrays.npz"),
        ("files", {INDEX: FINGERPRINT}, "files are index.faiss; must be"),
        (
            "files",
            {INDEX: FINGERPRINT, ARRAYS: FINGERPRINT, "../x": FINGERPRINT},
            "arrays.npz, ../x; must be",
        ),
        ("files", {INDEX: FINGERPRINT, ARRAYS: 7}, "files.arrays.npz = 7; must be an object of bytes and"),
        ("files", {INDEX: {}, ARRAYS: FINGERPRINT}, "files.index.faiss = {}; must be an object of bytes and"),
    ],
)
def test_a_manifest_that_lacks_a_part(folder: Path, part: str, value: Any, told: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        del manifest[part]
        if value is not None:
            manifest[part] = value

    signed(folder, change)
    with pytest.raises(FolderError, match=re.escape(f"{folder / MANIFEST}: ") + f".*{re.escape(told)}"):
        RetrievalStore.load(folder)


def test_files_of_another_store(folder: Path, tmp_path: Path) -> None:
    small_store(models=3).save(tmp_path / "other")
    for name in (INDEX, ARRAYS):
        whole = (folder / name).read_bytes()
        shutil.copy(tmp_path / "other" / name, folder / name)
        if name == INDEX:  # the same prompts
            assert (folder / name).read_bytes() == whole
            continue
        with pytest.raises(FolderError, match=f"{name} is damaged"):
            RetrievalStore.load(folder)


@pytest.mark.parametrize(
    ("details", "message"),
    [
        ({"models": ["one"]}, "arrays.npz: scores has shape (9, 2); it must be (9, 1), after manifest.json"),
        ({"models": ["a", "b", "c"]}, "scores has shape (9, 2); it must be (9, 3)"),
        ({"prompts": 10}, "ids has shape (9,); it must be (10,)"),
        ({"indexed": 9}, "indexed has shape (8,); it must be (9,)"),
        ({"dimension": 4}, "index.faiss has 3 dimensions; manifest.json says 4"),
    ],
)
def test_sizes_that_do_not_fit(folder: Path, details: dict[str, Any], message: str) -> None:
    signed(folder, lambda manifest: manifest["details"].update(details))
    with pytest.raises(FolderError, match=re.escape(message)):
        RetrievalStore.load(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("neighbours", None, "details lack 'neighbours'"),
        ("models", None, "details lack 'models'"),
        ("threshold", None, "details lack 'threshold'"),
        ("trained_on", None, "details lack 'trained_on'"),
        ("neighbours", 2.5, "neighbours = 2.5: must be a whole number"),
        ("neighbours", 0, "neighbours = 0: must be at least 1"),
        ("prompts", "9", "prompts = '9': must be a whole number"),
        ("threshold", "x", "not supported between"),
        ("threshold", 2, "threshold = 2: must be a cosine"),
        ("models", "ab", "models = 'ab': must be a list of names"),
        ("models", [1, 2], "models = [1, 2]: must be a list of names"),
        ("models", ["a", "a"], "must be one or more distinct names"),
        ("trained_on", 8, "index.faiss is exact; manifest.json says trained_on = 8"),
    ],
)
def test_details_that_are_missing_or_wrong(folder: Path, name: str, value: Any, message: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        del manifest["details"][name]
        if value is not None:
            manifest["details"][name] = value

    signed(folder, change)
    with pytest.raises(FolderError, match=re.escape(f"{folder}: ") + f".*{re.escape(message)}"):
        RetrievalStore.load(folder)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("scores", (0, 1), 7.0, "scores holds 7; must be from 0 to 1"),
        ("scores", (0, 1), -0.5, "scores holds -0.5; must be from 0 to 1"),
        ("tokens", (0, 1), -1.0, "tokens holds -1; must be from 0 to"),
        ("tokens", (0, 1), math.inf, "tokens holds inf; must be from 0 to"),
        ("indexed", 2, 10**6, "indexed holds 1e+06; must be from 0 to 8"),
        ("indexed", 2, -1, "indexed holds -1; must be from 0 to 8"),
        ("ids", 3, "prömpt 1", "ids holds an id twice"),
    ],
)
def test_arrays_that_hold_what_they_must_not(
    folder: Path, name: str, place: Any, value: Any, message: str
) -> None:
    repacked(folder, lambda arrays: arrays[name].__setitem__(place, value))
    with pytest.raises(FolderError, match=re.escape(f"{folder}: {ARRAYS}: {message}")):
        RetrievalStore.load(folder)


@pytest.mark.parametrize(("name", "kind"), [("scores", "U"), ("ids", "i"), ("indexed", "f")])
def test_arrays_of_another_kind(folder: Path, name: str, kind: str) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = np.zeros(arrays[name].shape, {"U": "U3", "i": int, "f": float}[kind])

    repacked(folder, change)
    with pytest.raises(FolderError, match=f"{name} holds .*; its kind must be '[Uif]'"):
        RetrievalStore.load(folder)


def test_an_index_and_arrays_that_do_not_fit(folder: Path) -> None:
    index = faiss.read_index(str(folder / INDEX))
    index.add(np.ones((1, 3), np.float32))
    faiss.write_index(index, str(folder / INDEX))
    signed(folder, lambda manifest: None)
    with pytest.raises(FolderError, match=r"index.faiss has 9 vectors; manifest.json says 8"):
        RetrievalStore.load(folder)
    repacked(folder, lambda arrays: arrays.pop("tokens"))
    with pytest.raises(FolderError, match=r"tokens has shape none; it must be \(9, 2\)"):
        RetrievalStore.load(folder)


def test_an_index_that_faiss_cannot_read(folder: Path) -> None:
    (folder / INDEX).write_bytes(b"nonsense")
    signed(folder, lambda manifest: manifest["versions"].update(faiss="9.9"))
    with pytest.raises(FolderError, match=r"index.faiss, written by FAISS 9.9, cannot be read by FAISS"):
        RetrievalStore.load(folder)


class Bomb:
    """An object whose pickle runs something when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


def test_no_pickle_is_loaded(folder: Path) -> None:
    repacked(folder, lambda arrays: arrays.update(scores=np.array([Bomb()], object)))
    with pytest.raises(FolderError, match=r"arrays.npz cannot be read: .*allow_pickle=False"):
        RetrievalStore.load(folder)
    for data in (pickle.dumps(Bomb()), b"PK\3\4 no archive"):
        (folder / ARRAYS).write_bytes(data)
        signed(folder, lambda manifest: None)
        with pytest.raises(FolderError, match=r"arrays.npz cannot be read"):
            RetrievalStore.load(folder)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="there is no such folder"):
        RetrievalStore.load(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="there is no such folder"):
        RetrievalStore.load(tmp_path / "file")


# Writing


def test_a_folder_is_replaced_only_when_asked(folder: Path) -> None:
    other = small_store(models=4)
    with pytest.raises(FolderError, match="is there already; overwrite replaces"):
        other.save(folder)
    assert len(RetrievalStore.load(folder).models) == 2
    other.save(folder, overwrite=True)
    assert len(RetrievalStore.load(folder).models) == 4
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_what_was_not_saved_here_is_never_replaced(folder: Path) -> None:
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(FolderError, match=r"holds thesis.tex, which no saved folder does"):
        small_store().save(folder, overwrite=True)
    with pytest.raises(FolderError, match=r"holds thesis.tex"):
        small_store().save(folder / "thesis.tex", overwrite=True)
    assert (folder / "thesis.tex").read_text() == "years of work"


def evaluated(folder: Path, *more: str) -> None:
    """Put figures into a saved folder, and perhaps more."""
    (folder / EVALUATION).mkdir()
    for name in (*EVALUATION_FILES, *more):
        (folder / EVALUATION / name).write_text("figures")


def test_figures_are_replaced_with_the_folder_that_they_are_of(folder: Path) -> None:
    evaluated(folder)
    check_free(folder, overwrite=True)
    small_store(models=4).save(folder, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert len(RetrievalStore.load(folder).models) == 4


def test_figures_stay_where_the_folder_is_not_replaced(folder: Path) -> None:
    evaluated(folder, "notes.txt")
    for save_or_check in (
        check_free,
        lambda place, overwrite: small_store().save(place, overwrite=overwrite),
    ):
        with pytest.raises(FolderError, match=r"holds evaluation/notes.txt, which no saved folder does"):
            save_or_check(folder, overwrite=True)
    assert len(list((folder / EVALUATION).iterdir())) == len(EVALUATION_FILES) + 1
    shutil.rmtree(folder / EVALUATION)
    (folder / EVALUATION).write_text("no folder")
    with pytest.raises(FolderError, match="holds evaluation, which no saved folder does"):
        check_free(folder, overwrite=True)
    with pytest.raises(FolderError, match="is there already"):
        check_free(folder, overwrite=False)
    check_free(folder / "none", overwrite=False)


def test_parents_are_made_and_an_empty_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_store().save(tmp_path / "a" / "b" / "c")
    (tmp_path / "empty").mkdir()
    small_store().save(tmp_path / "empty", overwrite=True)
    monkeypatch.chdir(tmp_path)
    small_store().save("relative")
    for path in ("a/b/c", "empty", "relative"):
        assert len(RetrievalStore.load(path)) == 9


@pytest.mark.parametrize("fails", ["writing", "renaming"])
def test_a_failure_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    contents = small_store(models=4).contents()
    evaluated(folder)
    if fails == "writing":
        contents = Contents({"not JSON": {1, 2}}, contents.arrays, contents.index)
        error: type[Exception] = TypeError
    else:
        real, error = Path.rename, OSError

        def rename(self: Path, target: Path) -> Path:
            if self.name == "new":
                raise OSError("no space left")
            return real(self, target)

        monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(error):
        save(folder, KIND, contents, overwrite=True)
    monkeypatch.undo()
    assert len(RetrievalStore.load(folder).models) == 2
    assert len(list((folder / EVALUATION).iterdir())) == len(EVALUATION_FILES)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_saved_arrays_have_no_objects(folder: Path) -> None:
    with np.load(io.BytesIO((folder / ARRAYS).read_bytes()), allow_pickle=False) as file:
        assert {file[name].dtype.kind for name in file.files} <= {"f", "i", "U"}
