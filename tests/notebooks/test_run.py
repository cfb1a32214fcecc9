"""Every notebook runs from top to bottom through nbval: the solutions, and the labs as they come.

`make test` runs each at the `test` sizes of its lab's table, `make test-full` at the true ones each
whose table has such a column. Cells tagged `nbval-check-output` must print what they printed when
the solution was built, at any size; a solution earns every point. The learner's own progress is
not touched.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from minitrain.lab.building.masters import targets
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import load_lab
from minitrain.paths import course_root

NOTEBOOKS = [path for target in targets() for path in (target.solution, target.lab)]
LABS = {name: load_lab(name) for name in lab_names()}
SIZED = [path for path in NOTEBOOKS if path.stem in LABS and "test" in LABS[path.stem].sizes]
CELL_SECONDS = 120
TIMED = {  # they earn points with seconds that they measured
    "solutions/e00_ranks_and_collectives",
    "solutions/e09_inference",
}
EMULATED = {"solutions/e02_data_parallel"}  # with the seconds in which its ranks computed
AT_TEST_SIZE = """
def at_test_size():
    from functools import partial
    import minitrain.lab
    from minitrain.lab.notebook import lab
    from minitrain.lab.sandbox.sandbox import Sandbox
    lab.warm = lambda checks: Sandbox(checks.hidden)  # started by what is first graded, if any is
    minitrain.lab.Lab = partial(lab.Lab, tier="test")
at_test_size()
"""


def runs(paths: list[Path]) -> pytest.MarkDecorator:
    """One test a notebook; where seconds are judged nothing else may run beside it."""
    names = [f"{path.parent.name}/{path.stem}" for path in paths]
    marks = [[pytest.mark.alone] * (name in TIMED) for name in names]
    params = [pytest.param(p, id=n, marks=m) for p, n, m in zip(paths, names, marks)]
    return pytest.mark.parametrize("notebook", params)


@pytest.mark.timeout(400)
@runs(NOTEBOOKS)
def test_it_runs_from_top_to_bottom(notebook: Path, tmp_path: Path, server: ForkServer):
    startup = tmp_path / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00-tier.py").write_text(AT_TEST_SIZE)
    check(notebook, tmp_path, server)


@pytest.mark.full
@pytest.mark.timeout(400)
@runs(SIZED)
def test_it_runs_at_its_true_size(notebook: Path, tmp_path: Path, server: ForkServer):
    check(notebook, tmp_path, server)


def check(notebook: Path, scratch: Path, server: ForkServer) -> None:
    status, said = server.nbval(notebook, scratch)
    assert status == 0, (said.partition(" FAILURES ")[2] or said)[:8000]
    assert " passed" in said and "failed" not in said
    if notebook.stem not in LABS:
        return
    items = LABS[notebook.stem].items
    if notebook.parent.name == "labs":  # as it comes: whatever its references measured
        assert not any(best for best, _ in earned(scratch, "").values())
        return
    everything = {item.name: [item.max_points] * 2 for item in items}
    judges_seconds = f"solutions/{notebook.stem}" in TIMED | EMULATED
    if judges_seconds and earned(scratch, "solutions") != everything:
        server.nbval(notebook, scratch)  # a busy moment: as its card says, it is run once more
    assert earned(scratch, "solutions") == everything


def earned(scratch: Path, folder: str) -> dict[str, list[float]]:
    """Points of the run by exercise, experiment and question, [best, of], of the only lab there."""
    (path,) = scratch.glob(f"**/progress/*/{folder}/*.json")
    return json.loads(path.read_text())["points"]


@pytest.mark.parametrize("source, said", [("1 / 0", "ZeroDivisionError"), ("print(2)", "output")])
def test_nbval_sees_an_error_and_a_changed_output(
    tmp_path: Path, server: ForkServer, source: str, said: str
):
    """The runs above can fail: on an error, and on an output that is not the one recorded."""
    output = nbformat.v4.new_output("stream", name="stdout", text="1\n")
    tags = {"tags": ["nbval-check-output"]}
    cell = nbformat.v4.new_code_cell(source, outputs=[output], metadata=tags, execution_count=1)
    notebook = nbformat.v4.new_notebook(
        cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "p"}}
    )
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    status, printed = server.nbval(tmp_path / "wrong.ipynb", tmp_path)
    assert status == 1 and said in printed


class ForkServer:
    """The process of `fork_server.py`: nbval on a notebook, in a fork that has everything imported."""

    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=course_root(),
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            start_new_session=True,
        )

    def nbval(self, notebook: Path, scratch: Path) -> tuple[int, str]:
        """pytest's exit status, and what it printed; progress and settings lie in `scratch`."""
        nbval = ["--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"]
        quiet = ["-qx", "-oaddopts=", "-pno:cacheprovider", f"--rootdir={notebook.parent}"]
        output = scratch / "said.txt"
        request = {
            "arguments": ["-p", "nbval.plugin", *quiet, *nbval, str(notebook)],
            "environment": {"XDG_DATA_HOME": str(scratch), "IPYTHONDIR": str(scratch)},
            "output": str(output),
        }
        try:
            return int(self._answer(json.dumps(request))), output.read_text()
        except BaseException:  # out of time: what it still says is no answer to the next request
            self.stop()
            raise

    def _answer(self, request: str) -> str:
        if self.process is None:
            self.start()
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.stop()
