"""Rows from every kind of source, the same every time; what cannot be read is one sentence."""

from __future__ import annotations

import gzip
import json

import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset, load_dataset

from minitrain.data.preparation.contamination import TestSet
from minitrain.data.preparation.deduplication.exact import exact_duplicates
from minitrain.data.preparation.deduplication.near import near_duplicates, near_duplicates_naive
from minitrain.data.preparation.deduplication.passages import cut_repeats
from minitrain.data.preparation.documents import check_sources, dataset_rows, read_rows, read_texts
from minitrain.data.preparation.settings import Settings
from minitrain.errors import InputError

TEXTS = ["one", "two\nlines", "drei ü"]


def as_lines(texts=TEXTS) -> str:
    return "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts)


def read(*sources, **options) -> list[str]:
    return [row["text"] for row in read_rows(sources, **options)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.jsonl").write_text(as_lines(), encoding="utf-8")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(as_lines() + "\n")
    pd.DataFrame({"text": TEXTS, "n": 1}).to_parquet(tmp_path / "c.parquet")
    (tmp_path / "d.txt").write_text("\n<|endoftext|>\n".join(TEXTS), encoding="utf-8")
    (tmp_path / ".hidden.txt").write_text("no")
    pd.DataFrame({"n": 1, "text": TEXTS}).to_csv(tmp_path / "e.csv", index=False)
    return tmp_path


def test_a_folder_is_read_in_order_of_name(folder):
    assert read(folder) == TEXTS * 5 == read(str(folder))
    ids = [row["id"] for row in read_rows([folder / "c.parquet", folder / "d.txt"])]
    assert len(set(ids)) == 6 and all("c.parquet" in id for id in ids[:3])


def test_another_field(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"content": "x"}\n')
    assert read(tmp_path / "a.jsonl", field="content") == ["x"]
    with pytest.raises(InputError, match=r"it has content.*--field"):
        read(tmp_path / "a.jsonl")


def test_datasets_streaming_or_not(folder):
    whole = Dataset.from_list([{"text": text, "n": 1} for text in TEXTS])
    streamed = load_dataset(
        "json", data_files=str(folder / "a.jsonl"), split="train", streaming=True
    )
    for rows in (whole, whole.to_iterable_dataset(), streamed):
        found = list(dataset_rows(rows, "mine"))
        assert found[1] == {"text": TEXTS[1], "id": "mine:1"} and len(found) == 3


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"text": "one"}\n{"text": ', "line 2 of .* is no JSON"),
        ("a.jsonl", b'{"text": "one", "n": ' + b"9" * 5000 + b"}", "line 1 of .* is no JSON"),
        ("a.jsonl", b"[" * 10**5, "line 1 of .* is no JSON"),
        ("a.jsonl", b'{"text": "\xff"}', "not UTF-8"),
        ("a.jsonl", b'{"text": 3}', "is 3 and no text"),
        ("a.JSON", b'{"data": []}', "it has data"),
        ("a.json", b'[{"text": "one"}', "is no JSON"),
        ("a.csv", b"text,n\none,1\ntwo\n", "cannot be read"),
        ("a.csv", b"title,n\none,1\n", "no field 'text'.*it has title, n"),
        ("a.csv", b"text\n\xff\n", "cannot be read"),
        ("a.txt.gz", b"", "of no kind"),
        ("a.jsonl.gz", b"no gzip", "cannot be read after line 0"),
        ("a.jsonl.gz", gzip.compress(bytes(range(256)) * 99)[:-9], "cannot be read|not UTF-8"),
        ("a.parquet", b"no parquet", "no Parquet"),
        ("a.pdf", b"", "of no kind"),
        ("a.txt", b"\xff", "not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says):
        read(tmp_path / name)


def test_sources_are_checked_before_any_work(tmp_path, folder):
    check_sources([folder, "sotu", "hub:some/name"])
    (tmp_path / "empty").mkdir()
    for sources, says in (([], "no source"), (["nowhere"], "no file or folder nowhere")):
        with pytest.raises(InputError, match=says):
            check_sources(sources)
    with pytest.raises(InputError, match="holds no"):
        check_sources([tmp_path / "empty"])
    (folder / "e.pdf").touch()
    with pytest.raises(InputError, match="of no kind"):
        check_sources([folder / "e.pdf"])
    (folder / "e.pdf").unlink()
    (folder / "f.xml").touch()
    with pytest.raises(InputError, match=r"f\.xml is of no kind .*leave others out of a folder"):
        check_sources([folder])


def test_a_hub_that_cannot_be_read_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="give a local file"):
        read(f"hub:{tmp_path}/nothing/here")


def packed(content: bytes, how: str) -> bytes:
    if how == "gzip":
        return gzip.compress(content[:9]) + gzip.compress(content[9:])  # as `cat a.gz b.gz` makes
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, how) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


