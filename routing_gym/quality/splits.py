"""Splits by prompt: no prompt, and no duplicate of one, is on two sides (DESIGN 4)."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing_gym.quality.settings import FitSettings
from routing_gym.quality.tables import OutcomeTable

# A key before it is published: its kind and hash. Texts go before embeddings, these before ids.
Key = tuple[int, str]


class Split(NamedTuple):
    """Row numbers of the three sides: ascending, disjoint, together all rows.

    Attributes:
        profile: rows whose outcomes are retrieved.
        validation: rows for errors by cluster.
        test: the rest.
    """

    profile: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def prompt_keys(table: OutcomeTable, embeddings: NDArray[np.float32] | None = None) -> tuple[str, ...]:
    """Return a key per row, equal for rows that ask the same.

    Rows ask the same if their texts are equal up to Unicode's compatible forms, case and whitespace, if
    their embeddings are equal in float16, or if both ask the same as a third. A key is the SHA-256 of the
    text so normalised; without a text that of the embedding, and without both that of the id. Rows linked by
    embeddings have the smallest key among their texts.

    Args:
        table: n rows.
        embeddings: (n, D); rows of NaN have none.
    """
    parent: dict[Key, Key] = {}
    listed = _all_keys(table, embeddings)
    for own in listed:
        roots = {_root(parent, key) for key in own}
        for root in roots:
            parent[root] = min(roots)
    return tuple(_root(parent, own[0])[1] for own in listed)


def prompt_marks(
    table: OutcomeTable, embeddings: NDArray[np.float32] | None = None
) -> tuple[frozenset[str], ...]:
    """Return, for each row, all by which its prompt can be known again in another table.

    These are hashes of its text and of its embedding, of its id only where it has neither. Two rows of any
    tables that share one ask the same; `prompt_keys` can tell that of rows of one table only.

    Args:
        table: n rows.
        embeddings: (n, D); rows of NaN have none.
    """
    return tuple(frozenset(key for _, key in own) for own in _all_keys(table, embeddings))


def split_by_prompt(keys: Sequence[str], settings: FitSettings) -> Split:
    """Return the sides of rows by their keys.

    A hash of the seed and the key decides, and nothing else: a prompt stays where it is as long as its key
    does, however the table grows.
    Each side's share of the prompts is therefore met on average, not exactly.
    """
    places = np.array([_place(settings.seed, key) for key in keys], dtype=np.float64)
    side = np.searchsorted([settings.profile, settings.profile + settings.validation], places, side="right")
    return Split(*(np.flatnonzero(side == k).astype(np.int64) for k in range(3)))


def _all_keys(table: OutcomeTable, embeddings: NDArray[np.float32] | None) -> list[list[Key]]:
    listed = []
    for row, text in enumerate(table.prompts):
        own: list[Key] = []
        if text is not None:
            own.append((0, _digest(_normalised(text).encode("utf-8", "surrogatepass"))))
        if embeddings is not None and not np.isnan(embeddings[row]).any():
            # Adding 0 makes zeros of both signs equal.
            own.append((1, _digest((embeddings[row].astype(np.float16) + np.float16(0)).tobytes())))
        if not own:
            own.append((2, _digest(b"\0id\0" + table.ids[row].encode("utf-8", "surrogatepass"))))
        listed.append(own)
    return listed


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _normalised(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def _root(parent: dict[Key, Key], key: Key) -> Key:
    while parent.setdefault(key, key) != key:
        key = parent[key]
    return key


def _place(seed: int, key: str) -> float:
    """Return a number in [0, 1) by hash."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53
