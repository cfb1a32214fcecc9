"""Every solution runs from top to bottom. A file of its own, so that the labs run beside it."""

from __future__ import annotations

import pytest

from minitrain.lab.build import targets

from .nbval import check_runs

NAMES = {target.solution.stem: target.solution for target in targets()}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_from_top_to_bottom(name, tmp_path):
    check_runs(NAMES[name], tmp_path)
