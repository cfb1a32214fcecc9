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


def test_a_classifier_of_two_heaps_keeps_one_of_them(tmp_path):
    """Trained on other stories of both worlds; then what stays of a mixture is the village's."""
    seeds = {"village": (1, 2), "space": (3, 4)}
    for name, (first, second) in seeds.items():
        for kind, seed in (("learn", first), ("mixed", second)):
            with (tmp_path / f"{kind}.jsonl").open("a") as mixed:
                texts = make_corpus(15_000, seed=seed, domain=name).documents
                lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
                mixed.write(lines)
                if kind == "learn":
                    (tmp_path / f"{name}.jsonl").write_text(lines)
    keep = str(tmp_path / "keep.safetensors")
    heaps = ("--wanted", str(tmp_path / "village.jsonl"), "--other", str(tmp_path / "space.jsonl"))
    done = minitrain("data", "classifier", *heaps, "--out", keep)
    assert done.returncode == 0 and "100% of wanted held-out documents" in done.stdout
    words = ["--language", "any", "--filters", "none", "--near", "0", "--vocab", "300", "--quiet"]
    out = str(tmp_path / "out")
    mixed = ("data", "prepare", str(tmp_path / "mixed.jsonl"), "--classifier", keep, *words)
    unknown = minitrain(*mixed, "--out", out, "--label", "vilage")
    assert unknown.returncode == 2 and "no label is called 'vilage'" in unknown.stderr
    done = minitrain(*mixed, "--out", out)
    assert done.returncode == 0 and f"train --data {out}" in done.stdout, done.stderr
    assert "unlike_the_wanted" in json.loads((tmp_path / "out/report.json").read_text())["dropped"]
    kept = [json.loads(line)["text"] for line in (tmp_path / "out/documents-00000.jsonl").open()]
    village = set(make_corpus(15_000, seed=2, domain="village").documents)
    assert len(set(kept) & village) > 0.95 * len(village) and len(set(kept) - village) < 3
    few = minitrain("data", "classifier", "--wanted", keep, "--other", keep, "--out", keep)
    assert few.returncode == 2


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
