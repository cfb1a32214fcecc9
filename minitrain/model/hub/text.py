"""A checkpoint's tokenizer: its files, loading it, and the ids that begin and end a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from minitrain.errors import InputError
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
LLAMAS = {"bos_token_id": 1, "eos_token_id": 2}
DEFAULT_IDS = {"llama": LLAMAS, "mistral": LLAMAS, "mixtral": LLAMAS}  # transformers' classes'


@dataclass(frozen=True)
class TextFiles:
    """The tokenizer's files, name -> content, passed on unchanged, and ids; files may be empty."""

    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    @property
    def ids(self) -> dict[str, object]:
        """The ids as in config.json and generation_config.json."""
        eos = list(self.eos_ids) if len(self.eos_ids) > 1 else next(iter(self.eos_ids), None)
        return {"bos_token_id": self.bos_id, "eos_token_id": eos}


def read_text_files(folder: Path) -> TextFiles:
    """generation_config.json, if present, overrides config.json, and keys in neither have their
    family's default; the tokenizer's own end token ends a text as well."""
    raw = read_json(folder / "config.json")
    raw = DEFAULT_IDS.get(raw.get("model_type"), {}) | raw
    if (path := folder / "generation_config.json").exists():
        raw |= {key: value for key, value in read_json(path).items() if value is not None}
    found = [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]
    tokenizer = {path.name: path.read_bytes() for path in found}
    bos, eos = (_ids(folder, key, raw.get(key)) for key in ("bos_token_id", "eos_token_id"))
    ends = dict.fromkeys([*eos, *_own_end(folder, tokenizer)])
    return TextFiles(tokenizer, next(iter(bos), None), tuple(ends))


def _ids(folder: Path, key: str, value: object) -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(one) is not int or one < 0 for one in ids):
        raise InputError(f"{folder} has {key} = {value!r:.60}: give a token's number, or a list")
    return ids


def _own_end(folder: Path, files: Mapping[str, bytes]) -> list[int]:
    """The id of the eos_token that the tokenizer's files name; [] if they name none."""
    settings = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if name in files:
            settings |= read_json(folder / name)
    token = settings.get("eos_token")
    if token is None or "tokenizer.json" not in files:
        return []
    content = token.get("content") if isinstance(token, dict) else token
    added = read_json(folder / "tokenizer.json").get("added_tokens") or []
    return [one["id"] for one in added if one["content"] == content]


def open_tokenizer(files: Mapping[str, bytes]) -> Tokenizer:
    """Loads a tokenizer from its files, name -> content. Switches off padding and truncation saved
    in tokenizer.json, which were for its training batches."""
    if "tokenizer.json" not in files:
        raise InputError(
            "the model has no tokenizer.json to encode text with: save its "
            "tokenizer beside it, AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        )
    try:
        tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    except Exception as error:  # the backend raises bare exceptions
        raise InputError(f"tokenizer.json cannot be read ({error}): download it again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    """Text to ids; InputError for a lone surrogate, which a str can hold but no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise InputError(
            f"the text has half a surrogate pair, {half!r} at character {error.start}: remove "
            "it, or give the whole character"
        ) from None
    return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids


def check_known(token: int, vocab_size: int, files: Mapping[str, bytes]) -> None:
    """InputError for a token of the tokenizer outside the model's vocabulary."""
    if token >= vocab_size:
        name = open_tokenizer(files).id_to_token(token)
        raise InputError(
            f"the text has {name!r}, token {token} of tokenizer.json, and the model's embedding "
            f"has {vocab_size} rows: take the tokenizer that it was trained with, or leave the "
            "token out of the text"
        )


def fast_tokenizer(tokenizer_json: str, settings: Mapping[str, str]) -> dict[str, bytes]:
    """The two files from which `AutoTokenizer` loads a tokenizer defined by tokenizer.json alone.

    `settings`: its special tokens ({"bos_token": "<s>", …}) and chat_template. The class is named,
    since otherwise the model type would select another class, with its own rules.
    """
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return {"tokenizer.json": tokenizer_json.encode(), "tokenizer_config.json": text.encode()}
