"""Any text a person points at becomes documents, or one clear sentence."""

from __future__ import annotations

import pandas as pd
import pytest

from minitrain.data import text
from minitrain.data.preparation.documents import read_rows
from minitrain.data.text import load_text
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
    (tmp_path / "e.txt").touch()
    assert load_text(tmp_path) == ["A", "B", "C"]
    assert [row["text"] for row in read_rows([tmp_path / "a.md", tmp_path / "b.txt"])] == ["A", "B"]


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


def test_a_missing_file_and_an_empty_folder_are_told(tmp_path):
    with pytest.raises(InputError, match="there is no file or folder"):
        load_text(tmp_path / "none.txt")
    with pytest.raises(InputError, match=r"holds no \*.txt"):
        load_text(tmp_path)
    (tmp_path / "e.jsonl").write_text('{"text": "a"}')
    with pytest.raises(InputError, match="holds examples"):
        load_text(tmp_path / "e.jsonl")


ARTICLES = " = One = \n| \n| text \n| = = Part = = \n| more \n| = Two = \n| end \n"


def test_fetched_texts_are_cut_into_speeches_chapters_and_articles(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "fetch", lambda name, progress: tmp_path)
    (tmp_path / "speeches").mkdir()
    for year in (1801, 1790):
        (tmp_path / "speeches" / f"{year}_x.txt").write_text(f"In {year}.")
    assert text.sotu() == ["In 1790.", "In 1801."]
    book = "CHAPTER 1. Loomings.\n\nCall me\nIshmael.\n\nCHAPTER 2. The Bag.\n\nI stuffed CHAPTER 3. in."
    (tmp_path / "moby_dick.txt").write_text(book)
    assert [chapter.split(".")[0] for chapter in text.moby_dick()] == ["CHAPTER 1", "CHAPTER 2"]
    frame = pd.DataFrame({"text": ARTICLES.split("|")})
    frame.to_parquet(tmp_path / "test-00000-of-00001.parquet")
    assert text.wikitext("test") == ["= One = \n \n text \n = = Part = = \n more", "= Two = \n end"]
    assert text.articles("no = title = here \n") == ["no = title = here"]
    with pytest.raises(InputError, match="no split 'dev'"):
        text.wikitext("dev")
