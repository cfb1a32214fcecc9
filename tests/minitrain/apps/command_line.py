"""`python -m minitrain …` in this process, and a small model that it can be given."""

from __future__ import annotations

import contextlib
import io
import sys
from functools import lru_cache
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from minitrain.__main__ import main
from minitrain.data.corpus import make_corpus
from minitrain.data.tokenizer import END, train_tokenizer
from minitrain.model.config import ModelConfig
from minitrain.model.hub.load import save_pretrained
from minitrain.model.hub.text import TextFiles
from minitrain.model.transformer import build


def minitrain(*words: str) -> CompletedProcess[str]:
    """As a process of its own would end, without the second that each import of it takes."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with patch.object(sys, "argv", ["minitrain", *words]):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code
    return CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())


@lru_cache
def documents() -> list[str]:
    return make_corpus(12_000, 0).documents


@lru_cache
def text_files() -> TextFiles:
    """A real tokenizer of 300 tokens."""
    tokenizer = train_tokenizer(documents(), 300)
    end = tokenizer.backend.token_to_id(END)
    return TextFiles({"tokenizer.json": tokenizer.backend.to_str().encode()}, end, (end,))


def save_small(folder: Path | str, **sizes: int) -> None:
    """A random model with that tokenizer."""
    shape = {"layers": 2, "heads": 4, "kv_heads": 2, "ffn_size": 96, "max_length": 256, **sizes}
    save_pretrained(build(ModelConfig(300, 64, **shape)), folder, text=text_files())
