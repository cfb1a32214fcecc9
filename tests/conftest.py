"""The suite's own option, and how the tests are spread over processes: a file on one, so that it
starts its sandbox, its server and its kernel once; each run of a notebook by itself, since it
shares nothing and takes longest."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling


class FilesAndNotebooks(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return nodeid if "notebooks/test_run.py" in nodeid else super()._split_scope(nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "what the checks draw for the submissions in the banks (a seed)"
    parser.addoption("--draws", type=int, default=0, help=words)


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> FilesAndNotebooks:
    return FilesAndNotebooks(config, log)
