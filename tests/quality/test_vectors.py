"""Files of embeddings: round trips, matching to a table's rows, and errors that name file and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from routing_gym.quality.embedding import EmbeddingError
from routing_gym.quality.tables import OutcomeTable
from routing_gym.quality.vectors import read_embeddings, write_embeddings

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
IDS = ("3", "1", "b", "ü 4", "2")


def table(ids: tuple[str, ...] = IDS, prompt_rows: list[int] | None = None) -> OutcomeTable:
    numbers = np.ones((len(ids), 1))
    rows = None if prompt_rows is None else np.array(prompt_rows, dtype=np.int64)
    texts = tuple(f"prompt {name}" for name in ids)
    return OutcomeTable(
        "table.csv", ids, texts, ("",) * len(ids), ("m",), numbers[:, 0], numbers, numbers, numbers, rows
    )


def units(count: int) -> NDArray[np.float32]:
    rows = np.random.default_rng(0).normal(size=(count, 6))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def objects(*values: str) -> NDArray[np.object_]:
    return np.array(values, dtype=object)


def test_a_round_trip_is_bit_equal_in_the_table_s_order(tmp_path: Path) -> None:
    path, vectors = tmp_path / "embeddings", units(4)
    write_embeddings(path, ["2", "ü 4", "3", "b"], vectors)
    first = path.read_bytes()
    found = read_embeddings(path, table())
    assert found.dtype == np.float32
    assert np.array_equal(found[[4, 3, 0, 2]], vectors)
    assert np.isnan(found[1]).all()
    write_embeddings(path, ["2", "ü 4", "3", "b"], vectors)
    assert path.read_bytes() == first


def test_whole_numbers_are_ids_too_and_rows_get_length_1(tmp_path: Path) -> None:
    vectors = units(3)
    path = save(tmp_path / "a.npz", number=[2, 1, 3], emb=(vectors * 1.7).astype(np.float16), note="x")
    found = read_embeddings(path, table())
    np.testing.assert_allclose(found[[4, 1, 0]], vectors, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(found[[4, 1, 0]].astype(float), axis=1), 1, atol=1e-6)
    assert np.isnan(found[2:4]).all()


@pytest.mark.parametrize("names", [{}, {"ids": objects("x", "x", "x", "x", "x")}])
def test_without_ids_the_order_counts(tmp_path: Path, names: dict[str, Any]) -> None:
    vectors = units(5)
    path = save(tmp_path / "a.npz", emb=vectors, **names)
    assert np.array_equal(read_embeddings(path, table()), vectors)
    assert np.array_equal(read_embeddings(path, table(prompt_rows=[0, 1, 2, 3, 4])), vectors)
    with pytest.raises(EmbeddingError, match=r"as many rows as both table\.csv and its file of prompts"):
        read_embeddings(path, table(prompt_rows=[1, 0, 2, 3, 4]))
    few = save(tmp_path / "b.npz", emb=vectors[:2], **{key: ids[:2] for key, ids in names.items()})
    found = read_embeddings(few, table(prompt_rows=[3, 1]))
    assert np.array_equal(found[[3, 1]], vectors[:2])
    assert np.isnan(found[[0, 2, 4]]).all()
    with pytest.raises(EmbeddingError, match=r"has 2 rows and no ids .* which has 5 rows$"):
        read_embeddings(few, table())
    with pytest.raises(EmbeddingError, match=r"which has 5 rows, its file of prompts 3$"):
        read_embeddings(few, table(prompt_rows=[3, 1, 0]))


GOOD = units(3)
ZERO, NAN = GOOD.copy(), GOOD.copy()
ZERO[1] = 0
NAN[2, 0] = np.nan


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"ids": ["1", "2", "1"], "emb": GOOD}, "rows 1 and 3 have the same id, '1'"),
        ({"ids": ["1", "x", "y"], "emb": GOOD}, r"2 of 3 ids are not in table\.csv, first 'x'"),
        ({"ids": ["1", "2", "3"], "emb": ZERO}, r"bad\.npz, row 2: the embedding has length 0"),
        (
            {"ids": ["1", "2", "3"], "emb": NAN},
            r"bad\.npz, row 3: the embedding holds NaN; leave rows without embedding out of the file, and",
        ),
        (
            {"ids": ["1", "2"], "emb": GOOD},
            r"holds ids \(<U1, \(2,\)\), emb \(float32, \(3, 6\)\); must hold",
        ),
        ({"ids": [1.0, 2.0, 3.0], "emb": GOOD}, "must hold one array of floats"),
        ({"ids": ["1", "2", "3"]}, "must hold one array of floats"),
        ({"emb": GOOD, "more": GOOD}, "must hold one array of floats"),
        ({"emb": GOOD.astype(int)}, "must hold one array of floats"),
        ({"emb": GOOD[:, :0]}, "must hold one array of floats"),
        ({"emb": GOOD, "a": [1, 2, 3], "b": [1, 2, 3]}, "must hold one array of floats"),
        ({"emb": objects("a")}, r"holds emb \(objects\)"),
        ({}, "holds nothing"),
    ],
)
def test_what_a_file_must_not_hold(tmp_path: Path, arrays: dict[str, Any], what: str) -> None:
    with pytest.raises(EmbeddingError, match=what):
        read_embeddings(save(tmp_path / "bad.npz", **arrays), table())


def test_an_npy_has_rows_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", units(5))
    assert np.array_equal(read_embeddings(tmp_path / "a.npy", table()), units(5))
    np.save(tmp_path / "a.npy", units(2).astype(np.float16))
    found = read_embeddings(tmp_path / "a.npy", table(prompt_rows=[3, 1]))
    np.testing.assert_allclose(found[[3, 1]], units(2), atol=1e-3)
    assert np.isnan(found[[0, 2, 4]]).all()
    for wrong, what in (
        (units(4), r"has 4 rows and no ids"),
        (units(5)[0], r"holds the array \(float32, \(6,\)\); must hold one array of floats"),
        (objects("a"), r"is no \.npz or \.npy file, or is damaged: .*allow_pickle=False"),
    ):
        np.save(tmp_path / "a.npy", wrong, allow_pickle=True)
        with pytest.raises(EmbeddingError, match=what):
            read_embeddings(tmp_path / "a.npy", table())
    np.save(tmp_path / "a.npy", units(5))
    whole = (tmp_path / "a.npy").read_bytes()
    for size in (6, 20, len(whole) - 1):
        (tmp_path / "a.npy").write_bytes(whole[:size])
        with pytest.raises(EmbeddingError, match=r"is no \.npz or \.npy file, or is damaged"):
            read_embeddings(tmp_path / "a.npy", table())


def test_other_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingError, match=r"cannot read .*none\.npz: No such file"):
        read_embeddings(tmp_path / "none.npz", table())
    path = tmp_path / "a.npz"
    write_embeddings(path, IDS, units(5))
    contents = path.read_bytes()
    damaged = bytearray(contents)
    damaged[contents.index(units(5).tobytes()) + 9] ^= 1
    for wrong in (b"", b"\x80\x04K\x01.", contents[:-30], contents[:100], bytes(damaged)):
        path.write_bytes(wrong)
        with pytest.raises(EmbeddingError, match=r"a\.npz is no \.npz or \.npy file, or is damaged"):
            read_embeddings(path, table())


@pytest.mark.parametrize(
    ("ids", "vectors", "what"),
    [
        (["1", "2"], GOOD, r"shape \(3, 6\) for 2 ids"),
        (["1", "2", "3"], GOOD[0], r"shape \(6,\) for 3 ids"),
        (["1", "2", "2"], GOOD, "rows 2 and 3 have the same id, '2'"),
        (["1", "2", "3"], NAN, "row 3: the embedding has length nan"),
    ],
)
def test_what_is_not_written(tmp_path: Path, ids: list[str], vectors: NDArray[np.float32], what: str) -> None:
    with pytest.raises(EmbeddingError, match=what):
        write_embeddings(tmp_path / "a.npz", ids, vectors)
    assert not (tmp_path / "a.npz").exists()


@pytest.mark.parametrize(("folder", "rows"), [("routerbench_subset", 4812), ("gsm8k_open_llms", 1319)])
def test_the_shared_embeddings(folder: str, rows: int) -> None:
    path = SHARED / folder / "minilm_int8_embeddings.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    found = read_embeddings(path, table(tuple(str(row) for row in range(rows))))
    with np.load(path, allow_pickle=False) as arrays:
        recorded = arrays["emb"].astype(np.float64)
    assert found.shape == (rows, 384)
    np.testing.assert_allclose(found, recorded, atol=2e-3)
    np.testing.assert_allclose(np.linalg.norm(found.astype(np.float64), axis=1), 1, atol=1e-6)
