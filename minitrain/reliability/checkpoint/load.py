"""Fills a run's state from a checkpoint, bit for bit, on the ranks that saved it or on others.

Everything is checked before anything is changed: checksums, names, shapes, that nothing is missing.
Lab: e12.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from minitrain.errors import InputError
from minitrain.generators import GeneratorStates, restore_generators
from minitrain.reliability.checkpoint.contents import ALONE, CheckpointRanks, Layout, whole_layout
from minitrain.reliability.checkpoint.folder import newest_checkpoint, verify
from minitrain.reliability.checkpoint.placement import Place, Placed, whole_place
from minitrain.reliability.checkpoint.stored import Stored, stored_in
from minitrain.training.state import TrainState


def load_checkpoint(
    path: Path,
    state: TrainState,
    ranks: CheckpointRanks = ALONE,
    layout: Layout | None = None,
) -> TrainState:
    """Fills `state` (and this rank's random generators) from a checkpoint, or from a run's newest.

    InputError leaves `state` as it was.
    """
    folder = newest_checkpoint(path)
    manifest = verify(folder)
    same = manifest["ranks"] == ranks.size
    if not same and not ranks.may_change:
        raise InputError(
            f"{folder} was saved by {manifest['ranks']} ranks and {ranks.size} would resume it; "
            f"each has its own random state: use {manifest['ranks']} ranks, or start a new run"
        )
    placed = (layout or whole_layout())(state, ranks)
    with ExitStack() as stack:
        weights, kept = (stored_in(folder, kind, stack) for kind in ("model", "optimizer"))
        weights.check_names(placed)
        settings, plain = _settings(folder)
        groups = _groups(folder, state.optimizer.param_groups, placed.parameters, settings)
        fill(state, placed, weights, kept, groups, plain)
    own = ranks.rank if ranks.rank < manifest["ranks"] else 0
    _read_own(folder, state.loader, f"rank-{own:03d}")
    progress = json.loads((folder / "progress.json").read_text())
    state.step, state.tokens = progress["step"], progress["tokens"]
    state.seconds = progress["seconds"]
    if state.scaler:
        state.scaler.load_state_dict(progress["scaler"])
    return state


@torch.no_grad()
def fill(
    state: TrainState,
    placed: Placed,
    weights: Stored,
    kept: Stored,
    groups: list[dict],
    plain: dict[str, Any],
) -> None:
    """Model and optimizer, from stored tensors; `groups` as an optimizer's state_dict has them."""
    copies = [copy for place, t in placed.weights for copy in weights.copies(place, t)]
    optimizer = _state(kept, placed.parameters, plain)
    for copy in copies:
        copy.make()
    state.optimizer.load_state_dict({"state": optimizer, "param_groups": groups})
    placed.settle()


def _state(stored: Stored, places: list[Place], plain: dict[str, Any]) -> dict[int, dict]:
    """What the optimizer keeps of each parameter, by its number."""
    kinds: dict[str, list[str]] = {}
    for key in (*stored.boxes, *plain):
        name, kind = key.removeprefix("state.").rsplit(".", 1)
        kinds.setdefault(name, []).append(kind)
    state: dict[int, dict] = {}
    for index, place in enumerate(places):
        for kind in kinds.get(place.name, ()):
            key = f"state.{place.name}.{kind}"
            value = plain[key] if key in plain else stored.tensor(_state_place(stored, place, key))
            state.setdefault(index, {})[kind] = value
    return state


def _state_place(stored: Stored, place: Place, key: str) -> Place:
    """Of state that lies as its parameter does, or that each rank has all of."""
    shape = stored.shape(key)
    return replace(place, name=key) if shape == place.whole else whole_place(key, shape)


def _settings(folder: Path) -> tuple[dict[str, dict], dict[str, Any]]:
    """Each parameter's settings, by its name, and the state that is no tensor."""
    settings, plain = {}, {}
    for path in sorted([folder / "optimizer.json", *folder.glob("optimizer-*.json")]):
        if path.is_file():
            read = json.loads(path.read_text())
            plain |= read["plain"]
            for group in read["param_groups"]:
                own = {name: value for name, value in group.items() if name != "params"}
                settings |= dict.fromkeys(group["params"], own)
    return settings, plain


def _groups(
    folder: Path, groups: list[dict], places: list[Place], settings: dict[str, dict]
) -> list[dict]:
    out, start = [], 0
    for group in groups:
        numbers = range(start, start + len(group["params"]))
        start = numbers.stop
        names = [places[number].name for number in numbers]
        if missing := [name for name in names if name not in settings]:
            raise InputError(
                f"{folder} has no optimizer settings for {missing[0]}: resume with the optimizer "
                "that the run was started with"
            )
        theirs = settings[names[0]] if names else {k: v for k, v in group.items() if k != "params"}
        out.append({**theirs, "params": list(numbers)})
    return out


def _read_own(folder: Path, loader: Any, name: str) -> None:
    own = json.loads((folder / f"{name}.json").read_text())
    loader.load_state_dict(own["loader"])
    with safe_open(str(folder / f"{name}.safetensors"), framework="pt") as file:
        states = {key.removeprefix(f"{name}."): file.get_tensor(key) for key in list(file.keys())}
    version, words, gauss = own["python"]
    restore_generators(
        GeneratorStates(
            torch={torch.device(device): state for device, state in states.items()},
            numpy=tuple(own["numpy"]),
            python=(version, tuple(words), gauss),
        )
    )
