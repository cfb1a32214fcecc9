"""Documents as rows: {"text": …, "id": …}, from files, folders, named texts and `datasets`.

    read_rows(["crawl.jsonl.zst", "books/", "news.parquet", "sotu", "hub:HuggingFaceFW/fineweb"])

JSON, JSON lines, CSV and Parquet have a text field; .txt and .md are read as `data.text` reads
them. Rows come one at a time, sorted by name, in the same order every time, so an interrupted run
can read up to where it stopped. `id` says where a row is from; other fields are dropped. A row
whose text is null has the text "" and is `dropped` as "no_text".
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from minitrain.data.text import NAMED, documents_of
from minitrain.errors import InputError, check_list

Row = dict[str, Any]
Source = str | os.PathLike
HUB = "hub:"
NO_TEXT = "no_text"
PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


def read_rows(sources: Sequence[Source], field: str = "text") -> Iterator[Row]:
    """All rows of all sources; InputError for a missing text or a value that is not a string."""
    check_sources(sources)
    paths = [Path(source) for source in sources if not _is_named(source)]
    found = {
        file: file.relative_to(path).as_posix() if path.is_dir() else file.name
        for path in paths
        for file in _files(path)
    }
    counts = Counter(found.values())  # files that share a name are identified by full path
    names = {file: name if counts[name] == 1 else str(file) for file, name in found.items()}
    for source in sources:
        yield from _rows_of(source, field, names)


def read_texts(sources: Sequence[Source], field: str = "text") -> list[str]:
    """The texts of all rows that have one."""
    return [row["text"] for row in read_rows(sources, field) if not row.get("dropped")]


def dataset_rows(
    rows: Iterable[Mapping[str, Any]], name: str, field: str = "text"
) -> Iterator[Row]:
    """Text and id of each row of a `datasets.Dataset` or `IterableDataset`, or of any dicts."""
    for number, row in enumerate(rows):
        yield _row(row, field, f"{name}:{number}")


def check_sources(sources: Sequence[Source]) -> None:
    """Raises InputError for the first source that cannot be read, before any work is done."""
    check_list("sources", sources)
    if not sources:
        raise InputError("there is no source: give files, folders, or a name such as sotu")
    for source in sources:
        if not _is_named(source):
            for file in _files(Path(source)):
                _reader(file)


def source_bytes(sources: Sequence[Source]) -> int | None:
    """The size of all files, slightly more than their texts; None if unknown."""
    if any(_is_named(source) for source in sources):
        return None
    files = [file for source in sources for file in _files(Path(source))]
    packed = any(file.suffix.lower() in (*PACKED, ".parquet") for file in files)
    return None if packed else sum(file.stat().st_size for file in files)


def _rows_of(source: Source, field: str, names: dict[Path, str]) -> Iterator[Row]:
    if str(source).startswith(HUB):
        yield from dataset_rows(_from_hub(str(source).removeprefix(HUB)), str(source), field)
    elif _is_named(source):
        for number, text in enumerate(NAMED[str(source)]()):
            yield {"text": text, "id": f"{source}:{number}"}
    else:
        for file in _files(Path(source)):
            yield from _reader(file)(file, field, names[file])


def _is_named(source: Source) -> bool:
    """True for a named text; a file of that name takes precedence."""
    return str(source).startswith(HUB) or (str(source) in NAMED and not Path(source).exists())


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(
            f"there is no file or folder {path}: give one, a name ({', '.join(NAMED)}), "
            f"or {HUB}NAME of a dataset"
        )
    if path.is_file():
        return [path]
    files = sorted(
        file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")
    )
    if not files:
        raise InputError(f"the folder {path} holds no {', '.join(READERS)} file: put one there")
    return files


def _reader(file: Path) -> Callable[[Path, str, str], Iterator[Row]]:
    ending = file.suffix.lower()
    packed = ending in PACKED
    ending = Path(file.stem).suffix.lower() if packed else ending
    if ending not in READERS or (packed and READERS[ending] in (_plain, _parquet)):
        raise InputError(
            f"{file} is of no kind that can be read: give one of {', '.join(READERS)} (the first "
            f"five packed as {', '.join(PACKED)}, too), and leave others out of a folder"
        )
    return READERS[ending]


def _opened(file: Path) -> Any:
    from pyarrow import input_stream

    return input_stream(str(file), compression=PACKED.get(file.suffix.lower()))


def _json(file: Path, field: str, name: str) -> Iterator[Row]:
    """Reads a list of objects, or one; many .json files hold JSON lines instead."""
    try:
        with _opened(file) as data:
            whole = json.loads(data.read().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        yield from _json_lines(file, field, name)  # also reports what is wrong
        return
    for number, row in enumerate(whole if isinstance(whole, list) else [whole], start=1):
        yield _row(row, field, f"{name}:{number}")


def _json_lines(file: Path, field: str, name: str) -> Iterator[Row]:
    number = 0
    try:
        with TextIOWrapper(_opened(file), encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _row(_parsed(line, file, number), field, f"{name}:{number}")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not UTF-8 after line {number:,}: save it as UTF-8, for example with iconv"
        ) from error
    except OSError as error:
        raise InputError(
            f"{file} cannot be read after line {number:,} ({error}): copy or fetch it again"
        ) from error


def _parsed(line: str, file: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, 5,000 digits, 100,000 brackets
        why = getattr(error, "msg", error)
        raise InputError(
            f"line {number:,} of {file} is no JSON ({why}): give one object a line"
        ) from error


def _csv(file: Path, field: str, name: str, delimiter: str = ",") -> Iterator[Row]:
    from pyarrow import ArrowException, csv

    if not file.stat().st_size:
        return
    lines = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    how = csv.ReadOptions(block_size=CSV_BLOCK), lines
    try:
        fields = csv.open_csv(_opened(file), *how).schema.names
        only = [field] if field in fields else []
        text = csv.ConvertOptions(column_types={field: "string"}, include_columns=only)
        yield from _columns(csv.open_csv(_opened(file), *how, text), fields, file, field, name)
    except (OSError, ArrowException) as error:
        raise InputError(f"{file} cannot be read ({error}): write it again") from error


def _columns(
    batches: Iterable[Any], fields: Sequence[str], file: Path, field: str, name: str
) -> Iterator[Row]:
    if field not in fields:
        raise InputError(_no_field(str(file), field, fields))
    number = 0
    for batch in batches:
        for text in batch.column(field).to_pylist():
            yield _row({field: text}, field, f"{name}:{number}")
            number += 1


def _parquet(file: Path, field: str, name: str) -> Iterator[Row]:
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        opened = parquet.ParquetFile(file)
        batches = opened.iter_batches(columns=[field], batch_size=1000)
        yield from _columns(batches, opened.schema_arrow.names, file, field, name)
    except (OSError, ArrowException) as error:
        raise InputError(f"{file} is no Parquet file ({error}): write it again") from error


def _plain(file: Path, field: str, name: str) -> Iterator[Row]:
    for number, text in enumerate(documents_of(file)):
        yield {"text": text, "id": f"{name}:{number}"}


def _row(row: Any, field: str, name: str) -> Row:
    if not isinstance(row, Mapping) or field not in row:
        raise InputError(_no_field(name, field, row if isinstance(row, Mapping) else ()))
    if row[field] is None:
        return {"text": "", "id": name, "dropped": NO_TEXT}
    if not isinstance(row[field], str):
        raise InputError(
            f"'{field}' of {name} is {row[field]!r:.60} and no text: give the field that has it "
            "with --field"
        )
    return {"text": row[field], "id": name}


def _no_field(name: str, field: str, fields: Iterable[str]) -> str:
    has = ", ".join(map(str, fields)) or "none"
    return f"{name} has no field '{field}' (it has {has}): give the one of the text with --field"


def _from_hub(name: str) -> Iterable[Mapping[str, Any]]:
    """The training split, streamed; NAME or NAME@SPLIT."""
    from datasets import load_dataset

    name, _, split = name.partition("@")
    try:
        return load_dataset(name, split=split or "train", streaming=True)
    except Exception as error:  # each builder raises errors of its own
        raise InputError(
            f"datasets cannot stream {name} ({' '.join(str(error).split())[:200]}): look at its "
            "name and the network, or give a local file"
        ) from error


CSV_BLOCK = 2**26  # bytes; also limits the longest row
READERS: dict[str, Callable[[Path, str, str], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"),
    ".parquet": _parquet,
    ".txt": _plain,
    ".md": _plain,
}
