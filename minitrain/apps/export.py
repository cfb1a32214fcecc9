"""`python -m minitrain export SOURCE --out FOLDER`: a model in Hugging Face form, for every reader.

SOURCE is a run (its newest checkpoint, or --step N), one checkpoint, or a GGUF file. Runs from any
mesh are alike: a checkpoint holds the whole model under one process's names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minitrain.apps.kinds import FOLDER, PATH, Argument, Option, whole
from minitrain.errors import InputError

if TYPE_CHECKING:
    from minitrain.model.hub.text import TextFiles
    from minitrain.model.transformer import Transformer


def export(
    source: Annotated[Path, Argument(PATH, "a run, one of its checkpoints, or a GGUF file")],
    out: Annotated[Path, Option(FOLDER, "the folder to write, new or empty")],
    step: Annotated[
        int | None, Option(whole(0, 10**12), "which of a run's checkpoints", "the newest")
    ] = None,
) -> None:
    """Write a run's model, or a GGUF file's, as a folder that transformers opens."""
    from minitrain.measure.parameters import parameter_count
    from minitrain.model.hub.load import save_pretrained

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already and is not empty: give --out another name")
    model, text, origin = read_source(source, step)
    save_pretrained(model, out, text=text)
    tokenizer = "its tokenizer" if text.tokenizer else "no tokenizer"
    print(f"{out} holds {origin}: {parameter_count(model.config):,} parameters and {tokenizer}")
    print(f"open it with: AutoModelForCausalLM.from_pretrained({str(out)!r})")


def read_source(source: Path, step: int | None) -> tuple[Transformer, TextFiles, str]:
    """The model, how it reads text, and in words where they are from."""
    from minitrain.model.hub.gguf import find_gguf
    from minitrain.model.hub.load import load_pretrained
    from minitrain.reliability.checkpoint.folder import verify

    file = find_gguf(source)
    if file is not None:
        return *load_pretrained(file), f"the model of {file}"
    checkpoint = checkpoint_of(source, step)
    manifest = verify(checkpoint)
    check_has_form(checkpoint)
    return *load_pretrained(checkpoint), f"step {manifest['step']:,} of {checkpoint.parent}"


def checkpoint_of(source: Path, step: int | None) -> Path:
    from minitrain.reliability.checkpoint.folder import checkpoints, newest_checkpoint

    if source.is_file():
        raise InputError(f"{source} is a file: give the run's folder, a checkpoint's, or a .gguf")
    if step is None:
        return newest_checkpoint(source)
    found = {int(path.name.removeprefix("step-")): path for path in checkpoints(source)}
    if step not in found:
        kept = ", ".join(map(str, found)) or "none"
        raise InputError(f"{source} keeps no checkpoint of step {step}: it has {kept}")
    return found[step]


def check_has_form(checkpoint: Path) -> None:
    """InputError with the reason where `train` could write no config.json."""
    from minitrain.apps.train.options import RUN_FILE
    from minitrain.model.config import preset
    from minitrain.model.hub.config import hub_config, read_json

    if not (checkpoint / "config.json").is_file():
        hub_config(preset(read_json(checkpoint / RUN_FILE)["preset"]), None, "float32")
