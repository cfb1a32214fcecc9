"""Any text a person points at becomes documents, or one clear sentence."""

from __future__ import annotations

import pandas as pd
import pytest

from minitrain.data import text
from minitrain.data.preparation.documents import read_rows
from minitrain.data.text import articles, load_text
from minitrain.errors import InputError


def test_a_file_is_one_document_or_as_many_as_it_says(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("\ufeffOne\nand only.\n", encoding="utf-8")
    assert load_text(file) == ["One\nand only."]
    file.write_text("One.\n<|endoftext|>\nTwo, ünï.\n<|endoftext|>\n", encoding="utf-8")
    assert load_text(str(file)) == ["One.", "Two, ünï."]


def test_a_folder_is_its_files_in_order(tmp_path):
    (tmp_path / "sub").mkdir()
    for name, content in (("b.txt", "B"), ("a.md", "A"), ("sub/c.txt", "C"), ("d.bin", "\0")):
        (tmp_path / name).write_text(content)
    assert load_text(tmp_path) == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"<|endoftext|>\n", "is empty"),
        (b"PK\x03\x04\0\0", "is binary"),
        (b"caf\xe9", "is not UTF-8 .byte 3.*iconv"),
    ],
)
def test_what_is_no_text_is_told(tmp_path, content, says):
    file = tmp_path / "a.txt"
    file.write_bytes(content)
    with pytest.raises(InputError, match=says):
        load_text(file)


def test_examples_are_no_plain_text(tmp_path):
    (tmp_path / "e.jsonl").write_text('{"text": "a"}')
    with pytest.raises(InputError, match="holds examples"):
        load_text(tmp_path / "e.jsonl")


def test_a_missing_file_and_an_empty_folder_are_told(tmp_path):
    with pytest.raises(InputError, match="there is no file or folder"):
        load_text(tmp_path / "none.txt")
    with pytest.raises(InputError, match=r"holds no \*.txt"):
        load_text(tmp_path)


def fetched(monkeypatch, folder):
    monkeypatch.setattr(text, "fetch", lambda name, progress: folder)


def test_speeches_come_in_order_of_time(monkeypatch, tmp_path):
    (tmp_path / "speeches").mkdir()
    for year in (1801, 1790):
        (tmp_path / "speeches" / f"{year}_x.txt").write_text(f"In {year}.")
    fetched(monkeypatch, tmp_path)
    assert text.sotu() == ["In 1790.", "In 1801."]


def test_moby_dick_is_a_document_a_chapter(monkeypatch, tmp_path):
    book = "CHAPTER 1. Loomings.\n\nCall me\nIshmael.\n\nCHAPTER 2. The Bag.\n\nI stuffed CHAPTER 3. in."
    (tmp_path / "moby_dick.txt").write_text(book)
    fetched(monkeypatch, tmp_path)
    assert [chapter.split(".")[0] for chapter in text.moby_dick()] == ["CHAPTER 1", "CHAPTER 2"]


def test_wikitext_is_a_document_an_article(monkeypatch, tmp_path):
    rows = [
        " = One = \n",
        " \n",
        " text \n",
        " = = Part = = \n",
        " more \n",
        " = Two = \n",
        " end \n",
    ]
    frame = pd.DataFrame({"text": rows})
    frame.to_parquet(tmp_path / "test-00000-of-00001.parquet")
    fetched(monkeypatch, tmp_path)
    assert text.wikitext("test") == ["= One = \n \n text \n = = Part = = \n more", "= Two = \n end"]
    with pytest.raises(InputError, match="no split 'dev'"):
        text.wikitext("dev")


def test_an_article_needs_a_title_line():
    assert articles("no = title = here \n") == ["no = title = here"]


def test_an_empty_file_in_a_folder_is_no_reason_to_stop(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match="is empty"):
        load_text(tmp_path)
    (tmp_path / "b.txt").write_text("Call me Ishmael.")
    assert load_text(tmp_path) == ["Call me Ishmael."]
    assert [row["text"] for row in read_rows([tmp_path])] == ["Call me Ishmael."]
