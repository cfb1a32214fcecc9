"""`lab`, `build` and `doctor` from the command line: their words, and exit code 2 for bad input."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from minitrain.apps.lab import _report_drift
from minitrain.lab.building.masters import as_solution, for_learners, read_master, targets, write
from minitrain.paths import course_root

from .command_line import minitrain

COURSE = Path(__file__).parent.parent / "lab" / "course"


@pytest.mark.parametrize(
    "words, said",
    [
        (("lab", "e00_rank"), "no lab is called 'e00_rank'"),
        (("lab", "--port", "99999"), "--port is '99999'"),
        (("build", "e77"), "no lab is called 'e77'"),
        (("build", "--check", "e77"), "no lab is called 'e77'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, said):
    done = minitrain(*words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


def test_the_doctor_says_a_line_for_each_need_and_exits_with_0():
    done = minitrain("doctor")
    lines = done.stdout.strip().splitlines()
    assert 9 <= len(lines) <= 12 and all(
        line[:4].strip() in ("ok", "warn", "fail") for line in lines
    )
    assert done.returncode == any(line.startswith("fail") for line in lines), done.stdout


def test_before_anything_is_installed_the_doctor_says_so():
    """A Python without packages (-S): one line a finding, or a sentence that says what to do."""
    command = [sys.executable, "-S", "-m", "minitrain"]
    done = subprocess.run([*command, "doctor"], capture_output=True, text=True, cwd=course_root())
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "torch is not installed  → run 'make setup'" in done.stdout
    fails = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("fail")]
    assert fails == ["torch", "Jupyter"], "memory and disk are looked at without packages"
    done = subprocess.run([*command, "train"], capture_output=True, text=True, cwd=course_root())
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "make setup" in done.stderr


def test_check_tells_drift_and_broken_rules(course, capsys):
    (target,) = targets(None, course)
    assert _report_drift([target]) == 1
    assert "labs/e90_sums.ipynb is not there: run 'make build'" in capsys.readouterr().out
    notebook = read_master(target)
    write(for_learners(notebook), target.lab), write(as_solution(notebook), target.solution)
    assert _report_drift([target]) == 0
    text = target.master.read_text().replace("A running sum", "word " * 130 + "A running sum")
    target.master.write_text(text)
    notebook = read_master(target)
    write(for_learners(notebook), target.lab), write(as_solution(notebook), target.solution)
    assert _report_drift([target]) == 1
    assert "a prose cell has at most 130" in capsys.readouterr().out


@pytest.fixture
def course(tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(COURSE, tmp_path / "course"))


@pytest.mark.parametrize("home", ["{}", "/dev/null/nobody"])
def test_lab_serves_jupyterlab_with_one_kernel_and_ends_with_its_process(tmp_path, home):
    """Also where the home cannot be written."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "minitrain", "lab", "--no-browser", "--port", str(port)]
    log = (tmp_path / "log").open("w+")
    env = {**os.environ, "HOME": home.format(tmp_path)}
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path, env=env)
    try:
        address = _address(tmp_path / "log", server)
        assert f":{port}/lab" in address and "/tree/labs/index.ipynb" in address
        base, token = address.split("/lab")[0], address.split("token=")[1]
        assert list(_get(f"{base}/api/kernelspecs?token={token}")["kernelspecs"]) == ["python3"]
        said = (tmp_path / "log").read_text()
        assert not [word for word in ("[I ", "[W ", "[E ", "WARNING") if word in said], said
        if (environ := Path(f"/proc/{server.pid}/environ")).is_file():  # its terminals have it too
            path = f"PATH={Path(sys.executable).parent}{os.pathsep}"
            assert any(each.startswith(path) for each in environ.read_text().split("\0"))
    finally:
        server.terminate()
        server.wait(30)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{base}/api", timeout=5)


def _get(address: str) -> dict:
    """The address is printed a moment before it answers."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.URLError:
            time.sleep(0.2)
    raise AssertionError(f"no answer at {address}")


def _address(log: Path, server: subprocess.Popen) -> str:
    for _ in range(300):
        found = [w for w in log.read_text().split() if w.startswith("http://") and "token=" in w]
        if found:
            return found[0]
        assert server.poll() is None, log.read_text()
        time.sleep(0.2)
    raise AssertionError(log.read_text())
