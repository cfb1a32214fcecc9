"""`python -m minitrain export SOURCE --out FOLDER`: a model in Hugging Face's form; `merge ADAPTER
--out FOLDER`: an adapter and its model as one plain model.

SOURCE is a run (its newest checkpoint, or --step N), one checkpoint, or a GGUF file. The run's mesh
does not matter: a checkpoint holds the whole model. ADAPTER is a run of `finetune`, or a folder of
PEFT's files. The merged model keeps the dtype in which its base is stored; a quantized base (QLoRA)
is merged into a dense model, since requantizing the sum would lose part of the update.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minitrain.apps.finetune.options import ADAPTER
from minitrain.apps.kinds import FOLDER, PATH, whole
from minitrain.apps.models import MODEL, open_model, refuse_taken
from minitrain.apps.options import Argument, Option
from minitrain.errors import InputError

if TYPE_CHECKING:
    from minitrain.model.hub.text import TextFiles
    from minitrain.model.transformer import Transformer


def export(
    source: Annotated[Path, Argument(PATH, "A run, one of its checkpoints, or a GGUF file.")],
    out: Annotated[Path, Option(FOLDER, "The folder to write, new or empty.")],
    step: Annotated[
        int | None, Option(whole(0, 10**12), "The step of the run's checkpoint.", "the newest")
    ] = None,
) -> None:
    """Write the model of a run or of a GGUF file as a folder that transformers opens.

    minitrain export runs/1M-corpus --out model
    minitrain export runs/1M-corpus --step 100 --out early
    """
    from minitrain.measure.parameters import parameter_count
    from minitrain.model.hub.load import save_pretrained

    refuse_taken(out)
    model, text, origin = read_source(source, step)
    save_pretrained(model, out, text=text)
    tokenizer = "its tokenizer" if text.tokenizer else "no tokenizer"
    print(f"{out} holds {origin}: {parameter_count(model.config):,} parameters and {tokenizer}")
    print(f"open it with: AutoModelForCausalLM.from_pretrained({str(out)!r})")


def read_source(source: Path, step: int | None) -> tuple[Transformer, TextFiles, str]:
    """The model, its tokenizer's files, and a description of their origin."""
    from minitrain.model.hub.load import find_gguf, load_pretrained
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
    """InputError with the reason why `train` wrote no config.json."""
    from minitrain.apps.train.options import RUN_FILE
    from minitrain.model.config import preset
    from minitrain.model.hub.config import hub_config, read_json

    if not (checkpoint / "config.json").is_file():
        hub_config(preset(read_json(checkpoint / RUN_FILE)["preset"]), None, "float32")


# --- merge ---


def merge(
    source: Annotated[Path, Argument(PATH, "A run of finetune, or a folder of PEFT's files.")],
    out: Annotated[Path, Option(FOLDER, "The folder to write, new or empty.")],
    model: Annotated[
        str | None, Option(MODEL, "The model under the adapter.", "the one in its files")
    ] = None,
) -> None:
    """Write an adapter and its model as one model that transformers opens.

    minitrain merge runs/stories15M-lora --out tuned
    minitrain merge adapter/ --model stories15M --out tuned
    """
    refuse_taken(out)
    print(write_merged(source, out, model))


def write_merged(source: Path, out: Path, name: str | None) -> str:
    from minitrain.finetuning.merging import merge_and_unload
    from minitrain.finetuning.peft_files import CONFIG, load_adapter
    from minitrain.model.hub.config import read_json
    from minitrain.model.hub.load import save_pretrained
    from minitrain.quantization.model import dequantize_model

    folder = source / ADAPTER if (source / ADAPTER).is_dir() else source
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{source} holds no adapter ({CONFIG}): give a finished run of finetune, or a folder "
            "that PEFT wrote"
        )
    raw = read_json(folder / CONFIG)
    if name is None and (name := raw.get("base_model_name_or_path")):
        if raw.get("revision") not in (None, "main") and not Path(name).exists():
            raise InputError(
                f"{folder} was trained on revision {raw['revision']!r} of {name}: download that, "
                "and give it with --model"
            )
    if not name:
        raise InputError(f"{folder} does not name the model under it: give it with --model")
    model, text = open_model(name)
    before = {name for name, _ in model.named_parameters()}
    merged = dequantize_model(merge_and_unload(load_adapter(model, folder)))
    added = [n for n, _ in merged.named_parameters() if n.endswith(".bias") and n not in before]
    if added:  # by BitFit
        raise InputError(
            f"{added[0]} and {len(added) - 1} more are biases, which this kind of model has not: "
            f"keep {folder} beside it, and give load_adapter both"
        )
    save_pretrained(merged, out, text=text)
    count = sum(p.numel() for p in merged.parameters())
    dtype = str(next(merged.parameters()).dtype).removeprefix("torch.")
    return f"{out} holds {name} with {folder} in it: {count:,} parameters, {dtype}"
