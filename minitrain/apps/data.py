"""`python -m minitrain data prepare SOURCE… --out DIR`: raw text to token files, with a report.

`data verify DIR` reads every byte of the result; `data classifier` learns which documents to keep.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from minitrain.apps.kinds import FILE, FOLDER, NEW_FILE, PATH, Kind, real, whole
from minitrain.apps.options import QUIET, Argument, Flag, Option, add, group
from minitrain.errors import unknown_name

if TYPE_CHECKING:
    from minitrain.data.preparation.report import Report

NOTHING = "none"


def filter_names() -> Collection[str]:
    from minitrain.data.preparation.settings import STEPS_OF

    return STEPS_OF


def language_names() -> Collection[str]:
    from minitrain.data.preparation.filters.language import TABLE

    return (*TABLE, "any")


def read_filters(text: str) -> tuple[str, ...]:
    """Comma-separated names, or none."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if names == (NOTHING,):
        return ()
    for name in names:
        if name not in filter_names():
            raise unknown_name("filter", name, [*filter_names(), NOTHING])
    return names


def read_language(text: str) -> str:
    if text not in language_names():
        raise unknown_name("language", text, language_names())
    return text


def read_source(text: str) -> str:
    if not text.strip() or not text.encode():  # a lone surrogate raises ValueError
        raise ValueError
    return text


FILTERS = Kind("FILTER,…", "names of filters with commas between, or none", read_filters)
LANGUAGE = Kind("LANGUAGE", "two letters, or any", read_language)
SOURCE = Kind("SOURCE", "a file, a folder, or a name", read_source)

data = group("data", "Turn raw text into files of tokens, for Loader(TokenRows(DIR, length), …).")
FIELD = Option(SOURCE, "The field of JSON lines or Parquet that holds the text.")


@dataclass(frozen=True)
class PrepareOptions:
    """The options of `data prepare`, as typed."""

    field: Annotated[str, FIELD] = "text"
    language: Annotated[str, Option(LANGUAGE, "Keep documents in en, de, … or any language.")] = (
        "en"
    )
    filters: Annotated[
        str, Option(FILTERS, "Some of gopher, repetition, c4 and fineweb, in order, or none.")
    ] = "gopher,repetition"
    classifier: Annotated[
        Path | None, Option(FILE, "Keep the documents that a `data classifier` wants.", "none")
    ] = None
    label: Annotated[str, Option(SOURCE, "The classifier's label to keep.")] = "wanted"
    least: Annotated[float, Option(real(0, 1), "The least probability of that label.")] = 0.5
    near: Annotated[
        float, Option(real(0, 0.99), "Similarity of near duplicates; 0 keeps them.")
    ] = 0.75
    passages: Annotated[
        int,
        Option(whole(0, 10**6), "Remove repeated passages of at least N characters; 0 keeps them."),
    ] = 0
    test: Annotated[
        str | None, Option(SOURCE, "A test set whose documents must stay out.", "none")
    ] = None
    tokenizer: Annotated[Path | None, Option(FILE, "A tokenizer.json.", "one is trained")] = None
    vocab: Annotated[
        int,
        Option(whole(257, 10**6), "Size of the trained vocabulary."),
    ] = 4096
    shard_tokens: Annotated[int, Option(whole(1, 2**40), "Tokens in a file.")] = 2**26
    block_bytes: Annotated[int, Option(whole(1, 2**40), "Bytes of text between saves.")] = 4_000_000


def prepare(
    sources: Annotated[
        list[str],
        Argument(
            SOURCE,
            "Files (.jsonl, .json, .csv, .parquet, .txt), folders, sotu, hub:NAME.",
            many=True,
        ),
    ],
    out: Annotated[Path, Option(FOLDER, "The folder to write, new or interrupted.")],
    keep_private: Annotated[bool, Flag("Do not mask addresses, numbers and keys.")] = False,
    quiet: Annotated[bool, QUIET] = False,
    **given: Any,
) -> None:
    """Filter, mask, deduplicate and tokenize text. The same command resumes an interrupted one.

    minitrain data prepare sotu --out tokens
    minitrain data prepare pages.jsonl --language de --filters c4 --out tokens
    """
    paths = {name: str(given[name]) for name in ("classifier", "tokenizer") if given[name]}
    language = None if given["language"] == "any" else given["language"]
    given |= {"language": language, "near": given["near"] or None, **paths}
    given["vocab_size"] = given.pop("vocab")
    report = run(out, not quiet, sources=tuple(sources), mask=not keep_private, **given)
    if report is not None:
        show(report, out)


def verify(
    folder: Annotated[Path, Argument(PATH, "A folder that prepare has written.")],
) -> None:
    """Read every byte of token files, and report whether they are as they were written.

    minitrain data verify tokens
    minitrain data verify /data/web/tokens
    """
    from minitrain.data.stream.token_files import verify_token_files
    from minitrain.words import plural

    index = verify_token_files(folder)
    print(
        f"{folder}: {index.tokens:,} tokens of {index.documents:,} documents in "
        f"{plural(len(index.shards), 'shard')}, every byte as it was written"
    )


def classifier(
    wanted: Annotated[str, Option(SOURCE, "Documents like those to keep: a file, folder or name.")],
    other: Annotated[str, Option(SOURCE, "Other documents: a part of what is to be filtered.")],
    out: Annotated[Path, Option(NEW_FILE, "The file to write, such as keep.safetensors.")],
    field: Annotated[str, FIELD] = "text",
) -> None:
    """Train a classifier of wanted documents, for `data prepare --classifier`.

    minitrain data classifier --wanted good.jsonl --other raw.jsonl --out keep
    minitrain data prepare raw.jsonl --classifier keep --out tokens
    """
    from minitrain.data.preparation.documents import read_texts
    from minitrain.data.preparation.filters.classifier import train_and_test

    heaps = {"wanted": wanted, "other": other}
    trained, right = train_and_test({name: read_texts([s], field) for name, s in heaps.items()})
    trained.save(out)
    for name, share in right.items():
        print(f"{share:.0%} of {name} held-out documents are classified correctly")
    print(
        f"keep the wanted: python -m minitrain data prepare {shlex.quote(other)} --classifier "
        f"{shlex.quote(str(out))} --out tokens"
    )


def run(out: Path, progress: bool, **settings: Any) -> Report:
    from minitrain.data.preparation.prepare import prepare as prepare_sources
    from minitrain.data.preparation.settings import Settings

    return prepare_sources(Settings(**settings), out, progress)


def show(report: Report, out: Path) -> None:
    from minitrain.apps.tables import show_table
    from minitrain.words import bytes_text

    show_table(
        [
            {
                "after": stage["stage"],
                "documents": f"{stage['documents']:,}",
                "text": bytes_text(stage["bytes"]),
            }
            for stage in report.funnel
        ],
        left=("after",),
    )
    print(f"{report.tokens:,} tokens in {out}; the drops, with samples: {out / 'report.md'}")
    print(f"train on them: python -m minitrain train --data {shlex.quote(str(out))}")
    print(f"in Python: Loader(TokenRows({str(out)!r}, length=512), batch_size=8)")


add(data, prepare, PrepareOptions)
add(data, classifier)
add(data, verify)
