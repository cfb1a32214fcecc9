"""A checkpoint: everything that a run needs to go on as if it had never stopped, bit for bit.

    runs/NAME/.step-00000120.saving/   written and flushed to the disk, then, in one atomic rename,
    runs/NAME/step-00000120/           model, optimizer, rank-000 (its generators, its place in the
                                       data), and what else the run keeps beside them
Killed at any moment, the disk holds the checkpoint before or the new one, never half of one; the
manifest's SHA-256s say so when it is read, and the next save clears away what a kill has left.
Only safetensors and JSON: reading one runs no code. Under which names the model's tensors are
stored is the caller's choice: under the hub's, a checkpoint is a folder that others open too.
Cost: 12 bytes a parameter in float32 (weight and AdamW's two means). Lab: e12.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.generators import GeneratorStates, generator_states, restore_generators
from minitrain.training.state import TrainState

MANIFEST, WEIGHTS = "manifest.json", "model.safetensors"
Named = Callable[[nn.Module], dict[str, Tensor]]  # a model's tensors, or views of them, by name


@dataclass(frozen=True)
class CheckpointRanks:
    """The ranks that share a checkpoint: each writes its own file, rank 0 the rest.

    `barrier` waits for all. `may_change`: another number of ranks may resume, since training draws
    no random numbers; all then begin where rank 0 was in the data.
    """

    rank: int = 0
    size: int = 1
    barrier: Callable[[], object] = lambda: None
    may_change: bool = False


def own_names(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under their own names; a tied one under its first."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor.detach()))
    return dict(found.values())


def save_checkpoint(
    run: Path,
    state: TrainState,
    files: Mapping[str, bytes] | None = None,
    ranks: CheckpointRanks = CheckpointRanks(),
    keep: int = 2,
    named: Named = own_names,
) -> Path:
    """Writes runs/NAME/step-… and returns it; `files` (name -> bytes) are kept beside the tensors.

    All ranks call it, with one folder that all of them see; the newest `keep` checkpoints stay.
    A step that is there already is left as it is: a run comes to each step once.
    """
    final = run / f"step-{state.step:08d}"
    if final.is_dir():
        return final
    temporary = run / f".{final.name}.saving"
    if ranks.rank == 0:
        clear_leftovers(run)
        temporary.mkdir(parents=True)
    ranks.barrier()  # the folder is there
    _write_rank(temporary, state.loader, ranks.rank)
    ranks.barrier()  # every rank's file is there
    if ranks.rank == 0:
        _write_shared(temporary, state, named(state.model), files or {}, ranks.size)
        os.rename(temporary, final)
        _flush(run)
        for old in checkpoints(run)[:-keep]:
            _remove(old)
    ranks.barrier()  # it may be relied on
    return final


def load_checkpoint(
    path: Path,
    state: TrainState,
    ranks: CheckpointRanks = CheckpointRanks(),
    named: Named = own_names,
) -> TrainState:
    """Fills `state` (and this rank's random generators) from a checkpoint, or from a run's newest.

    Everything is checked before anything is changed: InputError leaves `state` as it was.
    """
    folder = newest_checkpoint(path)
    manifest = verify(folder)
    same = manifest["ranks"] == ranks.size
    if not same and not ranks.may_change:
        raise InputError(
            f"{folder} was saved by {manifest['ranks']} ranks and {ranks.size} would resume it; "
            f"each has its own random state: use {manifest['ranks']} ranks, or start a new run"
        )
    _read_model(folder, named(state.model))
    state.optimizer.load_state_dict(_read_optimizer(folder))
    _read_rank(folder, state.loader, ranks.rank if same else 0)
    progress = json.loads((folder / "progress.json").read_text())
    state.step, state.tokens = progress["step"], progress["tokens"]
    state.seconds = progress["seconds"]
    if state.scaler:
        state.scaler.load_state_dict(progress["scaler"])
    return state


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first; a half-written one has another name."""
    return sorted(path for path in run.glob("step-*") if (path / MANIFEST).is_file())


def clear_leftovers(run: Path) -> None:
    """Removes what a killed run has left half written or half removed."""
    for path in run.glob(".step-*"):
        shutil.rmtree(path)


def _remove(checkpoint: Path) -> None:
    """Renamed first: a kill in between leaves no checkpoint that has lost some of its files."""
    doomed = checkpoint.with_name(f".{checkpoint.name}.removing")
    os.rename(checkpoint, doomed)
    shutil.rmtree(doomed)


def newest_checkpoint(path: Path) -> Path:
    """`path` itself if it is a checkpoint, else the newest one in the run's folder `path`."""
    if path.name.startswith("step-") and path.is_dir():
        return path
    if not path.is_dir():
        raise InputError(f"there is no folder {path}: give the folder of a run (runs/NAME)")
    found = checkpoints(path)
    if not found:
        raise InputError(f"{path} holds no checkpoint (step-…): start this run without --resume")
    return found[-1]


def verify(folder: Path) -> dict:
    """The manifest, after every file has been found to have the SHA-256 that it states."""
    remedy = f"remove {folder} and resume from an older step in {folder.parent}, or start a new run"
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        stated = manifest["files"].items()
        broken = [name for name, sha256 in stated if _sha256(folder / name) != sha256]
        manifest["ranks"], manifest["step"]  # a manifest has these
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"the checkpoint {folder} cannot be read ({error}): {remedy}") from error
    if broken:
        names = ", ".join(broken)
        raise InputError(f"the checkpoint {folder} is damaged (SHA-256 of {names}): {remedy}")
    return manifest


