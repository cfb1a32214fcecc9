"""reload: a rank runs the package as it is on disk, though the server has loaded it before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.alone]
PACKAGE = Path(__file__).resolve().parents[3] / "minitrain"

TEXT = """
import sys
from pathlib import Path
from minitrain.measure import traffic
from minitrain.ranks.launch import launch

def see(group):
    from minitrain.measure import traffic
    return getattr(traffic, "EDITED", False), Path(traffic.__file__).parents[2] == Path(sys.argv[1])

print(launch(see, ranks=2))
with open(traffic.__file__, "a") as file:
    file.write("EDITED = True\\n")
print(launch(see, ranks=2))
"""


def test_an_edit_of_the_package_counts_at_the_next_launch(tmp_path, run_script):
    shutil.copytree(PACKAGE, tmp_path / "minitrain")
    output = run_script(TEXT, PYTHONPATH=str(tmp_path)).finish()
    assert output.splitlines() == ["[(False, True), (False, True)]", "[(True, True), (True, True)]"]
