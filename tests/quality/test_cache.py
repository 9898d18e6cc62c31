"""The cache of embeddings: nothing is embedded twice, and nothing that was damaged is ever read."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from routing_gym.quality.cache import SHARD, CachedEmbedder, default_cache
from routing_gym.quality.embedding import EmbeddingError

TEXTS = [f"prompt {number}" for number in range(2 * SHARD + 7)]


class Hashing:
    """An embedder that remembers what it was given."""

    def __init__(self, name: str = "hashing", dimension: int = 5) -> None:
        self.name, self.dimension = name, dimension
        self.given: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.given += texts
        return plain(texts, self.dimension)


class Lacking(Exception):
    """Raised where a text is not in the cache."""


class Empty(Hashing):
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise Lacking


def plain(texts: Sequence[str], dimension: int = 5) -> NDArray[np.float32]:
    rows = np.array([list(hashlib.sha512(text.encode()).digest()[:dimension]) for text in texts]) + 1.0
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


lists = st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=12)


@settings(deadline=None)
@given(st.lists(lists, max_size=5))
def test_what_comes_back_is_what_the_embedder_gives_each_text_once(calls: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept, embedder = Hashing(), Hashing()
        cached = CachedEmbedder(kept, Path(folder))
        for texts in calls:
            expected = plain(texts) if texts else np.zeros((0, 5), np.float32)
            # One that stays open and one opened anew: both see what the other wrote.
            for either in (cached, CachedEmbedder(embedder, Path(folder))):
                vectors = either.embed(texts)
                assert vectors.dtype == np.float32
                assert np.array_equal(vectors, expected)
        assert kept.given == list(dict.fromkeys(text for texts in calls for text in texts))
        assert embedder.given == []


def test_embedders_do_not_share(tmp_path: Path) -> None:
    embedders = [Hashing("a/b"), Hashing("a:b"), Hashing("a/b", dimension=4)]
    cached = [CachedEmbedder(embedder, tmp_path) for embedder in embedders]
    assert len({one.folder for one in cached}) == 3
    for one, embedder in zip(cached, embedders, strict=True):
        assert one.folder.parent == tmp_path
        assert (one.name, one.dimension) == (embedder.name, embedder.dimension)
        assert np.array_equal(one.embed(TEXTS[:9]), plain(TEXTS[:9], embedder.dimension))
        assert embedder.given == TEXTS[:9]


def test_progress_counts_texts_that_are_on_disk(tmp_path: Path) -> None:
    def on_disk(opened: CachedEmbedder, text: str) -> bool:
        try:
            return np.array_equal(opened.embed([text]), plain([text]))
        except Lacking:
            return False

    def progress(done: int) -> None:
        opened = CachedEmbedder(Empty(), tmp_path)
        seen.append((done, sum(on_disk(opened, text) for text in texts)))

    seen: list[tuple[int, int]] = []
    texts = [TEXTS[0], *TEXTS, TEXTS[9], TEXTS[9]]
    CachedEmbedder(Hashing(), tmp_path).embed(TEXTS[:3])
    CachedEmbedder(Hashing(), tmp_path).embed(texts, progress)
    assert seen == [(n, n) for n in (4, SHARD + 6, 2 * SHARD + 6, len(texts))]


def test_an_interrupt_loses_at_most_a_shard(tmp_path: Path) -> None:
    class Interrupted(Hashing):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if TEXTS[-1] in texts:
                raise KeyboardInterrupt
            return super().embed(texts)

    with pytest.raises(KeyboardInterrupt):
        CachedEmbedder(Interrupted(), tmp_path).embed(TEXTS)
    embedder = Hashing()
    assert np.array_equal(CachedEmbedder(embedder, tmp_path).embed(TEXTS), plain(TEXTS))
    assert embedder.given == TEXTS[2 * SHARD :]


@settings(deadline=None)
@given(st.data())
def test_a_damaged_shard_is_noticed_and_made_again(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cached = CachedEmbedder(Hashing(), Path(folder))
        cached.embed(TEXTS[:3])
        cached.embed(TEXTS[3:6])
        shard = data.draw(st.sampled_from(sorted(cached.folder.iterdir())))
        contents = bytearray(shard.read_bytes())
        position = data.draw(st.integers(0, len(contents) - 1))
        if data.draw(st.booleans()):
            contents[position] ^= data.draw(st.integers(1, 255))
        else:
            del contents[position:]
        shard.write_bytes(contents)
        embedder = Hashing()
        with pytest.warns(UserWarning, match="is damaged; its embeddings are made again"):
            vectors = CachedEmbedder(embedder, Path(folder)).embed(TEXTS[5::-1])
        assert np.array_equal(vectors[::-1], plain(TEXTS[:6]))
        assert embedder.given in (TEXTS[2::-1], TEXTS[5:2:-1])
        again = Hashing()  # without a warning
        assert np.array_equal(CachedEmbedder(again, Path(folder)).embed(TEXTS[5::-1]), vectors)
        assert again.given == []


def test_a_write_that_was_cut_off_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        with open(self, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    cached = CachedEmbedder(Hashing(), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(EmbeddingError, match=r"cannot write to the cache .*hashing-\w+: No space left"):
            cached.embed(TEXTS[:4])
    assert list(cached.folder.iterdir()) == []
    (cached.folder / ".writing-1").write_bytes(b"half of")  # by a process that was killed
    assert np.array_equal(cached.embed(TEXTS[:4]), plain(TEXTS[:4]))


@pytest.mark.parametrize(
    ("vectors", "what"),
    [(np.ones((2, 4)), r"an array of \(2, 4\) for 2 texts"), (np.full((2, 5), np.nan), "must be finite and")],
)
def test_what_an_embedder_gets_wrong_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: NDArray[np.float64], what: str
) -> None:
    embedder = Hashing()
    monkeypatch.setattr(embedder, "embed", lambda texts: vectors)
    with pytest.raises(EmbeddingError, match=what):
        CachedEmbedder(embedder, tmp_path).embed(["a", "b"])
    assert np.array_equal(CachedEmbedder(Hashing(), tmp_path).embed(["a", "b"]), plain(["a", "b"]))


def test_processes_share_a_folder(tmp_path: Path) -> None:
    # Each embeds the same texts in an order of its own, in several calls.
    code = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        import numpy as np
        from routing_gym.quality.cache import CachedEmbedder
        from tests.quality.test_cache import TEXTS, Hashing, plain
        texts = np.random.default_rng(int(sys.argv[2])).permutation(TEXTS).tolist()
        cached = CachedEmbedder(Hashing(), Path(sys.argv[1]))
        for start in range(0, len(texts), 40):
            assert np.array_equal(cached.embed(texts[: start + 40]), plain(texts[: start + 40]))
        """
    )
    root = Path(__file__).resolve().parents[2]
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(seed)], cwd=root) for seed in (1, 2)
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    embedder = Hashing()
    assert np.array_equal(CachedEmbedder(embedder, tmp_path).embed(TEXTS), plain(TEXTS))
    assert embedder.given == []


def test_the_folder_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROUTING_GYM_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for platform, variable, base in (
        ("linux", "XDG_CACHE_HOME", tmp_path / ".cache"),
        ("win32", "LOCALAPPDATA", tmp_path / "AppData" / "Local"),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.delenv(variable, raising=False)
        assert default_cache() == base / "routing-gym" / "embeddings"
        monkeypatch.setenv(variable, str(tmp_path / "given"))
        assert default_cache() == tmp_path / "given" / "routing-gym" / "embeddings"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_cache() == tmp_path / "Library" / "Caches" / "routing-gym" / "embeddings"
    monkeypatch.setenv("ROUTING_GYM_CACHE", os.fspath(tmp_path / "mine"))
    assert default_cache() == tmp_path / "mine"
