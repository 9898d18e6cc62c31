"""The contract of all vector environments: rows are single environments, in each autoreset mode."""

from __future__ import annotations

import copy
import re
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from routing_gym.common.vector import batch_infos
from tests.environments import (
    IDS,
    SCALAR_IDS,
    assert_same,
    episode,
    family,
    make_short,
    make_short_vector,
    valid_action,
    valid_actions,
)

ROWS = 3
each_id = pytest.mark.parametrize("env_id", IDS)
each_scalar_id = pytest.mark.parametrize("env_id", SCALAR_IDS)
each_mode = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)


def make_sync(env_id: str, mode: AutoresetMode) -> SyncVectorEnv:
    """Return Gymnasium's vector environment of single environments."""
    make = partial(gym.make, env_id, disable_env_checker=True, **family(env_id).short)
    return SyncVectorEnv([make] * ROWS, autoreset_mode=mode)


def assert_known_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Assert that infos agree on the rows that `theirs` has anything of."""
    for name, values in theirs.items():
        if not name.startswith("_"):
            known = theirs[f"_{name}"]
            np.testing.assert_array_equal(ours[name][known], values[known])
            assert ours[f"_{name}"][known].all()


@each_scalar_id
@each_mode
def test_equals_gymnasiums_vector_env(env_id: str, mode: AutoresetMode) -> None:
    """Observations, rewards, flags and infos of each step, final ones and metrics included."""
    ours, theirs = make_short_vector(env_id, ROWS, autoreset_mode=mode), make_sync(env_id, mode)
    assert ours.metadata["autoreset_mode"] is mode is theirs.metadata["autoreset_mode"]
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
    outcome = ours.reset(seed=11)
    assert_same(outcome, theirs.reset(seed=11))
    ends = 0
    for k in range(500):
        actions = valid_actions(outcome[-1]["action_mask"], k)
        outcome, expected = ours.step(actions), theirs.step(actions)
        assert_same(outcome, expected, f"step {k}")
        for values, wanted in zip(outcome[1:4], expected[1:4], strict=True):
            assert values.dtype == wanted.dtype
        assert all(ours.observation_space[name].dtype == v.dtype for name, v in outcome[0].items())
        over = outcome[3]
        ends += over.sum()
        if mode is AutoresetMode.DISABLED and over.any():
            # Each row goes on when it ends; from time to time with a seed of its own.
            seeds = [None if k % 2 else 100 + k + row for row in range(ROWS)]
            outcome, expected = (
                envs.reset(seed=seeds, options={"reset_mask": over.copy()}) for envs in (ours, theirs)
            )
            assert_same(outcome[0], expected[0], f"reset at step {k}")
            assert_known_same(outcome[1], expected[1])
        if k == 250:
            outcome = ours.reset(seed=[5, None, 6])
            assert_same(outcome, theirs.reset(seed=[5, None, 6]))
    assert ends > 2 * ROWS


@each_id
@pytest.mark.parametrize(
    "mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name
)
def test_row_i_is_a_single_environment_seeded_i_later(env_id: str, mode: AutoresetMode) -> None:
    """Also in the episodes after autoreset; each row by its own count of steps."""
    expected = []
    for row in range(ROWS):
        env = make_short(env_id)
        expected.append([list(episode(env, seed=40 + row)), list(episode(env)), list(episode(env))])
    envs = make_short_vector(env_id, ROWS, autoreset_mode=mode)
    observations, infos = envs.reset(seed=40)
    played: list[list[list[Any]]] = [
        [[_row((observations, {k: v for k, v in infos.items() if k[0] != "_"}), row)]] for row in range(ROWS)
    ]
    while min(len(episodes) for episodes in played) < 4:
        masks = infos["action_mask"]
        actions = np.array(
            [valid_action(masks[row], len(played[row][-1]) - 1) for row in range(ROWS)], dtype=np.int64
        )
        observations, rewards, _, truncated, infos = envs.step(actions)
        plain = {name: infos[name] for name in ("action_mask", "reward_terms")}
        for row, episodes in enumerate(played):
            first = (_row(observations, row), _row(plain, row))
            if episodes[-1] and len(episodes[-1][-1]) == 5 and episodes[-1][-1][3]:
                episodes.append([first])  # NEXT_STEP: this step was the reset
                assert rewards[row].sum() == 0.0
                continue
            info, metrics = first[1], None
            observation = first[0]
            if truncated[row] and mode is AutoresetMode.SAME_STEP:
                observation = infos["final_obs"][row]
                final = infos["final_info"]
                info = _row({name: final[name] for name in plain}, row)
                metrics = final["episode_metrics"]
            elif truncated[row]:
                metrics = infos["episode_metrics"]
            if metrics is not None:
                known = {k: v for k, v in metrics.items() if k[0] != "_" and metrics[f"_{k}"][row]}
                info["episode_metrics"] = _row(known, row)
            episodes[-1].append((observation, rewards[row], False, bool(truncated[row]), info))
            if truncated[row] and mode is AutoresetMode.SAME_STEP:
                episodes.append([first])
    for row in range(ROWS):
        assert_same(played[row][:3], expected[row], f"row {row}")


def _row(batch: Any, row: int) -> Any:
    """Return a row of nested batches."""
    if isinstance(batch, dict):
        return {name: _row(values, row) for name, values in batch.items()}
    return tuple(_row(values, row) for values in batch) if isinstance(batch, tuple) else batch[row].copy()


@each_id
@each_mode
def test_nothing_returned_changes_later(env_id: str, mode: AutoresetMode) -> None:
    """Not by stepping, autoreset, or resetting some or all of the rows."""
    envs = make_short_vector(env_id, ROWS, autoreset_mode=mode)
    kept = [envs.reset(seed=1)]
    copies = [copy.deepcopy(kept[-1])]

    def keep(outcome: Any) -> None:
        assert_same(kept[-1], copies[-1])
        kept.append(outcome)
        copies.append(copy.deepcopy(outcome))

    for k in range(150):
        keep(envs.step(valid_actions(kept[-1][-1]["action_mask"], k)))
        over = kept[-1][3]
        if mode is AutoresetMode.DISABLED and over.any():
            keep(envs.reset(options={"reset_mask": over}))
            assert_same(kept[-2], copies[-2])
    keep(envs.reset())
    keep(envs.reset(seed=1))
    assert_same(kept, copies)


@each_id
def test_a_partial_reset_leaves_the_other_rows_alone(env_id: str) -> None:
    """They show what they showed, and go on as if nothing had happened."""
    envs, others = (make_short_vector(env_id, ROWS, autoreset_mode="Disabled") for _ in range(2))
    envs.reset(seed=1)
    _, infos = others.reset(seed=1)
    for k in range(20):
        actions = valid_actions(infos["action_mask"], k)
        before, *_ = envs.step(actions)
        *_, infos = others.step(actions)
    mask = np.array([False, True, False])
    after, after_infos = envs.reset(seed=77, options={"reset_mask": mask})
    single = make_short(env_id)
    first, _ = single.reset(seed=78)  # row 1 of seed 77
    for name, values in after.items():
        np.testing.assert_array_equal(values[~mask], before[name][~mask])
        np.testing.assert_array_equal(values[1], first[name])
    np.testing.assert_array_equal(after_infos["action_mask"][~mask], infos["action_mask"][~mask])
    assert not after_infos["reward_terms"].any()  # a reset pays nothing
    assert mask.tolist() == [False, True, False]
    for k in range(20):
        actions = valid_actions(infos["action_mask"], k)
        actions[1] = valid_action(after_infos["action_mask"][1], k)
        got, *_, after_infos = envs.step(actions)
        expected, *_, infos = others.step(valid_actions(infos["action_mask"], k))
        for name, values in got.items():
            np.testing.assert_array_equal(values[~mask], expected[name][~mask])


@each_id
def test_finished_rows_raise_or_are_held(env_id: str) -> None:
    """Under DISABLED a finished row must be reset, or with `hold_finished` waits without any effect."""
    strict = make_short_vector(env_id, ROWS, autoreset_mode="Disabled")
    held = make_short_vector(env_id, ROWS, autoreset_mode="Disabled", hold_finished=True)
    strict.reset(seed=2)
    _, infos = held.reset(seed=2)
    over, final, k, totals = np.zeros(ROWS, bool), {}, 0, np.zeros(ROWS)
    stopped = ""
    while not over.all():
        actions = valid_actions(infos["action_mask"], k)
        was_over = over
        if not was_over.any():
            assert_same(strict.step(actions), outcome := held.step(actions))
        else:
            with pytest.raises(ResetNeeded, match=stopped):
                strict.step(actions)
            outcome = held.step(actions)
        observation, rewards, terminated, over, infos = outcome
        k += 1
        totals += np.reshape(infos["reward_terms"], (ROWS, -1)).sum(axis=1)
        assert not terminated.any()
        assert (over >= was_over).all()
        for row in np.flatnonzero(was_over):
            assert not np.any(rewards[row]) and not infos["reward_terms"][row].any()
            assert not infos.get("_episode_metrics", was_over * 0)[row]
            assert infos["action_mask"][row].any()
            assert_same({name: values[row] for name, values in observation.items()}, final[row])
        if not was_over.any():
            stopped = re.escape(f"rows {np.flatnonzero(over).tolist()} have no episode in progress")
        for row in np.flatnonzero(over & ~was_over):
            assert infos["_episode_metrics"][row]
            final[row] = {name: values[row].copy() for name, values in observation.items()}
    # Each row was played to the end as a single environment would.
    for row in range(ROWS):
        env = make_short(env_id)
        steps = list(episode(env, seed=2 + row))[1:]
        assert_same(final[row], steps[-1][0])
        assert totals[row] == pytest.approx(sum(step[-1]["reward_terms"].sum() for step in steps))
    held.step(actions * 0 - 1)  # nobody's action
    outcome = held.reset()
    assert not held.step(valid_actions(outcome[1]["action_mask"], 0))[3].any()


@each_id
def test_needs_a_reset(env_id: str) -> None:
    """Before anything else, and of all rows before some of them."""
    for mode in AutoresetMode:
        envs = make_short_vector(env_id, ROWS, autoreset_mode=mode)
        actions = np.zeros_like(envs.action_space.sample())
        with pytest.raises(ResetNeeded, match=r"rows \[0, 1, 2\]"):
            envs.step(actions)
        with pytest.raises(ResetNeeded, match="reset"):
            envs.get_state()
        with pytest.raises(ResetNeeded, match=r"rows \[0, 2\] were never reset"):
            envs.reset(seed=1, options={"reset_mask": np.array([False, True, False])})
        envs.reset(seed=1)
        envs.step(actions)


@each_id
def test_bad_masks(env_id: str) -> None:
    """Name the option, what was given and what is allowed; nothing is reset."""
    envs = make_short_vector(env_id, ROWS, autoreset_mode="Disabled")
    envs.reset(seed=1)
    before = envs.get_state()
    for mask, error, message in (
        ([True, False, True], TypeError, r"options\['reset_mask'\] = \[True, False, True\]: must be a NumPy"),
        (np.array([1, 0, 1]), TypeError, r"options\['reset_mask'\] = array\(\[1, 0, 1\]\): must be"),
        (np.array([True]), ValueError, r"options\['reset_mask'\] has shape \(1,\); it must be \(3,\)"),
        (np.zeros(3, bool), ValueError, r"options\['reset_mask'\] is False everywhere; at least one"),
    ):
        with pytest.raises(error, match=message):
            envs.reset(options={"reset_mask": mask})
    assert_same(envs.get_state()["generators"], before["generators"])
    envs.reset(options={"reset_mask": None})
    envs.reset(options={})


@each_id
def test_bad_actions_change_nothing(env_id: str) -> None:
    """They name the row, the value and the bounds, also in the step that would reset another row."""
    envs, others = make_short_vector(env_id, ROWS), make_short_vector(env_id, ROWS)
    envs.reset(seed=1)
    _, infos = others.reset(seed=1)
    resets, previous = 0, np.zeros(ROWS, bool)
    for k in range(300):
        actions = valid_actions(infos["action_mask"], k)
        row = k % ROWS
        wrong = actions.copy()
        wrong[row] = 10_000
        if not previous[row]:
            with pytest.raises(ValueError, match=rf"actions\[{row}.*10000.*must be from 0 to"):
                envs.step(wrong)
        if k < 3:
            with pytest.raises(ValueError, match=r"actions .* shape \(2.*\(3"):
                envs.step(actions[:2])
            with pytest.raises(ValueError, match=r"actions .* float64.* whole numbers"):
                envs.step(actions.astype(np.float64))
        got, expected = envs.step(actions), others.step(actions)
        assert_same(got, expected)
        previous, infos = got[3], got[-1]
        resets += previous.sum()
    assert resets > ROWS


@each_id
def test_bad_arguments(env_id: str) -> None:
    """Name the argument, its value and what is allowed."""
    with pytest.raises(ValueError, match="num_envs = 0: must be at least 1"):
        make_short_vector(env_id, 0)
    with pytest.raises(ValueError, match="autoreset_mode = 'Never': must be one of NextStep, S"):
        make_short_vector(env_id, 2, autoreset_mode="Never")
    with pytest.raises(ValueError, match="hold_finished = True: needs autoreset_mode DISABLED"):
        make_short_vector(env_id, 2, hold_finished=True)
    with pytest.raises(ValueError, match="render_mode = 'sound': must be None or one of"):
        make_short_vector(env_id, 2, render_mode="sound")
    envs = make_short_vector(env_id, 2)
    with pytest.raises(ValueError, match="seed has 3 entries; there are 2 rows"):
        envs.reset(seed=[1, 2, 3])


def test_batch_infos() -> None:
    """A whole number in one row truncates nothing in another, and rows without a key are told by its mask."""
    batched = batch_infos(3, {0: {"a": 1, "shares": np.array([0.5, 0.5])}, 2: {"a": 0.75, "b": np.inf}})
    assert_same(
        batched,
        {
            "a": np.array([1, 0, 0.75]),
            "_a": np.array([True, False, True]),
            "b": np.array([0, 0, np.inf]),
            "_b": np.array([False, False, True]),
            "shares": np.array([[0.5, 0.5], [0, 0], [0, 0]]),
            "_shares": np.array([True, False, False]),
        },
    )
    assert batch_infos(2, {}) == {}
