"""llm-compressor in its own process and environment: `python gptq_worker.py FOLDER`.

A line of JSON in, {"bits", "group", "mse", "calibration", "out"}, a line out: {"seconds"}; `group`
is null for a scale per row, `calibration` is a file of token ids (N, T), and the rounded weights
are written to the file `out`, under the hub's names, dequantized to float. Imports nothing of ours:
llm-compressor pins other libraries.
"""
# ruff: noqa: E402

import json
import os
import sys
import time

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # keep libraries' output out of the answers

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


def main(folder: str) -> None:
    print(json.dumps({"ready": True}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        print(json.dumps(quantize(folder, **json.loads(line))), file=ANSWERS, flush=True)


def quantize(
    folder: str, bits: int, group: "int | None", mse: bool, calibration: str, out: str
) -> dict:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = load_file(calibration)["tokens"]
    text = Dataset.from_dict(
        {"input_ids": rows.tolist(), "attention_mask": torch.ones_like(rows).tolist()}
    )
    start = time.perf_counter()
    oneshot(
        model=model,
        recipe=recipe(bits, group, mse),
        dataset=text,
        processor=no_tokenizer(),
        max_seq_length=rows.shape[1],
        num_calibration_samples=len(rows),
        shuffle_calibration_samples=False,
    )
    seconds = time.perf_counter() - start
    weights = {
        name: tensor.contiguous().clone()
        for name, tensor in model.state_dict().items()
        if not name.endswith(("_scale", "_zero_point", "_g_idx"))
    }
    save_file(weights, out)
    return {"seconds": seconds}


def recipe(bits: int, group: "int | None", mse: bool) -> GPTQModifier:
    """Its defaults: static act-order, damping of 1% of the diagonal's mean, blocks of 128."""
    sizes = {} if group is None else {"group_size": group}
    weights = QuantizationArgs(
        num_bits=bits,
        type="int",
        symmetric=True,
        strategy="channel" if group is None else "group",
        observer="memoryless_mse" if mse else "memoryless_minmax",
        **sizes,
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    return GPTQModifier(config_groups={"all": scheme}, ignore=["lm_head"])


def no_tokenizer() -> PreTrainedTokenizerFast:
    """A dummy: it requires one, though the text is already tokenized."""
    unknown = Tokenizer(models.WordLevel({"?": 0}, "?"))
    return PreTrainedTokenizerFast(tokenizer_object=unknown)


if __name__ == "__main__":
    main(*sys.argv[1:])
