"""The wall itself: what is seen inside, what is limited, and what is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import torch

import minitrain
from minitrain.lab.failures import SubmissionFailed
from minitrain.lab.grading.attempt import Attempt
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import load_lab
from minitrain.lab.grading.running import run_checks
from minitrain.lab.sandbox import bubblewrap
from minitrain.lab.sandbox.loader import Cell, Solution
from minitrain.lab.sandbox.sandbox import Sandbox, SandboxDown
from minitrain.ranks.launch import Results

ROOT = Path(minitrain.__file__).parent.parent


def attempt(sandbox: Sandbox, source: str = "def f(*args):\n    return args\n") -> Attempt:
    return Attempt(sandbox, Solution((Cell("cell", source, True),)), "f")


def test_nothing_but_python_and_the_package_is_seen(isolated):
    def look(f):
        import os

        def names(folder):
            return sorted(os.listdir(folder)) if os.path.isdir(folder) else None

        home = os.path.expanduser("~root")
        return {
            "root": names(f()),
            "labs": names(f() + "/labs"),
            "tests": names(f() + "/tests"),
            "home": names(home),
            "tmp": names("/tmp"),
            "pids": names("/proc"),
        }

    seen = attempt(isolated, f"def f():\n    return {str(ROOT)!r}\n").run(look)
    assert set(seen["root"]) <= {"minitrain", "labs", "tests", ".venv"}
    assert (seen["labs"], seen["tests"]) == (["kit"], ["grader"])
    assert not set(seen["home"] or ()) & {".ssh", ".bashrc", ".cache", ".local"}
    course = {ROOT.parts[2]} if ROOT.is_relative_to("/tmp") else set()  # a checkout in /tmp
    assert len(set(seen["tmp"]) - course) == 1, "only this run's own folder"
    assert sum(name.isdigit() for name in seen["pids"]) <= 4, "no process of the outside"


def test_there_is_no_network_even_from_c(isolated):
    interfaces = attempt(isolated).run(
        lambda f: [n for _, n in __import__("socket").if_nameindex()]
    )
    assert interfaces == ["lo"]


def test_it_has_no_power_over_the_machine(isolated):
    status = attempt(isolated).run(
        lambda f: __import__("pathlib").Path("/proc/self/status").read_text()
    )
    assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status


@pytest.mark.parametrize("place", ["sandbox", "open_sandbox"])
def test_values_and_results_come_back(place, request):
    sandbox = request.getfixturevalue(place)
    x = torch.randn(3, 5, dtype=torch.float64)
    back = attempt(sandbox).run(lambda f, *a: {"out": f(*a), 3: None}, x.T, [1, "two"])
    assert torch.equal(back["out"][0], x.T) and back["out"][1] == [1, "two"] and back[3] is None


@pytest.mark.parametrize("place", ["sandbox", "open_sandbox"])
def test_a_launch_brings_results_and_traces(place, request):
    sandbox = request.getfixturevalue(place)
    source = "def f(group, x):\n    return group.all_reduce(x)\n"
    results = attempt(sandbox, source).launch(
        lambda g, f, x: f(g, x * g.rank), torch.ones(4), ranks=3
    )
    assert isinstance(results, Results) and [r.tolist() for r in results] == [[3.0] * 4] * 3
    assert [trace.count("all_reduce") for trace in results.traces] == [1, 1, 1]
    assert results.traces[1].bytes_sent() == 2 * 2 * 16 // 3 and results.emulated_seconds is None


def test_a_launch_on_an_emulated_fabric(sandbox):
    source = "def f(group, x):\n    return group.all_reduce(x)\n"
    run = attempt(sandbox, source)
    results = run.launch(lambda g, f, x: f(g, x), torch.ones(4), ranks=2, fabric="ethernet-25g")
    assert (
        results.emulated_seconds > 0
        and results.traces[0].emulated
        and results.fabric == "ethernet-25g"
    )


def test_two_runs_share_nothing(sandbox):
    source = "import os\nseen = []\n\ndef f():\n    seen.append(1)\n    open('left', 'w').close()\n"
    source += "    return len(seen), os.listdir('.')\n"
    run = attempt(sandbox, source)
    assert run.run(lambda f: f()) == run.run(lambda f: f()) == (1, ["left"])


def test_prints_are_not_results(sandbox):
    source = "def f():\n    print('{\"results\": [7]}')\n    return 1\n"
    assert attempt(sandbox, source).run(lambda f: f()) == 1


@pytest.mark.parametrize("isolate", [True, False])
def test_it_takes_nothing_of_the_users_along_and_leaves_nothing(
    tiny, isolate, tmp_path, monkeypatch
):
    """A checkout below /tmp is in sight of every run: clearing up must not even walk through it."""
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Sandbox(tiny.hidden, isolate=isolate) as own:
        if own.folder:
            (Path(own.folder.name) / "checkout").mkdir()
        seen = attempt(own).run(lambda f: dict(__import__("os").environ))
        assert "SECRET_TOKEN" not in seen and seen["HOME"] != os.environ.get("HOME")
        assert own.folder is None or os.listdir(own.folder.name) == ["checkout"]
        family = [own.process.pid, *(p.pid for p in psutil.Process(own.process.pid).children(True))]
    assert not list(tmp_path.iterdir())
    _, alive = psutil.wait_procs([psutil.Process(p) for p in family if psutil.pid_exists(p)], 5)
    assert not alive


def test_a_result_that_is_too_large_is_refused(sandbox):
    source = "import torch\n\ndef f():\n    return torch.zeros(2**24)\n"  # and its frame
    with pytest.raises(SubmissionFailed, match=r"larger than|more than") as failure:
        attempt(sandbox, source).run(lambda f: f())
    assert failure.value.kind in ("output", "memory")


def test_the_kernels_settings_cannot_be_changed_even_by_root(isolated):
    """/proc/sys/kernel/core_pattern names a program that the kernel starts outside, as root."""
    code = "open('/proc/sys/kernel/core_pattern', 'r+')"
    command = bubblewrap.wrap(isolated.bubblewrap, [sys.executable, "-c", code], {})
    ran = subprocess.run(command, capture_output=True, text=True)
    assert "Read-only file system" in ran.stderr or "Permission denied" in ran.stderr


@pytest.mark.parametrize("environment", ["", ".venv", "../python"])
@pytest.mark.parametrize("place", ["/opt/course", "/usr/local/course", "/srv/course"])
def test_the_checkout_is_covered_wherever_it_lies(place, environment, monkeypatch, tmp_path):
    """What was bound before lies under an empty folder, also where the environment is its root."""
    course = tmp_path / place.strip("/")
    for name in ("lib", "bin", ".venv", "solutions", "../python"):
        (course / name).mkdir(parents=True)
    monkeypatch.setattr(bubblewrap, "COURSE", course)
    monkeypatch.setattr(bubblewrap, "SYSTEM", [str(tmp_path / "usr"), str(tmp_path / "opt")])
    folder = os.path.normpath(course / environment)
    monkeypatch.setattr(bubblewrap, "_interpreter", lambda: [folder])
    arguments = bubblewrap._system()
    cover = arguments.index("--tmpfs")
    assert arguments[cover + 1] == str(course)
    assert not [a for a in arguments[cover + 2 :] if a in (str(course), str(course / "solutions"))]


def test_where_there_is_no_bubblewrap_it_says_so(open_sandbox, isolated):
    assert isolated.warning is None
    assert "grade only what you trust" in open_sandbox.warning


@pytest.mark.parametrize("name", lab_names())
def test_what_a_lab_hides_is_there(name: str):
    """A file that was moved would be hidden by its old name only, and so be in sight."""
    assert [file for file in load_lab(name).hidden if not (ROOT / file).is_file()] == []


def test_a_sandbox_that_cannot_start_is_nobodys_mistake(isolated):
    """The words of bubblewrap, no card that tells a learner to look at their own code."""
    lab = load_lab(lab_names()[0])
    exercise = next(item for item in lab.items if item.kind == "exercise")
    with Sandbox(limits=isolated.limits) as own:
        own.bubblewrap = "/bin/false"
        with pytest.raises(SandboxDown, match="nothing was graded"):
            run_checks(exercise, {"submission": attempt(own)})
