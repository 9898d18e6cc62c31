"""The model card of a trained router, written from its manifest alone."""

from __future__ import annotations

from collections.abc import Mapping

from routing_agents.manifest import Manifest

_WHAT = {
    "cluster": "the inference cluster: it names the replica that serves a request",
    "cloud_edge": "cloud–edge batches: it names each request's destination, one request at a time",
}
_ELEMENT = {"cluster": "replica", "cloud_edge": "destination"}
_READS = {
    "router": "It reads a proxy's own records alone (`observation: router`), not what replicas report.",
    "request": "It reads the observation of the request at hand.",
}


def card(manifest: Manifest) -> str:
    """Return the card in Markdown: what it is, how it is used, how it was trained, scores and limits."""
    sections = {
        "Use": _use(manifest),
        "Training": _training(manifest),
        "Scores": _scores(manifest.scores),
        "Limits": _limits(manifest),
    }
    parts = [f"# A learned router for {_WHAT[manifest.family].partition(':')[0]}", _summary(manifest)]
    parts += [f"## {title}\n\n{text}" for title, text in sections.items()]
    return "\n\n".join(parts) + "\n"


def _summary(manifest: Manifest) -> str:
    element = _ELEMENT[manifest.family]
    network = (
        f"It scores every {element} by the same network, beside a summary of all of them, and takes the best"
        if manifest.network == "set"
        else f"It takes the best of the scores that a plain network of two layers gives the {element}s"
    )
    return (
        f"A network trained by reinforcement on `{manifest.environment}`, for {_WHAT[manifest.family]}. "
        f"{network}. {_READS[manifest.observation]} Inputs are {len(manifest.element_features)} features of "
        f"each {element} and {len(manifest.context_features)} of the rest; hidden layers are "
        f"{manifest.hidden} wide. `manifest.json` lists the inputs."
    )


def _use(manifest: Manifest) -> str:
    return (
        "```python\n"
        "import routing_gym\n\n"
        f'router = routing_gym.make_policy("{manifest.family}/learned", path="this/folder")\n'
        "action, state = router.predict(observation, state, episode_start)\n"
        "```\n\n"
        "It runs on NumPy: the core install is enough. Loading checks sizes, hashes and names, and runs "
        "nothing that the folder holds."
    )


def _training(manifest: Manifest) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in manifest.versions.items())
    return (
        f"```\n{manifest.command}\n```\n\n"
        + _table(("", ""), [(name, str(value)) for name, value in manifest.training.items()])
        + f"\n\nThe conditions are `config` of `manifest.json` (hash {manifest.config_hash}). "
        f"Versions: {versions}."
    )


def _scores(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    if not scores:
        return "None were recorded."
    metrics = list(dict.fromkeys(metric for row in scores.values() for metric in row))
    rows = [(name, *(_number(row.get(metric)) for metric in metrics)) for name, row in scores.items()]
    return _table(("", *metrics), rows)


def _limits(manifest: Manifest) -> str:
    element = _ELEMENT[manifest.family]
    limits = [
        "It was trained in simulation, on the conditions above. How it does on others is not known; the "
        "evaluation protocol of routing-gym tells.",
        f"Its weights fit any number of {element}s, which does not say that it is as good at all of them."
        if manifest.network == "set"
        else f"Its weights fit {manifest.elements} {element}s, no other number.",
    ]
    if manifest.family == "cluster":
        limits.append(
            "It may reject requests, and needs `admission: true`."
            if manifest.admission
            else "It never rejects a request, and needs `admission: false`."
        )
    return "\n".join(f"- {limit}" for limit in limits)


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.5g}"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