LIST = json.dumps([{"text": text} for text in TEXTS]).encode()
CSV = ("\ufeffn,text\n" + "".join(f'1,"{text}"\n' for text in TEXTS)).encode()
LINES = as_lines().encode()
CASES = {"JSON": LIST, "ndjson": LINES, "csv": CSV, "json": LINES, "tsv": CSV.replace(b",", b"\t")}
CASES["JSONL"] = b"\xef\xbb\xbf" + LINES  # with a byte order mark


@pytest.mark.parametrize(
    "ending, how", [("", ""), (".gz", "gzip"), (".zst", "zstd"), (".BZ2", "bz2")]
)
@pytest.mark.parametrize("kind", CASES)
def test_kinds_in_any_case_and_packing(tmp_path, kind, ending, how):
    file = tmp_path / f"a.{kind}{ending}"
    file.write_bytes(packed(CASES[kind], how) if how else CASES[kind])
    rows = list(read_rows([tmp_path]))
    assert [row["text"] for row in rows] == TEXTS and len({row["id"] for row in rows}) == 3


def test_csv_is_text_whatever_it_looks_like(tmp_path):
    texts = ["1", "NA", "null", "", "2.50", 'a "quote", and\na line', "true", "x" * 10**6]
    pd.DataFrame({"n": [*range(7), "word"], "text": texts}).to_csv(tmp_path / "a.csv", index=False)
    assert read(tmp_path / "a.csv") == texts
    (tmp_path / "b.csv").write_text("text\n")
    (tmp_path / "c.csv").touch()
    assert read(tmp_path / "b.csv", tmp_path / "c.csv") == []


def test_two_files_of_one_name_have_ids_of_their_own(tmp_path):
    for folder in ("one", "two", "one/deep"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(as_lines())
    whole = [row["id"] for row in read_rows([tmp_path])]
    assert whole[:3] == ["one/a.jsonl:1", "one/a.jsonl:2", "one/a.jsonl:3"]
    for sources in ([tmp_path / "one", tmp_path / "two"], sorted(tmp_path.rglob("*.jsonl"))):
        ids = [row["id"] for row in read_rows(sources)]
        assert len(set(ids)) == 9 == len(set(whole))


def test_a_null_text_is_dropped_by_name_and_the_others_stay(tmp_path):
    rows = [{"text": None}, {"text": "one"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_parquet(tmp_path / "b.parquet")
    found = list(read_rows([tmp_path])) + list(dataset_rows(rows, "mine"))
    assert [row.get("dropped") for row in found] == ["no_text", None] * 3
    assert read_texts([tmp_path]) == ["one", "one"]


def test_one_source_or_text_is_not_taken_for_a_list_of_its_characters(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    source = str(tmp_path / "a.txt")
    for given in (source, tmp_path / "a.txt"):
        for ask in (check_sources, read_texts, Settings):
            with pytest.raises(InputError, match=r"sources are .* give a list of them"):
                ask(given)
    for ask in (exact_duplicates, near_duplicates, near_duplicates_naive, cut_repeats, TestSet):
        with pytest.raises(InputError, match="give a list of them"):
            ask("the text of it")
    with pytest.raises(InputError, match="a probability is 0 to 1"):
        Settings([source], least=2.0)
