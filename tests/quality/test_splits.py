"""Splits by prompt: duplicates stay together, and a prompt's side depends on nothing but itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_gym.quality.columns import load_columns
from routing_gym.quality.settings import FitSettings
from routing_gym.quality.splits import prompt_keys, split_by_prompt
from routing_gym.quality.tables import OutcomeTable, read_table

SUBSET = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "routerbench_subset"


def table_of(prompts: Sequence[str | None], ids: Sequence[str] | None = None) -> OutcomeTable:
    count = len(prompts)
    nan = np.full((count, 1), np.nan)
    return OutcomeTable(
        "made here",
        tuple(ids or map(str, range(count))),
        tuple(prompts),
        ("",) * count,
        ("a",),
        nan[:, 0],
        nan,
        nan,
        nan,
    )


def test_near_identical_texts_have_one_key_which_is_the_hash_of_the_normalised_text() -> None:
    texts = ["How  many\tducks?", "how many ducks?\n", " HOW MANY DUCKS? ", "ｈｏｗ many ducks？"]  # noqa: RUF001
    keys = prompt_keys(table_of([*texts, "How many duck?", "Howmany ducks?"]))
    assert set(keys[:4]) == {hashlib.sha256(b"how many ducks?").hexdigest()}
    assert len(set(keys)) == 3


def test_compatible_forms_and_special_cases() -> None:
    same = ["Straße ﬁ ① ℡", "STRASSE FI 1 TEL", "strasse fi 1 tel"]
    assert len(set(prompt_keys(table_of(same)))) == 1
    assert len(prompt_keys(table_of(["no whole character: \ud800"]))) == 1


@given(st.text(max_size=30))
def test_a_text_s_key_does_not_change_with_case_or_whitespace(text: str) -> None:
    plain, folded, spaced = prompt_keys(table_of([text, text.casefold(), f"\n{text}  "]))
    assert plain == folded == spaced


def test_rows_linked_by_text_or_by_embedding_have_one_key() -> None:
    unit = np.eye(4, dtype=np.float32)
    nothing = np.full(4, np.nan, dtype=np.float32)
    prompts = ["a", "b", "A ", "c", None, None, None, None, None]
    # b has a's embedding; row 2 a's text and c's embedding; row 4 c's embedding and no text.
    other_zeros = np.where(unit[2] == 0, np.float32(-0.0), unit[2])
    embeddings = np.array(
        [unit[0], unit[0], unit[1], unit[1], unit[1], unit[2], other_zeros, nothing, nothing]
    )
    embeddings[5] *= 1 + 1e-5  # the same in float16
    keys = prompt_keys(table_of(prompts), embeddings)
    assert len(set(keys[:5])) == 1
    assert keys[0] == min(prompt_keys(table_of(["a", "b", "c"])))
    assert keys[5] == keys[6]
    assert len({keys[0], *keys[5:]}) == 4
    # Without embeddings there are only texts and ids.
    assert len(set(prompt_keys(table_of(prompts)))) == 8


def test_an_id_is_no_text() -> None:
    assert len(set(prompt_keys(table_of(["x", None], ids=["y", "x"])))) == 2


rows = st.lists(st.tuples(st.sampled_from([None, *"abcdef"]), st.integers(-1, 5)), min_size=1, max_size=25)


@given(rows, st.randoms(use_true_random=False))
def test_keys_are_the_connected_components_in_any_order(
    rows: list[tuple[str | None, int]], random: object
) -> None:
    """Against a plain implementation: spread the smallest row number until nothing changes."""

    def keys_of(order: list[int]) -> dict[int, str]:
        embeddings = np.full((len(order), 6), np.nan, dtype=np.float32)
        for k, row in enumerate(order):
            if rows[row][1] >= 0:
                embeddings[k] = np.eye(6, dtype=np.float32)[rows[row][1]]
        table = table_of([rows[row][0] for row in order], ids=[str(row) for row in order])
        return dict(zip(order, prompt_keys(table, embeddings), strict=True))

    label = list(range(len(rows)))
    changed = True
    while changed:
        changed = False
        for i, (text, embedding) in enumerate(rows):
            for j, (other, near) in enumerate(rows):
                linked = (text is not None and text == other) or (embedding >= 0 and embedding == near)
                if linked and label[j] < label[i]:
                    label[i], changed = label[j], True
    order = list(range(len(rows)))
    keys = keys_of(order)
    assert all((keys[i] == keys[j]) == (label[i] == label[j]) for i in order for j in order)
    random.shuffle(order)  # type: ignore[attr-defined]
    assert keys_of(order) == keys


keys = st.lists(st.text("abc", max_size=3), max_size=40)
shares = st.tuples(st.floats(0.05, 0.6), st.floats(0.05, 0.3), st.integers(0, 2**32 - 1))


@given(keys, shares, st.data())
def test_sides_partition_the_rows_and_depend_on_the_key_alone(
    keys: list[str], shares: tuple[float, float, int], data: st.DataObject
) -> None:
    settings = FitSettings(profile=shares[0], validation=shares[1], seed=shares[2])
    split = split_by_prompt(keys, settings)
    assert np.array_equal(np.sort(np.concatenate(split)), np.arange(len(keys)))
    assert all(side.dtype == np.int64 and (np.diff(side) > 0).all() for side in split)
    side_of = {row: k for k, side in enumerate(split) for row in side.tolist()}
    alone = {key: [len(side) for side in split_by_prompt([key], settings)].index(1) for key in keys}
    assert all(side_of[row] == alone[key] for row, key in enumerate(keys))
    # Rows that leave or come change nothing for the others.
    kept = sorted(data.draw(st.sets(st.sampled_from(range(len(keys)))))) if keys else []
    fewer = split_by_prompt([keys[row] for row in kept], settings)
    assert [[kept[row] for row in side] for side in fewer] == [
        [row for row in side.tolist() if row in kept] for side in split
    ]


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_shares_are_met_on_average(seed: int) -> None:
    settings = FitSettings(profile=0.5, validation=0.2, seed=seed)
    count = 20_000
    split = split_by_prompt([f"prompt {k}" for k in range(count)], settings)
    for side, share in zip(split, (0.5, 0.2, 0.3), strict=True):
        # Five standard deviations of a binomial count.
        assert abs(len(side) - share * count) < 5 * np.sqrt(share * (1 - share) * count)


def test_seeds_split_independently() -> None:
    settings = [FitSettings(profile=0.5, validation=0.1, seed=seed) for seed in (0, 1)]
    count = 20_000
    first, second = (
        set(split_by_prompt([str(k) for k in range(count)], s).profile.tolist()) for s in settings
    )
    assert abs(len(first & second) - count / 4) < 5 * np.sqrt(count * 3 / 16)


@pytest.mark.skipif(not SUBSET.is_dir(), reason="../shared/data/routerbench_subset is not here")
def test_no_prompt_of_routerbench_is_on_two_sides() -> None:
    table = read_table(
        SUBSET / "routerbench_0shot_subset.csv.gz",
        load_columns("routerbench"),
        SUBSET / "prompts_mmlu_gsm8k.csv.gz",
    )
    assert table.prompt_rows is not None
    embeddings = np.full((len(table.ids), 384), np.nan, dtype=np.float32)
    with np.load(SUBSET / "minilm_int8_embeddings.npz", allow_pickle=False) as file:
        embeddings[table.prompt_rows] = file["emb"]
    split = split_by_prompt(prompt_keys(table, embeddings), FitSettings())
    texts = [{" ".join((table.prompts[row] or f"{row}").lower().split()) for row in side} for side in split]
    vectors = [
        {embeddings[row].tobytes() for row in side if embeddings[row, 0] == embeddings[row, 0]}
        for side in split
    ]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not texts[a] & texts[b]
        assert not vectors[a] & vectors[b]
    # The subset holds a few duplicates, so that there was something to keep together.
    assert sum(map(len, texts)) < len(table.ids)
