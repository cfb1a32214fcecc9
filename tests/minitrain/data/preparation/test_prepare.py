"""`prepare`: the output of its steps taken one by one in memory; killed anywhere, the same bytes."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from minitrain.data.loader import Loader
from minitrain.data.packing import pack_stream
from minitrain.data.preparation.deduplication.exact import exact_duplicates
from minitrain.data.preparation.deduplication.near import near_duplicates
from minitrain.data.preparation.deduplication.passages import cut_repeats
from minitrain.data.preparation.documents import read_rows
from minitrain.data.preparation.filters.rules import is_kept, run_steps
from minitrain.data.preparation.prepare import prepare
from minitrain.data.preparation.settings import Settings
from minitrain.data.stream.token_files import TokenRows, verify_token_files
from minitrain.data.tokenizer import Tokenizer
from minitrain.errors import InputError

NOTICE = "This notice stands on every page of the house, and nobody has read it to its end yet. "


def document(rng: random.Random) -> str:
    """Eighty words, a third of them such as all English has."""
    small = ("the", "of", "and", "to", "in", "that", "was", "with", "for", "his")
    parts = [a + b for a in ("ba", "lo", "mi", "tu") for b in ("ker", "ning", "sal", "vor")]
    words = [
        rng.choice(small) if rng.random() < 0.35 else rng.choice(parts) + rng.choice(parts)
        for _ in range(80)
    ]
    return ". ".join(" ".join(words[i : i + 10]) for i in range(0, 80, 10)) + "."


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Prose, equal and nearly equal copies, a shared notice, an address, junk."""
    rng = random.Random(0)
    texts = [document(rng) for _ in range(50)]
    texts += [texts[3], texts[7] + " ", texts[5] + " and one word more"]
    texts += ["bob@example.org", "# " * 80]
    texts += [f"{document(rng)} {NOTICE}{document(rng)}" for _ in range(4)]
    texts += [f"{document(rng)} Write to ann@example.org now."]
    rng.shuffle(texts)
    folder = tmp_path_factory.mktemp("source")
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "a.jsonl").write_text("".join(lines[:30]))
    (folder / "b.jsonl").write_text("".join(lines[30:]))
    return folder


@pytest.fixture(scope="module")
def settings(source) -> Settings:
    return Settings(
        (str(source),), passages=60, vocab_size=300, shard_tokens=4000, block_bytes=9000
    )


