"""What goes on around training: progress, evaluation on development seeds, checkpoints."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, TensorBoardOutputFormat

from routing_agents.checkpoint import save_checkpoint, save_model
from routing_agents.curves import LEARNED, OVERALL, draw_curves
from routing_agents.run_folder import BEST, LAST, RunFolder, Table
from routing_agents.train_config import TrainConfig
from routing_gym.evaluation.runner import Router, make_jobs, run_jobs


class Score(NamedTuple):
    """What routers of a family are chosen by, and what is shown beside it; names of episode metrics."""

    metric: str
    sign: int
    beside: tuple[str, ...]


SCORES: Mapping[str, Score] = {
    "cluster": Score("attainment", 1, ("p99_all_ms", "attainment_largest_5pct", "invalid_actions")),
    "cloud_edge": Score("objective", -1, ("quality", "p99_all_latency_s", "invalid_actions")),
}


def evaluate(config: TrainConfig, router: Router) -> dict[str, dict[str, float | None]]:
    """Play a router on the development seeds.

    Returns:
        Per condition, and under `all` over all conditions alike, the score and what is beside it:
        means, but of percentiles medians.
    """
    of = SCORES[config.family]
    found: dict[str, list[Mapping[str, Any]]] = {}
    for result in run_jobs(make_jobs([router], config.conditions(), config.evaluation.seeds)):
        found.setdefault(result.job.condition.name, []).append(result.metrics)
    metrics = (of.metric, *of.beside)
    means = {name: {key: _middle(key, rows) for key in metrics} for name, rows in found.items()}
    means[OVERALL] = {key: _middle(key, list(means.values())) for key in metrics}
    return means


def _middle(metric: str, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return a metric's mean where it is defined; of percentiles, which may be infinite, the median."""
    values = [float(row[metric]) for row in rows if row[metric] is not None]
    if not values:
        return None
    return statistics.median(values) if metric.startswith("p99") else math.fsum(values) / len(values)


class ProgressWriter(KVWriter):
    """Puts what an algorithm logs into a table."""

    def __init__(self, table: Table) -> None:
        """Keep the table."""
        self.table = table

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Add a row."""
        self.table.add({"steps": step, **key_values})

    def close(self) -> None:
        """Nothing is open between rows."""


class EventWriter(TensorBoardOutputFormat):
    """TensorBoard events; those of a killed run that lie after its checkpoint are hidden."""

    def __init__(self, folder: Path, upto: int) -> None:
        """Open the folder; events after step `upto` will be made again."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(log_dir=str(folder), purge_step=upto + 1)
        self._is_closed = False


class Display:
    """A line of progress: steps, steps per second, mean episode reward, and score."""

    def __init__(self, console: Console, config: TrainConfig, done: int) -> None:
        """Make the bar; `start` shows it."""
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} steps{task.fields[news]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self.bar.add_task(config.algorithm, total=config.steps, completed=done, news="")
        self._news: dict[str, str] = {}

    def show(self, steps: int, **news: str) -> None:
        """Move the bar, with news beside it."""
        self._news |= news
        text = "".join(f", {name} {value}" for name, value in self._news.items())
        self.bar.update(self._task, completed=steps, news=text)


class Follow(BaseCallback):
    """Logs, evaluates and saves, always between updates, so that training can go on from there.

    Attributes:
        notes: what a checkpoint has to remember of this.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        evaluations: Table,
        display: Display,
        save_router: Callable[[Path], None],
        notes: Mapping[str, Any] | None,
    ) -> None:
        """Set it up.

        Args:
            config: the run.
            folder: of the run.
            evaluations: gets a row per router and condition at every evaluation.
            display: where progress is shown.
            save_router: writes the model's present weights as the folder of a router.
            notes: of the checkpoint that training goes on from.
        """
        super().__init__()
        self.config = config
        self.folder = folder
        self.notes: dict[str, Any] = {
            "logged": 0,
            "evaluated": None,
            "references": {},
            "best": None,
            **(notes or {}),
        }
        self._evaluations = evaluations
        self._display = display
        self._save_router = save_router
        self._since = (0, 0.0)  # steps and time at which training last began or went on

    def _on_training_start(self) -> None:
        if self.notes["evaluated"] is None:
            for name in self.config.evaluation.references:
                self._keep(name.partition("/")[2], evaluate(self.config, Router(name, name)), 0)
        self._since = (self.model.num_timesteps, time.perf_counter())

    def _on_rollout_start(self) -> None:
        self._look(self.config.log_every, self.config.evaluation.every)

    def _on_training_end(self) -> None:
        self._look(1, 1)

    def _on_step(self) -> bool:
        return True

    def _look(self, log_every: int, evaluate_every: int) -> None:
        steps, notes = self.model.num_timesteps, self.notes
        if steps // log_every > notes["logged"] // log_every:
            self._log(steps)
        evaluated = notes["evaluated"]
        if evaluated is None or steps // evaluate_every > evaluated // evaluate_every:
            self._evaluate(steps)
            self._since = (steps, time.perf_counter())

    def _log(self, steps: int) -> None:
        model: Any = self.model
        before, begun = self._since
        rate = (steps - before) / max(time.perf_counter() - begun, 1e-9)
        self.logger.record("time/training_steps_per_s", rate)
        self.notes["logged"] = steps
        model.dump_logs()
        episodes = model.ep_info_buffer
        reward = {"reward": f"{_middle('r', episodes):.4g}"} if episodes else {}
        self._display.show(steps, **{"steps/s": f"{rate:,.0f}"}, **reward)

    def _evaluate(self, steps: int) -> None:
        with tempfile.TemporaryDirectory() as place:
            router = Path(place) / "router"
            self._save_router(router)
            name = f"{self.config.family}/learned"
            means = evaluate(self.config, Router(name, name, {"path": str(router)}))
        of = SCORES[self.config.family]
        score = self._keep(LEARNED, means, steps)
        best = self.notes["best"]
        self.notes["evaluated"] = steps
        if best is None or of.sign * score > of.sign * best[of.metric]:
            self.notes["best"] = {"steps": steps, **means[OVERALL]}
            save_model(self.folder / BEST, self.model, self.notes)
        self.logger.record(f"evaluation/{of.metric}", score)
        self.logger.dump(steps)
        save_checkpoint(self.folder / LAST, self.model, self.notes)
        draw_curves(self.folder.path, of.metric)
        self._display.show(steps, **{of.metric: f"{score:.4f}"})

    def _keep(self, router: str, means: Mapping[str, Mapping[str, float | None]], steps: int) -> float:
        for condition, row in means.items():
            self._evaluations.add({"steps": steps, "router": router, "condition": condition, **row})
        score = means[OVERALL][SCORES[self.config.family].metric]
        if score is None:
            raise ValueError(f"{router} has no score: no episode of the evaluation had a request")
        if router != LEARNED:
            self.notes["references"][router] = means[OVERALL]
        return score
