"""Embeddings kept on disk, by model and text."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from routing_gym.quality.embedding import Embedder, EmbeddingError

SHARD = 256  # embeddings in a file at most: what an interrupt may lose
KEY_BYTES = hashlib.sha256().digest_size


def default_cache() -> Path:
    """Return the folder of cached embeddings: ROUTING_GYM_CACHE, else one in the user's cache folder."""
    given = os.environ.get("ROUTING_GYM_CACHE")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "routing-gym" / "embeddings"


class CachedEmbedder:
    """An embedder that keeps what it has embedded in a folder, by its name and the SHA-256 of the text.

    A shard is a file of up to 256 keys and their vectors, written under another name and then renamed to the
    SHA-256 of its contents, by which one that was cut off or damaged is known: it is removed with a warning,
    and its texts are embedded again. Several processes may share a folder; at worst they embed a text twice.

    Args:
        embedder: embeds what the folder lacks.
        folder: of the cache; made where it is missing.
    """

    def __init__(self, embedder: Embedder, folder: Path) -> None:
        self.name = embedder.name
        self.dimension = embedder.dimension
        self._embedder = embedder
        readable = re.sub(r"[^\w.-]+", "-", self.name, flags=re.ASCII)[:64]
        unique = hashlib.sha256(f"{self.name} {self.dimension}".encode()).hexdigest()[:8]
        self.folder = Path(folder) / f"{readable}-{unique}"
        self._known: dict[bytes, NDArray[np.float32]] = {}
        self._read: set[str] = set()

    def embed(
        self, texts: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Return (n, D) float32, a row of length 1 per text; equal texts are embedded once.

        Args:
            texts: n of them.
            progress: told how many of the n are done so far, first after looking into the cache, then after
                each shard, which is on disk by then.

        Raises:
            EmbeddingError: the embedder fails, or the folder cannot be read or written to.
        """
        keys = [hashlib.sha256(text.encode()).digest() for text in texts]
        self._look()
        counts = Counter(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        done = len(texts) - sum(counts[key] for key in missing)
        if progress:
            progress(done)
        wanted = list(missing)
        for start in range(0, len(wanted), SHARD):
            part = wanted[start : start + SHARD]
            vectors = np.asarray(self._embedder.embed([missing[key] for key in part]), dtype=np.float32)
            if vectors.shape != (len(part), self.dimension) or not np.isfinite(vectors).all():
                raise EmbeddingError(
                    f"{self.name}: gave an array of {vectors.shape} for {len(part)} texts; "
                    f"must be finite and {(len(part), self.dimension)}"
                )
            self._write(part, vectors)
            self._known.update(zip(part, vectors, strict=True))
            done += sum(counts[key] for key in part)
            if progress:
                progress(done)
        found = np.zeros((len(keys), self.dimension), dtype=np.float32)
        for row, key in enumerate(keys):
            found[row] = self._known[key]
        return found

    def _look(self) -> None:
        """Read the shards that are new since the last time."""
        for path in sorted(self.folder.glob("*.shard")):
            if path.name in self._read:
                continue
            self._read.add(path.name)
            try:
                contents = path.read_bytes()
            except FileNotFoundError:  # damaged, and removed by another process
                continue
            except OSError as error:
                raise EmbeddingError(f"cannot read the cache {path}: {error.strerror}") from error
            if hashlib.sha256(contents).hexdigest() != path.stem:
                warnings.warn(
                    f"{path} is damaged; its embeddings are made again as they are needed", stacklevel=3
                )
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            count = len(contents) // (KEY_BYTES + 4 * self.dimension)
            vectors = np.frombuffer(contents, dtype="<f4", offset=count * KEY_BYTES).astype(np.float32)
            for row, vector in enumerate(vectors.reshape(count, self.dimension)):
                self._known[contents[row * KEY_BYTES : (row + 1) * KEY_BYTES]] = vector

    def _write(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        contents = b"".join(keys) + vectors.astype("<f4").tobytes()
        name = f"{hashlib.sha256(contents).hexdigest()}.shard"
        temporary = self.folder / f".writing-{uuid.uuid4().hex}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(contents)
                os.replace(temporary, self.folder / name)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise EmbeddingError(f"cannot write to the cache {self.folder}: {error.strerror}") from error
        self._read.add(name)
