"""The folder of a run: what may be resumed or thrown away, and tables that grow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

from routing_agents.run_folder import RunError, RunFolder, Table, read_table
from tests.agents.training_runs import tiny


def test_only_the_same_run_is_resumed_and_only_a_run_is_overwritten(tmp_path: Path) -> None:
    config = tiny()
    run = tmp_path / "run"
    RunFolder(run, config)
    (run / "progress.csv").write_text("steps\n1\n")
    with pytest.raises(RunError, match="already holds a run; go on with --resume, or --overwrite it"):
        RunFolder(run, config)
    other = tiny(hyperparameters__gamma=0.5)
    with pytest.raises(RunError, match=r"hyperparameters.gamma is 0.98 there and 0.5 here"):
        RunFolder(run, other, resume=True)
    about = run / "about.yaml"
    about.write_text(about.read_text().replace("torch: ", "torch: 0."))
    with pytest.raises(RunError, match="torch is 0"):
        RunFolder(run, config, resume=True)
    with pytest.raises(RunError, match="exclude each other"):
        RunFolder(run, config, resume=True, overwrite=True)
    assert RunFolder(run, other, overwrite=True).config() == other
    assert not (run / "progress.csv").exists()

    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "progress.csv").write_text("mine\n")
    with pytest.raises(RunError, match="holds no run of training"):
        RunFolder(strange, config, overwrite=True)
    assert (strange / "progress.csv").read_text() == "mine\n"
    with pytest.raises(RunError, match="is a file"):
        RunFolder(strange / "progress.csv", config)


def test_tables_grow_columns_and_forget_what_is_made_again(tmp_path: Path) -> None:
    table = Table(tmp_path / "t.csv", -1)
    table.add({"steps": 1, "a": "x, y"})
    table.add({"steps": 2, "a": None, "b": 2.5})
    table.add({"steps": 3, "b": np.float32(0.25)})
    expected = [
        {"steps": "1", "a": "x, y", "b": ""},
        {"steps": "2", "a": "", "b": "2.5"},
        {"steps": "3", "a": "", "b": "0.25"},
    ]
    assert read_table(tmp_path / "t.csv") == expected
    with open(tmp_path / "t.csv", "a") as file:
        file.write("4,half a l")
    reopened = Table(tmp_path / "t.csv", 2)
    assert read_table(tmp_path / "t.csv") == expected[:2]
    reopened.add({"steps": 3, "a": "", "b": ""})
    assert len(read_table(tmp_path / "t.csv")) == 3
