"""What a checkpoint says of text: its tokenizer's files, and the ids that begin and end one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from minitrain.model.hub.config import read_json

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class TextFiles:
    """The tokenizer's files, name -> content, are passed on as they are; none: ids alone."""

    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    @property
    def ids(self) -> dict[str, object]:
        """As config.json and generation_config.json have them."""
        eos = list(self.eos_ids) if len(self.eos_ids) > 1 else next(iter(self.eos_ids), None)
        return {"bos_token_id": self.bos_id, "eos_token_id": eos}


def read_text_files(folder: Path) -> TextFiles:
    """generation_config.json, where there is one, knows better than config.json."""
    raw = read_json(folder / "config.json")
    if (folder / "generation_config.json").exists():
        raw |= read_json(folder / "generation_config.json")
    eos = raw.get("eos_token_id")
    eos_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    found = [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]
    tokenizer = {path.name: path.read_bytes() for path in found}
    return TextFiles(tokenizer, raw.get("bos_token_id"), tuple(eos_ids))


def fast_tokenizer(tokenizer_json: str, settings: Mapping[str, str]) -> dict[str, bytes]:
    """The two files from which `AutoTokenizer` makes a tokenizer that is all in tokenizer.json.

    `settings`: its special tokens ({"bos_token": "<s>", …}) and chat_template. The class is named,
    since a model's type would choose another, with rules of its own.
    """
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return {"tokenizer.json": tokenizer_json.encode(), "tokenizer_config.json": text.encode()}
