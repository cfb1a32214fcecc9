"""`data prepare` and `data verify` as they are typed."""

from __future__ import annotations

import json

from minitrain.data.corpus import make_corpus

from .command_line import minitrain


def test_prepare_and_verify(tmp_path):
    texts = make_corpus(40_000, seed=3).documents
    lines = [json.dumps({"body": text}) for text in [*texts, texts[0]]]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    words = (
        "--out",
        str(out),
        "--field",
        "body",
        "--filters",
        "none",
        "--near",
        "0",
        "--vocab",
        "300",
    )
    done = minitrain("data", "prepare", str(tmp_path / "a.jsonl"), *words)
    assert done.returncode == 0, done.stderr
    assert "exact_duplicate" in done.stdout and f"{len(texts)}" in done.stdout
    assert "cleaning" in done.stderr, "a bar"
    settings = json.loads((out / "report.json").read_text())["settings"]
    assert settings["near"] is None and settings["filters"] == [] and settings["mask"]
    verified = minitrain("data", "verify", str(out))
    assert verified.returncode == 0 and f"of {len(texts)} documents in 1 shard" in verified.stdout
    again = minitrain("data", "prepare", str(tmp_path / "a.jsonl"), *words, "--quiet")
    assert again.returncode == 2 and "prepared already" in again.stderr


def test_what_cannot_be_is_one_sentence(tmp_path):
    for words, says in (
        (("prepare", "nowhere", "--out", str(tmp_path / "x")), "no file or folder nowhere"),
        (("prepare", "sotu", "--out", str(tmp_path / "x"), "--filters", "gofer"), "'gopher'"),
        (("prepare", "sotu", "--out", str(tmp_path / "x"), "--language", "xx"), "'xx'"),
        (("prepare", "--out", str(tmp_path / "x")), "Missing argument"),
        (("verify", str(tmp_path)), "holds no index.json"),
    ):
        done = minitrain("data", *words)
        assert done.returncode == 2 and says in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
