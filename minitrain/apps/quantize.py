"""`python -m minitrain quantize --model MODEL --data TEXT`: quantizes a model, and reports its
perplexity and bytes before and after.

The first rows of the text calibrate and the last ones evaluate; they never overlap.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minitrain.apps.finetune.options import TEXT
from minitrain.apps.kinds import FOLDER, Kind, one_of, whole
from minitrain.apps.models import MODEL, MODEL_HELP, open_model, refuse_taken
from minitrain.apps.options import Option
from minitrain.errors import InputError

if TYPE_CHECKING:
    from minitrain.data.loader import Batch
    from minitrain.data.packing import Packed
    from minitrain.model.hub.text import TextFiles
    from minitrain.quantization.methods.method import Method

BATCH = 8
CORPUS_BYTES = 1_000_000


def methods() -> dict[str, Method]:
    from minitrain.quantization.methods.method import METHODS

    return METHODS


def format_name(text: str) -> str:
    """The full name: int4-g64 for int4."""
    from minitrain.quantization.formats.names import named

    return named(text).name


METHOD = one_of("method", methods)
FORMAT = Kind("FORMAT", "a format: int8, int4-g128, nf4-dq, mxfp4", format_name)


def quantize(
    model: Annotated[str, Option(MODEL, MODEL_HELP)],
    data: Annotated[str, Option(TEXT, "A text that calibrates and judges.")],
    format: Annotated[
        str, Option(FORMAT, "One of int8 to int2, nf4, fp4, fp8 and mxfp4; also -g128, -row, -mse.")
    ] = "int4",
    method: Annotated[
        str,
        Option(
            METHOD,
            "One of rtn, gptq, gptq-act-order, awq, awq-gptq; W8A8: llm-int8, smoothquant.",
        ),
    ] = "gptq",
    out: Annotated[
        Path | None, Option(FOLDER, "The folder to write.", "runs/MODEL-FORMAT-METHOD")
    ] = None,
    rows: Annotated[int, Option(whole(1, 10**6), "Rows of text to calibrate on.")] = 64,
    judged: Annotated[int, Option(whole(1, 10**6), "Rows of text to judge by.")] = 64,
    length: Annotated[
        int | None, Option(whole(2, 10**6), "Tokens in a row.", "256, or the model's longest")
    ] = None,
) -> None:
    """Write a model with its weights in few bits, and report the loss in perplexity.

    minitrain quantize --model stories15M --data sotu
    minitrain quantize --model runs/1M-corpus --data sea --format nf4-dq
    """
    from tqdm import tqdm

    from minitrain.quantization.folder import save_quantized
    from minitrain.quantization.formats.names import named
    from minitrain.quantization.model import (
        formats_by_layer,
        held_bytes,
        layer_names,
        quantize_model,
    )
    from minitrain.training.loop import evaluate
    from minitrain.words import bytes_text

    out = out or Path("runs") / f"{Path(model).name}-{format}-{method}"
    refuse_taken(out)
    net, text = open_model(model)
    chosen = formats_by_layer(net, named(format), methods()[method])
    packed = read_rows(data, text, net.config.vocab_size, length or min(256, net.config.max_length))
    calibration, held_out = split(packed, rows, judged)
    stored, before = next(net.parameters()).dtype, held_bytes(net)
    net.float()
    nats = evaluate(net, held_out)
    missed: list[str] = []
    with tqdm(total=len(layer_names(net)), unit="layer", disable=None) as bar:
        how = methods()[method], calibration
        quantize_model(net, chosen, *how, lambda _: bar.update(), missed.append)
    after_nats = evaluate(net, held_out)
    save_quantized(net.to(stored), out, text)
    after = held_bytes(net)
    print(f"perplexity  {math.exp(nats):.4g} -> {math.exp(after_nats):.4g}")
    print(f"bytes       {bytes_text(before)} -> {bytes_text(after)} ({after / before:.1%})")
    if missed:
        print(
            f"experts     {len(missed)} matrices, such as {missed[0]}, were reached by no token "
            "and rounded to nearest: more --rows reach more"
        )
    where = shlex.quote(str(out))
    print(f"{out} holds {format} by {method}")
    print(f"generate with it: python -m minitrain generate --model {where}")
    print(f"fine-tune it (QLoRA): python -m minitrain finetune --model {where} --data {data}")


def read_rows(data: str, text: TextFiles, vocabulary: int, length: int) -> Packed:
    """The text's tokens, by the model's own tokenizer, in full rows."""
    from minitrain.apps.finetune.jsonl import read_jsonl
    from minitrain.apps.finetune.text import Encoder
    from minitrain.data.corpus import DOMAINS, make_corpus
    from minitrain.data.packing import pack_stream
    from minitrain.data.text import read_documents
    from minitrain.model.hub.text import check_known, open_tokenizer

    tokenizer = open_tokenizer(text.tokenizer)
    begin = text.bos_id if text.bos_id is not None else next(iter(text.eos_ids), None)
    if begin is None:
        raise InputError("config.json names no bos_token_id and no eos_token_id: add one")
    if data.endswith(".jsonl"):
        encoder = Encoder(text)
        encoder.first = []  # packing adds the begin token itself
        documents = [encoder.encoded(example)[0] for example in read_jsonl(Path(data))]
    else:
        named = data in DOMAINS
        texts = make_corpus(CORPUS_BYTES, 0, data).documents if named else read_documents(data)
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        documents = [encoding.ids for encoding in encoded]
    largest = max((max(ids, default=0) for ids in documents), default=0)
    check_known(max(largest, begin), vocabulary, text.tokenizer)
    return pack_stream(documents, length, begin)


def split(packed: Packed, rows: int, judged: int) -> tuple[list[Batch], list[Batch]]:
    """The first `rows` and the last `judged`; of a short text all rows, a quarter to evaluate."""
    from minitrain.data.loader import Loader

    if len(packed) < 4:
        raise InputError(
            f"the text fills {len(packed)} rows of {packed.length} tokens, and 4 are needed to "
            "calibrate and judge: give a longer text, or a smaller --length"
        )
    judged = min(judged, max(1, len(packed) // 4))
    rows = min(rows, len(packed) - judged)
    parts = packed[:rows], packed[len(packed) - judged :]
    first, last = (list(Loader(part, BATCH, shuffle=False)) for part in parts)
    return first, last
