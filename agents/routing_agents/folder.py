"""A trained router as a folder: weights, a manifest and a model card; nothing in it can be run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from routing_agents.card import card
from routing_agents.inference import Weights, weight_shapes
from routing_agents.manifest import LearnedError, Manifest
from routing_gym.common.config import ConfigError, validate
from routing_gym.common.folders import replaced

FORMAT = 1
WEIGHTS, MANIFEST, CARD = "weights.safetensors", "manifest.json", "README.md"


def save(folder: str | Path, manifest: Manifest, weights: Weights, *, overwrite: bool = False) -> None:
    """Write a router's folder. It appears complete or not at all: written beside its place, then renamed.

    Args:
        folder: where; its parent is made where it is missing.
        manifest: the router.
        weights: named and shaped as `weight_shapes` says.
        overwrite: whether a folder saved earlier may be replaced.

    Raises:
        LearnedError: the weights are not what the manifest says, or there is something at `folder` that may
            not be replaced.
    """
    place = Path(folder).absolute()
    _check_weights(place, manifest, weights)
    _check_free(place, overwrite)
    with replaced(place) as new:
        arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in weights.items()}
        data = safetensors.numpy.save(arrays)
        (new / WEIGHTS).write_bytes(data)
        (new / MANIFEST).write_text(_rendered(manifest, data), encoding="utf-8")
        (new / CARD).write_text(card(manifest), encoding="utf-8")


def load(folder: str | Path) -> tuple[Manifest, dict[str, NDArray[np.float32]]]:
    """Read a router's folder, once its manifest and the weights' size, SHA-256 and shapes are checked.

    Raises:
        LearnedError: a file is missing, damaged, of another format or for other features; says what differs.
    """
    place = Path(folder)
    manifest, due = _manifest(place)
    path = place / WEIGHTS
    data = _read(path)
    found = _fingerprint(data)
    if found != due:
        raise LearnedError(f"{path}: is damaged: it has {_told(found)}; {MANIFEST} says {_told(due)}")
    try:
        weights = safetensors.numpy.load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise LearnedError(f"{path}: is no safetensors file: {error}") from error
    _check_weights(path, manifest, weights)
    return manifest, weights


def _manifest(place: Path) -> tuple[Manifest, Any]:
    """Return the manifest, and the fingerprint of the weights that it is for."""
    path = place / MANIFEST
    if not place.is_dir():
        raise LearnedError(f"{place}: there is no such folder")
    try:
        content = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise LearnedError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise LearnedError(f"{path}: must hold an object, not {type(content).__name__}")
    if content.get("format") != FORMAT:
        raise LearnedError(
            f"{path}: format = {content.get('format')!r}; this version of routing-gym reads format {FORMAT}"
        )
    due = content.pop("sha256", None)
    found = _digest(content)
    if found != due:
        raise LearnedError(f"{path}: was changed: its sha256 is {found}; it says {due}")
    del content["format"]
    fingerprint = content.pop("weights", None)
    try:
        manifest = validate(Manifest, content)
    except ConfigError as error:
        raise LearnedError(f"{path}: {error}") from None
    _check_inputs(path, manifest)
    return manifest, fingerprint


def _check_inputs(path: Path, manifest: Manifest) -> None:
    """Check that the router was trained on the environment and the features of this version."""
    family = manifest.due
    for field in ("environment", "observation"):
        found, due = getattr(manifest, field), getattr(family, field)
        if found != due:
            raise LearnedError(f"{path}: {field} = {found!r}; in this version it is {due!r}")
    for field in ("context_features", "element_features"):
        found, due = getattr(manifest, field), getattr(family, field)
        differs = {
            "it needs": [name for name in found if name not in due],
            "it does not know": [name for name in due if name not in found],
        }
        if any(differs.values()):
            told = "; ".join(f"{what} {', '.join(names)}" for what, names in differs.items() if names)
            raise LearnedError(f"{path}: {field} are not those of this version: {told}; train it again")
        for k, (own, this) in enumerate(zip_longest(found, due)):
            if own != this:
                raise LearnedError(
                    f"{path}: {field}[{k}] = {own!r}; in this version it is {this!r}: train it again"
                )


def _check_weights(place: Path, manifest: Manifest, weights: Weights) -> None:
    shapes = weight_shapes(manifest.sizes)
    for name in [*shapes, *sorted(weights.keys() - shapes.keys())]:
        found = weights[name].shape if name in weights else "none"
        due = shapes.get(name, "none")
        if found != due:
            raise LearnedError(f"{place}: {name} has shape {found}; after the manifest it must be {due}")
        if weights[name].dtype != np.float32:
            raise LearnedError(f"{place}: {name} is of type {weights[name].dtype}; it must be float32")
        if not np.isfinite(weights[name]).all():
            raise LearnedError(f"{place}: {name} holds numbers that are not finite")


def _check_free(place: Path, overwrite: bool) -> None:
    if not place.exists():
        return
    if not overwrite:
        raise LearnedError(f"{place}: is there already; overwrite replaces a folder saved earlier")
    names = {path.name for path in place.iterdir()} if place.is_dir() else {place.name}
    others = sorted(names - {WEIGHTS, MANIFEST, CARD})
    if others:
        raise LearnedError(f"{place}: holds {others[0]}, which no saved router does; it is not replaced")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LearnedError(f"{path}: cannot be read: {error.strerror}") from error


def _fingerprint(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _told(fingerprint: Any) -> str:
    if not isinstance(fingerprint, dict):
        return repr(fingerprint)
    return f"{fingerprint.get('bytes')} bytes with sha256 {fingerprint.get('sha256')}"


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _rendered(manifest: Manifest, weights: bytes) -> str:
    """Return the file of a manifest, which ends with the hash of what is before."""
    content = {"format": FORMAT, **manifest.model_dump(mode="json"), "weights": _fingerprint(weights)}
    return json.dumps({**content, "sha256": _digest(content)}, indent=2) + "\n"
