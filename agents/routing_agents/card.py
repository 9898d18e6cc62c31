"""The model card of a trained router, written from its manifest alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
        f"{manifest.hidden} wide. `manifest.json` lists the inputs.\n\n"
        f"{_trained_for(manifest)}"
    )


def _trained_for(manifest: Manifest) -> str:
    if manifest.family == "cloud_edge":
        catalogue, windows = _catalogue(manifest.config), _windows(manifest.config)
        return f"It was trained on {catalogue}, {windows}, at {_arrivals(manifest)}."
    replicas = len(_values(manifest, "service_ms")[0])
    lengths = [
        "hidden"
        if sigma is None
        else f"predicted, with a log-error of {sigma:g}"
        if sigma
        else "known exactly"
        for sigma in _values(manifest, "prediction_sigma")
    ]
    text = (
        f"It was trained on {_counted(replicas, 'replica')}, at {_arrivals(manifest)}. "
        f"Output lengths were {' or '.join(lengths)}; requests could {'' if manifest.admission else 'not '}"
        "be rejected."
    )
    if manifest.reward_features:
        text += " It is told the weights of the reward (`reward=…`)."
    return text


def _catalogue(config: Mapping[str, Any]) -> str:
    hosted = [set(node["models"]) - set(config["drop"]) for node in config["catalogue"]["nodes"]]
    nodes = config["replicate"] * sum(map(bool, hosted))
    return f"{_counted(nodes, 'node')} with {_counted(len(set().union(*hosted)), 'model')}"


def _windows(config: Mapping[str, Any]) -> str:
    return f"in episodes of {config['windows']} windows of {config['window_s']:g} s"


def _arrivals(manifest: Manifest) -> str:
    fields = {"requests": "{} requests a window", "load": "a load of {}", "rate_per_s": "{} requests/s"}
    if manifest.family == "cluster" and _values(manifest, "trace") != [None]:
        del fields["rate_per_s"]  # a cluster's trace is scaled by the load alone
    told = []
    for field, words in fields.items():  # one that is given goes before the next
        values = _values(manifest, field)
        given = [value for value in values if value is not None]
        if given:
            told.append(words.format(_span(given)))
        if given == values:
            break
    else:
        told.append("a trace's own rate")
    return " or ".join(told)


def _values(manifest: Manifest, field: str) -> list[Any]:
    """Return the values that a field of the conditions had: where rows varied it, `config` has the first."""
    config = manifest.config
    base = config.get("base", {})  # of a distribution, which has ranges of some fields and a null for none
    value = base.get(field) if config.get(field) is None else config[field]
    return list(manifest.training.get("vary", {}).get(field, [value]))


def _span(values: list[Any]) -> str:
    """Return from where to where numbers, and ranges of them, go."""
    ends = [end for value in values for end in (value if isinstance(value, (list, tuple)) else [value])]
    low, high = min(ends), max(ends)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


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
        + _table(("", ""), [(name, _scalar(value)) for name, value in _flat(manifest.training)])
        + f"\n\nThe conditions are `config` of `manifest.json` (hash {manifest.config_hash}). "
        f"Versions: {versions}."
    )


def _flat(training: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the training as rows, without what was not made use of."""
    rows: list[tuple[str, Any]] = []
    for name, value in training.items():
        if name == "hyperparameters":
            rows += value.items()
        elif name == "vary":
            rows += [(f"{name} {field}", values) for field, values in value.items()]
        elif (name, value) != ("reward_features", False):
            rows.append((name, value))
    return rows


def _scores(scores: Mapping[str, Mapping[str, float | None]]) -> str:
    if not scores:
        return "None were recorded."
    metrics = list(dict.fromkeys(metric for row in scores.values() for metric in row))
    rows = [(name, *(_number(row.get(metric)) for metric in metrics)) for name, row in scores.items()]
    return (
        _table(("", *metrics), rows)
        + "\n\nThe checkpoint was chosen by these episodes, so its figures flatter. Percentiles are medians "
        "over conditions, and — is infinite or undefined. docs/learned.md has results on seeds that were "
        "kept apart."
    )


def _limits(manifest: Manifest) -> str:
    element = _ELEMENT[manifest.family]
    limits = [
        "It was trained in simulation. How it does on conditions other than those that it was trained on is "
        "not known; the evaluation protocol of routing-gym tells.",
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


def _scalar(value: Any) -> str:
    """Return a value as YAML reads it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
