"""`python -m minitrain merge ADAPTER --out FOLDER`: an adapter and its model as one plain model.

ADAPTER is a run of `finetune`, or a folder of PEFT's files. The merged model is a Hugging Face
folder, in the dtype in which the model under it is stored, tokenizer and all. A model in few bits
(QLoRA's base) comes out dense: rounding the sum anew would lose some of what was learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from minitrain.apps.finetune.options import ADAPTER
from minitrain.apps.kinds import FOLDER, PATH, Argument, Option
from minitrain.apps.models import MODEL
from minitrain.errors import InputError


def merge(
    source: Annotated[Path, Argument(PATH, "a run of finetune, or a folder of PEFT's files")],
    out: Annotated[Path, Option(FOLDER, "the folder to write, new or empty")],
    model: Annotated[
        str | None, Option(MODEL, "the model under it", "the one that its files name")
    ] = None,
) -> None:
    """Write an adapter and its model as one model that transformers opens."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already and is not empty: give --out another name")
    print(write_merged(source, out, model))


def write_merged(source: Path, out: Path, name: str | None) -> str:
    from minitrain.apps.models import open_model
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
            f"{added[0]} and {len(added) - 1} more are biases that this kind of model has not: "
            f"keep {folder} beside it, and give load_adapter both"
        )
    save_pretrained(merged, out, text=text)
    count = sum(p.numel() for p in merged.parameters())
    dtype = str(next(merged.parameters()).dtype).removeprefix("torch.")
    return f"{out} holds {name} with {folder} in it: {count:,} parameters, {dtype}"
