"""The figures of a part, each where its data are."""

from __future__ import annotations

from routing_gym.reporting.analysis import Analysis, analyse
from routing_gym.reporting.cloud_edge_figures import cloud_edge_figures
from routing_gym.reporting.cluster_figures import cluster_figures
from routing_gym.reporting.common_figures import profile, rank
from routing_gym.reporting.condition_figures import against, heatmap
from routing_gym.reporting.figure import Figure
from routing_gym.reporting.parameter_figure import candidates, parameters
from routing_gym.reporting.view import View
from routing_gym.studies.results import PartResults


def figures_of(results: PartResults, analysis: Analysis | None = None) -> list[Figure]:
    """Return a part's figures in the order of its report; drawing them needs matplotlib (extra `plots`).

    Args:
        results: the part's episodes.
        analysis: what `analyse` says of them; None works it out.
    """
    view = View(results, analyse(results) if analysis is None else analysis)
    figures = [rank(view), parameters(view), candidates(view), heatmap(view), against(view), profile(view)]
    figures += {"cluster": cluster_figures, "cloud_edge": cloud_edge_figures}[results.show.family](view)
    return [figure for figure in figures if figure is not None]
