"""Any text as a list of documents: a local file, a folder of files, or a fetched asset.

A file is split into documents at lines "<|endoftext|>", or else is one document. Packing cuts
what is longer than a row, so a whole book may be one document.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from minitrain.data.assets.fetch import fetch
from minitrain.errors import InputError

SEPARATOR = "<|endoftext|>"  # between documents, as in TinyStories' files
CHAPTER = re.compile(r"^(?=CHAPTER \d+\.)", re.MULTILINE)
READABLE = ("*.txt", "*.md")


def read_documents(name: str) -> list[str]:
    """The documents of one of `NAMED`, fetched if not cached, or of a file or folder."""
    return NAMED[name]() if name in NAMED else load_text(name)


def load_text(path: str | os.PathLike) -> list[str]:
    """The documents of a text file, or of all .txt and .md files in a folder, sorted by name."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is no file or folder {path}: give the path of a text file")
    if path.is_file():
        if path.suffix == ".jsonl":  # its braces and keys would be learned too
            raise InputError(
                f"{path} holds examples, and no plain text: `minitrain finetune --data` learns "
                "them, `minitrain data prepare` makes tokens of their texts"
            )
        return _some(path, documents_of(path))
    if not path.is_dir():  # /dev/zero never ends
        raise InputError(f"{path} is neither a file nor a folder: give the path of a text file")
    from minitrain.data.stream.token_files import holds_tokens  # imports numpy, which --help avoids

    if holds_tokens(path):
        raise InputError(f"{path} holds tokens, no text: read them by `minitrain train --data`")
    files = sorted(file for pattern in READABLE for file in path.rglob(pattern))
    if not files:
        raise InputError(f"the folder {path} holds no {' or '.join(READABLE)} file: put one there")
    return _some(path, [document for file in files for document in documents_of(file)])


def sotu(progress: bool = True) -> list[str]:
    """The 233 State of the Union addresses, in chronological order."""
    return load_text(fetch("sotu", progress))


def moby_dick(progress: bool = True) -> list[str]:
    """Moby Dick, one document per chapter."""
    text = (fetch("moby-dick", progress) / "moby_dick.txt").read_text(encoding="utf-8")
    return [chapter.strip() for chapter in CHAPTER.split(text) if chapter.strip()]


def tinystories(progress: bool = True) -> list[str]:
    """The 21,990 stories of TinyStories' validation split, from the model hub."""
    return load_text(fetch("tinystories", progress))


def wikitext(split: str = "train", progress: bool = True) -> list[str]:
    """WikiText-2, one document per article, from the model hub."""
    import pandas as pd

    if split not in ("train", "validation", "test"):
        raise InputError(f"WikiText-2 has no split '{split}': use train, validation or test")
    file = fetch("wikitext-2", progress) / f"{split}-00000-of-00001.parquet"
    return articles("".join(pd.read_parquet(file)["text"]))


def articles(text: str) -> list[str]:
    """WikiText's articles: each begins with a line ` = Title = `."""
    parts = re.split(r"^(?= = [^=].*[^=] = \n)", text, flags=re.MULTILINE)
    return [part.strip() for part in parts if part.strip()]


def _some(path: Path, documents: list[str]) -> list[str]:
    if not documents:
        raise InputError(f"{path} is empty: give a file that holds some text")
    return documents


def documents_of(file: Path) -> list[str]:
    """The documents of a text file; none if it is empty, as some files in a folder may be."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): give a text file") from error
    if b"\0" in data:
        raise InputError(f"{file} is binary (it holds zero bytes): give a text file, in UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not UTF-8 (byte {error.start}): save it as UTF-8, "
            f"for example with 'iconv -f latin1 -t utf-8'"
        ) from error
    return [part.strip() for part in text.split(SEPARATOR) if part.strip()]


NAMED: dict[str, Callable[[], list[str]]] = {  # corpora that can be fetched
    "sotu": sotu,
    "moby-dick": moby_dick,
    "tinystories": tinystories,
    "wikitext": wikitext,
}