@pytest.fixture(scope="module")
def prepared(settings, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "prepared"
    prepare(settings, out, progress=False)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def documents_of(folder: Path) -> list[str]:
    files = sorted(folder.glob("documents-*.jsonl"))
    return [json.loads(line)["text"] for file in files for line in file.open()]


def in_memory(settings: Settings) -> list[str]:
    steps = settings.steps()
    rows = [run_steps(steps, row) for row in read_rows(settings.sources)]
    texts = [row["text"] for row in rows if is_kept(row)]
    for duplicates in (exact_duplicates, near_duplicates):
        texts = [
            text for i, (text, first) in enumerate(zip(texts, duplicates(texts))) if first == i
        ]
    if settings.passages:
        texts = [text for text in cut_repeats(texts, settings.passages) if text.strip()]
    return texts


def test_the_documents_are_those_of_the_steps_in_memory(settings, prepared):
    texts = documents_of(prepared)
    assert texts == in_memory(settings)
    assert len(texts) == 55 and sum(NOTICE[:60] in text for text in texts) == 1
    assert any("<EMAIL>" in text for text in texts) and not any("ann@" in text for text in texts)


def test_the_tokens_are_those_of_the_documents(prepared):
    tokenizer = Tokenizer.load(prepared / "tokenizer.json")
    index = verify_token_files(prepared)
    assert len(index.shards) > 1 and index.vocab_size == tokenizer.vocab_size == 300
    encoded = tokenizer.encode_batch(documents_of(prepared))
    packed, rows = pack_stream(encoded, 64, tokenizer.end_token), TokenRows(prepared, 64)
    assert rows[:].tokens.tolist() == packed.tokens.tolist()
    batch = next(iter(Loader(rows, 4, workers=1)))
    assert batch.tokens.shape == (4, 64)


def test_the_report_conserves_documents_and_bytes(prepared):
    report = json.loads((prepared / "report.json").read_text())
    read, left = report["funnel"][0], report["funnel"][-1]
    drops = report["dropped"]
    dropped = sum(d["documents"] for d in drops.values())
    assert read["documents"] == 60 == left["documents"] + dropped
    lost = sum(d["bytes"] for d in drops.values()) + report["trimmed"]
    assert read["bytes"] == left["bytes"] + lost
    assert left["bytes"] == sum(len(text.encode()) for text in documents_of(prepared))
    assert {reason: d["documents"] for reason, d in drops.items()} == {
        "another_language": 2,
        "exact_duplicate": 2,
        "near_duplicate": 1,
    }
    assert report["masked"] == 1
    for own in drops.values():
        assert 1 <= len(own["samples"]) <= 3
    text = (prepared / "report.md").read_text()
    assert "example.org" not in text and "<EMAIL>" in text, "no address comes in by a sample"
    assert all(f"| {stage['stage']} | {stage['documents']} |" in text for stage in report["funnel"])
    assert (prepared / "funnel.png").read_bytes().startswith(b"\x89PNG")
    assert not (prepared / "work").exists()


@pytest.mark.parametrize("block_bytes", [10**9, 3000])
def test_blocks_change_nothing_but_the_settings(settings, prepared, tmp_path, block_bytes):
    prepare(replace(settings, block_bytes=block_bytes), tmp_path / "out", progress=False)
    mine, theirs = contents(tmp_path / "out"), contents(prepared)
    assert mine.keys() == theirs.keys()
    assert {name for name in mine if mine[name] != theirs[name]} == {"report.json"}


def killed_at(saves: int, written: bool, settings: Settings, out: Path) -> None:
    """In a process of its own: `prepare` until the save of that number, and then SIGKILL."""
    count, really = itertools.count(1), os.replace

    def replace_and_die(*args) -> None:
        number = next(count)
        if number == saves and not written:
            os.kill(os.getpid(), signal.SIGKILL)  # the file lies beside its place
        really(*args)
        if number == saves:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace_and_die
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a forked process has no threads of its parent
    prepare(settings, out, progress=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("written", [True, False])
def test_killed_again_and_again_it_ends_with_the_same_bytes(settings, prepared, tmp_path, written):
    """The n-th life ends at its n-th save, before or behind it."""
    context, out, lives = multiprocessing.get_context("fork"), tmp_path / "out", 0
    while not (out / "index.json").exists():
        lives += 1
        assert lives < 40, "it goes on, so there is an end"
        child = context.Process(target=killed_at, args=(lives, written, settings, out))
        child.start()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
    assert lives > 5
    if child.exitcode:  # killed between the last save and the end
        with pytest.raises(InputError, match="prepared already"):
            prepare(settings, out, progress=False)
    assert contents(out) == contents(prepared)


def test_other_settings_and_other_files_are_not_mixed(settings, source, tmp_path):
    out = tmp_path / "out"
    child = multiprocessing.get_context("fork").Process(
        target=killed_at, args=(8, True, settings, out)
    )
    child.start()
    child.join()
    with pytest.raises(InputError, match="begun with other near"):
        prepare(replace(settings, near=0.5), out, progress=False)
    os.utime(source / "a.jsonl", (1, 1))
    with pytest.raises(InputError, match="begun with other files"):
        prepare(settings, out, progress=False)


def test_a_file_that_cannot_be_read_is_mended_and_the_work_goes_on(settings, source, tmp_path):
    own = shutil.copytree(source, tmp_path / "source")
    settings = replace(settings, sources=(str(own),))
    (own / "0.jsonl").write_text("no JSON")
    with pytest.raises(InputError, match="is no JSON"):
        prepare(settings, tmp_path / "out", progress=False)
    (own / "0.jsonl").unlink()
    prepare(settings, tmp_path / "out", progress=False)
    assert documents_of(tmp_path / "out")


def test_the_test_set_does_not_come_in(source, tmp_path):
    texts = [row["text"] for row in read_rows([source])]
    (tmp_path / "test.txt").write_text(" ".join(texts[0].split()[3:30]))
    settings = Settings(
        (str(source),), test=str(tmp_path / "test.txt"), vocab_size=300, filters=(), near=None
    )
    report = prepare(settings, tmp_path / "out", progress=False)
    assert report.dropped["shares_a_run_with_the_test_set"]["documents"] >= 1
    assert texts[0] not in documents_of(tmp_path / "out")


def test_what_cannot_be_done_is_told_before_it_is_begun(source, settings, prepared, tmp_path):
    for change, says in (
        ({"sources": ("nowhere",)}, "no file or folder nowhere"),
        ({"filters": ("gofer",)}, "did you mean 'gopher'"),
        ({"language": "xx"}, "known are de"),
        ({"near": 1.5}, "between 0 and 1"),
        ({"vocab_size": 3}, "use 257 or more"),
        ({"block_bytes": 0}, "1 or more"),
        ({"test": "nowhere"}, "no file or folder nowhere"),
    ):
        with pytest.raises(InputError, match=says):
            replace(settings, **change)
    with pytest.raises(InputError, match="prepared already"):
        prepare(settings, prepared, progress=False)
    with pytest.raises(InputError, match="not begun by prepare"):
        prepare(settings, source, progress=False)
    with pytest.raises(InputError, match="no document is left: another_language dropped"):
        prepare(replace(settings, language="pl"), tmp_path / "out", progress=False)
    assert list((tmp_path / "out").iterdir()) == [], "so that other settings may begin"
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="none was read; give sources that are not empty"):
        nothing = replace(settings, sources=(str(tmp_path / "empty.jsonl"),))
        prepare(nothing, tmp_path / "out", progress=False)


def test_null_texts_are_counted_and_the_others_are_prepared(source, settings, tmp_path):
    lines = [line for file in sorted(source.iterdir()) for line in file.read_text().splitlines()]
    lines[5:5] = ['{"text": null}'] * 3
    (tmp_path / "a.json").write_text("\n".join(lines))
    begun = replace(settings, sources=(str(tmp_path / "a.json"),))
    report = prepare(begun, tmp_path / "out", progress=False)
    assert report.dropped["no_text"]["documents"] == 3 and report.tokens > 1000
    (tmp_path / "a.json").write_text('{"text": null, "body": "x"}\n' * 3)
    with pytest.raises(InputError, match=r"no_text dropped 3; give the field .* with --field"):
        prepare(begun, tmp_path / "none", progress=False)
