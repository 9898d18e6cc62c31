"""Observation buffers: where fields lie, that they share no place, and that nothing is copied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.common.buffer import BufferLayout, block_size

fields = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3), st.integers(1, 40), min_size=2, max_size=9
)


def written(rows: int, sizes: dict[str, int]) -> np.ndarray:
    """Return a buffer as a kernel fills it: entry k of field f of row e is 10000 f + 100 e + k; else NaN."""
    total = sum(block_size(rows, size) for size in sizes.values())
    buffer = np.full(total, np.nan, np.float32)
    first = 0
    for f, size in enumerate(sizes.values()):
        for e in range(rows):
            for k in range(size):
                buffer[first + e * size + k] = 10_000 * f + 100 * e + k
        first += block_size(rows, size)
    return buffer


@given(st.integers(1, 5), fields)
def test_fields_are_found_where_kernels_write_them(rows: int, sizes: dict[str, int]) -> None:
    layout = BufferLayout(rows, sizes)
    buffer = written(rows, sizes)
    assert layout.names == tuple(sizes)
    assert layout.size == len(buffer)
    batch = layout.batch(buffer)
    assert list(batch) == list(sizes)
    for f, (name, size) in enumerate(sizes.items()):
        expected = 10_000 * f + 100 * np.arange(rows)[:, None] + np.arange(size)
        np.testing.assert_array_equal(batch[name], expected)
        assert np.shares_memory(batch[name], buffer)
    if rows == 1:
        single = layout.single(buffer)
        assert list(single) == list(sizes)
        for name, size in sizes.items():
            assert single[name].shape == (size,)
            np.testing.assert_array_equal(single[name], batch[name][0])
            assert np.shares_memory(single[name], buffer)


@given(st.integers(1, 5), fields, st.data())
def test_hidden_fields_are_written_but_not_shown(
    rows: int, sizes: dict[str, int], data: st.DataObject
) -> None:
    shown = data.draw(st.lists(st.sampled_from(sorted(sizes)), min_size=2, unique=True))
    hidden = sizes.keys() - set(shown)
    layout, whole = BufferLayout(rows, sizes, hidden), BufferLayout(rows, sizes)
    assert layout.size == whole.size
    buffer = written(rows, sizes)
    seen, everything = layout.batch(buffer), whole.batch(buffer)
    assert list(seen) == [name for name in sizes if name in shown]
    for name, values in seen.items():
        np.testing.assert_array_equal(values, everything[name])


@given(st.integers(1, 5), fields)
def test_fields_share_no_place(rows: int, sizes: dict[str, int]) -> None:
    layout = BufferLayout(rows, sizes)
    buffer = np.zeros(layout.size, np.float32)
    for values in layout.batch(buffer).values():
        values += 1.0
    assert buffer.max() == 1.0
    assert buffer.sum() == rows * sum(sizes.values())


def test_a_single_row_has_no_padding() -> None:
    assert BufferLayout(1, {"a": 3, "b": 1, "c": 44}).size == 48


@pytest.mark.parametrize("rows", [2, 3, 64, 1000, 1024])
@pytest.mark.parametrize("size", [1, 3, 16, 352])
def test_blocks_of_many_rows_are_whole_cache_lines_and_no_page_apart(rows: int, size: int) -> None:
    """A line holds 16 float32; a page of 4096 bytes has places for 64 of them."""
    numbers = block_size(rows, size)
    assert numbers % 16 == 0
    assert rows * size + 16 <= numbers < rows * size + 32
    if rows == 1024:
        assert numbers * 4 % 4096 == 64
