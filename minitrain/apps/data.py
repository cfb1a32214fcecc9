"""`python -m minitrain data prepare SOURCE… --out DIR`: raw text to token files, with a report.

`data verify DIR` reads every byte of what came out; `data classifier` learns which texts to keep.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minitrain.apps.kinds import (
    FILE,
    FOLDER,
    NEW_FILE,
    PATH,
    Argument,
    Kind,
    Option,
    real,
    typed,
    whole,
)
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
    """Names with commas between, or none."""
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

data = typer.Typer(help="Raw text to files of tokens, for Loader(TokenRows(DIR, length), …).")


def prepare(
    sources: Annotated[
        list[str],
        Argument(
            SOURCE,
            "files (.jsonl, .json, .csv, .parquet, .txt), folders, sotu, hub:NAME",
            many=True,
        ),
    ],
    out: Annotated[Path, Option(FOLDER, "the folder to write, new, or one that was interrupted")],
    field: Annotated[str, Option(SOURCE, "which field of JSON lines or Parquet has the text")] = (
        "text"
    ),
    language: Annotated[str, Option(LANGUAGE, "keep what is in it: en, de, …, or any")] = "en",
    filters: Annotated[
        str, Option(FILTERS, "gopher, repetition, c4, fineweb; the order of the rules; or none")
    ] = "gopher,repetition",
    classifier: Annotated[
        Path | None, Option(FILE, "keep what `data classifier` has learnt to want", "none")
    ] = None,
    label: Annotated[str, Option(SOURCE, "of the classifier's, the label to keep")] = "wanted",
    least: Annotated[float, Option(real(0, 1), "the least probability of it")] = 0.5,
    near: Annotated[
        float, Option(real(0, 0.99), "the similarity of near duplicates; 0: leave them")
    ] = 0.75,
    passages: Annotated[
        int,
        Option(
            whole(0, 10**6), "remove repeated passages of at least so many characters; 0: keep them"
        ),
    ] = 0,
    test: Annotated[
        str | None, Option(SOURCE, "texts of a test set, which must not come in", "none")
    ] = None,
    tokenizer: Annotated[Path | None, Option(FILE, "a tokenizer.json", "one is trained")] = None,
    vocab: Annotated[int, Option(whole(257, 10**6), "tokens of the one that is trained")] = 4096,
    shard_tokens: Annotated[int, Option(whole(1, 2**40), "tokens in a file")] = 2**26,
    block_bytes: Annotated[int, Option(whole(1, 2**40), "bytes of text between saves")] = (
        4_000_000
    ),
    keep_private: Annotated[
        bool, typer.Option("--keep-private", help="leave addresses, numbers and keys unmasked")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="show no progress")] = False,
) -> None:
    """Filter, mask, deduplicate and tokenize; interrupted, the same command goes on."""
    report = run(
        out,
        not quiet,
        sources=tuple(sources),
        field=field,
        language=None if language == "any" else language,
        filters=tuple(filters),
        classifier=None if classifier is None else str(classifier),
        label=label,
        least=least,
        mask=not keep_private,
        test=test,
        near=near or None,
        passages=passages,
        tokenizer=None if tokenizer is None else str(tokenizer),
        vocab_size=vocab,
        shard_tokens=shard_tokens,
        block_bytes=block_bytes,
    )
    if report is not None:
        show(report, out)


def verify(
    folder: Annotated[Path, Argument(PATH, "what prepare has written")],
) -> None:
    """Read every byte of token files, and say whether they are as they were written."""
    from minitrain.data.stream.token_files import verify_token_files
    from minitrain.words import plural

    index = verify_token_files(folder)
    print(
        f"{folder}: {index.tokens:,} tokens of {index.documents:,} documents in "
        f"{plural(len(index.shards), 'shard')}, every byte as it was written"
    )


def classifier(
    wanted: Annotated[str, Option(SOURCE, "texts like those to keep: a file, a folder, a name")],
    other: Annotated[str, Option(SOURCE, "texts as they come: part of what is to be filtered")],
    out: Annotated[Path, Option(NEW_FILE, "where it goes, such as keep.safetensors")],
    field: Annotated[str, Option(SOURCE, "which field of JSON lines or Parquet has the text")] = (
        "text"
    ),
) -> None:
    """Learn to tell two heaps of texts apart, for `data prepare --classifier`."""
    from minitrain.data.preparation.documents import read_texts
    from minitrain.data.preparation.filters.classifier import train_and_test

    heaps = {"wanted": wanted, "other": other}
    trained, right = train_and_test({name: read_texts([s], field) for name, s in heaps.items()})
    trained.save(out)
    for name, share in right.items():
        print(f"{share:.0%} of {name} texts that it has not seen are told from the others")
    print(f"keep the wanted: python -m minitrain data prepare SOURCE --classifier {out} --out DIR")


def run(out: Path, progress: bool, **settings: Any) -> Report:
    from minitrain.data.preparation.prepare import prepare as prepare_sources
    from minitrain.data.preparation.settings import Settings

    return prepare_sources(Settings(**settings), out, progress)


def show(report: Report, out: Path) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from minitrain.words import bytes_text

    table = Table(box=box.SIMPLE)
    table.add_column("after", no_wrap=True)
    for name in ("documents", "text"):
        table.add_column(name, justify="right")
    for stage in report.funnel:
        table.add_row(stage["stage"], f"{stage['documents']:,}", bytes_text(stage["bytes"]))
    Console().print(table)
    print(f"{report.tokens:,} tokens in {out}; the drops, with samples: {out / 'report.md'}")
    print(f"train on them: python -m minitrain train --data {out}")
    print(f"in Python: Loader(TokenRows({str(out)!r}, length=512), batch_size=8)")


data.command(name="prepare")(typed(prepare))
data.command(name="classifier")(typed(classifier))
data.command(name="verify")(typed(verify))
