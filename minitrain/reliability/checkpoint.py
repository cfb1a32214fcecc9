"""A checkpoint holds everything that a run needs to go on as if it had never stopped, bit for bit.

    runs/NAME/.step-00000120.saving/   written and flushed to the disk, then, in one atomic rename,
    runs/NAME/step-00000120/           model, optimizer, rank-000 (its RNG, its place in the data)
Killed at any moment, the disk holds the checkpoint before or the new one, never half of one; the
manifest's SHA-256s say so when it is read. Only safetensors and JSON: reading one runs no code.
Cost: 12 bytes a parameter in float32 (weight and AdamW's two means). Lab: e12.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.training.state import Ranks, TrainState

MANIFEST = "manifest.json"


def save_checkpoint(
    run: Path,
    state: TrainState,
    files: dict[str, str] | None = None,
    ranks: Ranks = Ranks(),
    keep: int = 2,
) -> Path:
    """Writes runs/NAME/step-… and returns it; `files` (name -> text) are kept beside the tensors.

    All ranks call it, with one folder that all of them see; the newest `keep` checkpoints stay.
    A step that is there already is left as it is: a run comes to each step once.
    """
    final = run / f"step-{state.step:08d}"
    if final.is_dir():
        return final
    temporary = run / f".{final.name}.saving"
    if ranks.rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)  # left there by a run that was killed
        temporary.mkdir(parents=True)
    ranks.barrier()  # the folder is there
    _write_rank(temporary, state.loader, ranks.rank)
    ranks.barrier()  # every rank's file is there
    if ranks.rank == 0:
        _write_shared(temporary, state, files or {}, ranks.size)
        os.rename(temporary, final)
        _flush(run)
        for old in checkpoints(run)[:-keep]:
            shutil.rmtree(old)
    ranks.barrier()  # it may be relied on
    return final


def load_checkpoint(path: Path, state: TrainState, ranks: Ranks = Ranks()) -> TrainState:
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
    _same_shapes(folder, state.model)
    load_model(state.model, folder / "model.safetensors")
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
    tensors, python = rng_state()
    save_file(tensors, folder / f"rank-{rank:03d}.safetensors")
    text = json.dumps({"loader": loader.state_dict(), "python": python})
    (folder / f"rank-{rank:03d}.json").write_text(text)
    _flush(folder / f"rank-{rank:03d}.safetensors", folder / f"rank-{rank:03d}.json")


def _read_rank(folder: Path, loader: Any, rank: int) -> None:
    own = json.loads((folder / f"rank-{rank:03d}.json").read_text())
    loader.load_state_dict(own["loader"])
    restore_rng(load_file(folder / f"rank-{rank:03d}.safetensors"), own["python"])


def rng_state() -> tuple[dict[str, Tensor], list]:
    """The states of torch's generators (CPU and CUDA), of NumPy's and of Python's."""
    _, keys, position, has_gauss, gauss = np.random.get_state()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(keys.astype(np.int64))}
    tensors["numpy_rest"] = torch.tensor([position, has_gauss, gauss], dtype=torch.float64)
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors, list(random.getstate())


def restore_rng(tensors: dict[str, Tensor], python: list) -> None:
    """Puts back what `rng_state` gave."""
    version, words, gauss = python
    random.setstate((version, tuple(words), gauss))
    position, has_gauss, cached = tensors["numpy_rest"].tolist()
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), cached))
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


# --- what all ranks share: the model, the optimizer, the counts, the manifest ---


def _write_shared(folder: Path, state: TrainState, files: dict[str, str], size: int) -> None:
    save_model(state.model, str(folder / "model.safetensors"))  # a tied tensor is written once
    tensors, rest = _split(state.optimizer.state_dict())
    save_file(tensors, folder / "optimizer.safetensors")
    progress = {"step": state.step, "tokens": state.tokens, "seconds": state.seconds}
    if state.scaler:
        progress["scaler"] = state.scaler.state_dict()
    texts = {"optimizer.json": json.dumps(rest), "progress.json": json.dumps(progress), **files}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
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


def _same_shapes(folder: Path, model: nn.Module) -> None:
    """InputError, naming the first difference, unless the file has the shapes of the model."""
    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in list(file.keys())}
    here = model.state_dict(keep_vars=True)  # a tied tensor has two names, and is one object
    found = [id(here[name]) for name in saved if name in here]
    differences = [
        *(
            f"{name} is {shape} there and {tuple(here[name].shape)} here"
            for name, shape in saved.items()
            if name in here and shape != tuple(here[name].shape)
        ),
        *(f"{name} is only there" for name in saved if name not in here),
        *(f"{name} is only here" for name, tensor in here.items() if id(tensor) not in found),
        *(f"{name} is tied here" for name in saved if found.count(id(here.get(name))) > 1),
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