# --- what one rank owns: its random generators and its place in the data ---


def _write_rank(folder: Path, loader: Any, rank: int) -> None:
    states = generator_states()
    numpy_kind, words, *numpy_rest = states.numpy
    own = {
        "loader": loader.state_dict(),
        "numpy": [numpy_kind, words.tolist(), *numpy_rest],
        "python": states.python,
    }
    name = f"rank-{rank:03d}"
    generators = {str(device): state for device, state in states.torch.items()}
    save_file(generators, folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps(own))
    _flush(folder / f"{name}.safetensors", folder / f"{name}.json")


def _read_rank(folder: Path, loader: Any, rank: int) -> None:
    own = json.loads((folder / f"rank-{rank:03d}.json").read_text())
    loader.load_state_dict(own["loader"])
    stored = load_file(folder / f"rank-{rank:03d}.safetensors")
    version, words, gauss = own["python"]
    restore_generators(
        GeneratorStates(
            torch={torch.device(name): state for name, state in stored.items()},
            numpy=tuple(own["numpy"]),
            python=(version, tuple(words), gauss),
        )
    )


# --- what all ranks share: the model, the optimizer, the counts, the manifest ---


def _write_shared(
    folder: Path,
    state: TrainState,
    weights: dict[str, Tensor],
    files: Mapping[str, bytes],
    size: int,
) -> None:
    kept = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})
    tensors, rest = _split(state.optimizer.state_dict())
    save_file(tensors, folder / "optimizer.safetensors")
    progress = {"step": state.step, "tokens": state.tokens, "seconds": state.seconds}
    if state.scaler:
        progress["scaler"] = state.scaler.state_dict()
    for name, value in (("optimizer.json", rest), ("progress.json", progress)):
        (folder / name).write_text(json.dumps(value))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    written = sorted(path for path in folder.iterdir())
    manifest = {
        "step": state.step,
        "ranks": size,
        "files": {path.name: _sha256(path) for path in written},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    _flush(*written, folder / MANIFEST, folder)


def _split(optimizer: dict) -> tuple[dict[str, Tensor], dict]:
    """An optimizer's state_dict: its tensors, named "parameter.name", and the rest."""
    tensors, plain = {}, {}
    for index, values in optimizer["state"].items():
        for name, value in values.items():
            kind = tensors if isinstance(value, Tensor) else plain
            kind[f"{index}.{name}"] = value.contiguous() if kind is tensors else value
    return tensors, {"plain": plain, "param_groups": optimizer["param_groups"]}


def _read_optimizer(folder: Path) -> dict:
    rest = json.loads((folder / "optimizer.json").read_text())
    named = {**load_file(folder / "optimizer.safetensors"), **rest["plain"]}
    state: dict[int, dict] = {}
    for key, value in named.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return {"state": state, "param_groups": rest["param_groups"]}


def _read_model(folder: Path, here: dict[str, Tensor]) -> None:
    """Copies the weights into `here`; InputError before the first unless all have their shapes."""
    with safe_open(str(folder / WEIGHTS), framework="pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in list(file.keys())}
        _same_shapes(folder, saved, {name: tuple(tensor.shape) for name, tensor in here.items()})
        for name, tensor in here.items():
            tensor.copy_(file.get_tensor(name))


def _same_shapes(folder: Path, there: dict[str, tuple], here: dict[str, tuple]) -> None:
    differences = [
        *(
            f"{name} is {shape} there and {here[name]} here"
            for name, shape in there.items()
            if shape != here.get(name, shape)
        ),
        *(f"{name} is only there" for name in there if name not in here),
        *(f"{name} is only here" for name in here if name not in there),
    ]
    if differences:
        raise InputError(
            f"{folder} holds a model of another shape ({differences[0]}): resume with the options "
            "that the run was started with, or give a new run another --out"
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _flush(*paths: Path) -> None:
    """Waits until the disk itself has each file; a folder's flush makes the names in it last."""
    for path in paths:
        if path.is_dir() and os.name == "nt":
            continue  # Windows cannot open a folder, and flushes names by itself
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
