"""Reading what is handed in: notebooks, files in cells, plain files, and what is none of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minitrain.errors import InputError
from minitrain.lab.grading.checks import Exercise
from minitrain.lab.grading.pickling import SubmissionPickler
from minitrain.lab.grading.submission import read_submission
from minitrain.lab.sandbox.loader import Solution, load

STUB = 'def f(x):\n    """Says it."""\n    raise NotImplementedError("3 lines")\n'
MARKED = 'def f(x):\n    """Says it."""\n    n = len(x)\n    # YOUR CODE HERE\n    ...\n'


def written(tmp_path: Path, text: str, name: str = "e.py") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_a_notebook_gives_cells_records_and_its_lab(complete):
    read = read_submission(complete())
    assert read.lab == "t00_tiny"
    assert [cell.whole for cell in read.cells] == [False, True, False, False, False]
    assert read.recorded["experiment"]["scaling"][1] == {"ranks": 4, "bytes": 30}
    assert read.recorded["answer"] == {"most": 4}
    assert read.defines("chunk_sizes") and not read.defines("lab.grade")


def test_the_last_record_of_a_name_counts(notebook):
    records = [{"kind": "answer", "name": "most", "value": value} for value in (1, 2)]
    path = notebook("t.ipynb", [("a", [], records[:1]), ("b", [], records[1:])])
    assert read_submission(path).recorded["answer"] == {"most": 2}


def test_a_file_in_cells_keeps_its_line_numbers(tmp_path):
    text = '# %% [markdown]\n# prose\n# %% tags=["exercise"]\ndef f():\n    pass\n# %%\nlaunch(f)\n'
    cells = read_submission(written(tmp_path, text)).cells
    assert [cell.whole for cell in cells] == [False, True, False]
    assert cells[1].source.splitlines()[3] == "def f():"


@pytest.mark.parametrize("text", [STUB, MARKED, "def f(x):\n    ...\n", "def f(x): pass\n"])
def test_a_stub_is_known_without_running_it(tmp_path, text):
    assert read_submission(written(tmp_path, text)).is_stub("f")


@pytest.mark.parametrize(
    "text",
    [
        STUB + "\ndef f(x):\n    return x\n",
        MARKED.replace("    ...", "    return n"),
        "def f(x):\n    if x:\n        raise NotImplementedError\n    return x\n",
        "f = len\n",
        "class f:\n    pass\n",
    ],
)
def test_what_is_filled_in_is_no_stub(tmp_path, text):
    read = read_submission(written(tmp_path, text))
    assert read.defines("f") and not read.is_stub("f")


def test_grading_it_is_not_defining_it(tmp_path):
    assert not read_submission(written(tmp_path, "f = lab.grade(f)\n")).defines("f")


def test_magics_are_no_obstacle(tmp_path, notebook):
    path = notebook("m.ipynb", [("%time\n!ls\ndef f():\n    return 1", ["exercise"], [])])
    assert read_submission(path).defines("f")


@pytest.mark.parametrize(
    "text", ["def f(:\n", "-" * 200_000 + "1", "(" * 5000, "x" + ".a" * 200_000]
)
def test_what_is_no_python_defines_nothing(tmp_path, text):
    assert not read_submission(written(tmp_path, text)).defines("f")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.ipynb", b"", "is not a notebook"),
        ("a.ipynb", b"{}", "is not a notebook"),
        ("a.ipynb", b"[1, 2]", "is not a notebook"),
        (
            "a.ipynb",
            b'{"cells": 3, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
            "not a notebook",
        ),
        ("a.ipynb", b"\xff\xfe\x00", "not a text file in UTF-8"),
        ("a.txt", b"hello", "neither a notebook"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_submission(tmp_path / name)


def test_a_missing_file_gets_one_sentence(tmp_path):
    with pytest.raises(InputError, match="is not there"):
        read_submission(tmp_path / "no.ipynb")


def test_a_file_is_read_without_torch():
    code = "import sys, minitrain.lab.grading.collect; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_json_of_millions_of_values_is_refused_before_it_is_parsed(tmp_path):
    """60 MB of `{},` would be gigabytes of objects."""
    path = written(tmp_path, '{"cells": [' + "{}," * 1_100_000 + "{}]}", "bomb.ipynb")
    with pytest.raises(InputError, match="2 million values, more than 2"):
        read_submission(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [("# %%\n" * 400_000, "has 400000 cells, more than 2000"), ("x = 1\n" * 100_000, "of code")],
)
def test_more_code_than_anybody_writes_is_refused_before_it_is_cut(tmp_path, text, words):
    """Each cell of a .py keeps its line numbers by empty lines: n cells, n² of them."""
    with pytest.raises(InputError, match=words):
        read_submission(written(tmp_path, text))


def test_what_is_put_in_a_files_place_meanwhile_is_not_followed(tmp_path, monkeypatch):
    """Between the look at it and its reading: a link to a classmate's work, a pipe, a folder."""
    own = written(tmp_path, "x = 1\n").lstat()
    monkeypatch.setattr(Path, "lstat", lambda path: own)
    (tmp_path / "link.py").symlink_to(tmp_path / "e.py")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("link", "folder"):
        with pytest.raises(InputError, match="cannot be read"):
            read_submission(tmp_path / f"{name}.py")
    assert not read_submission(tmp_path / "pipe.py").defines("x"), "nothing, and nobody waits"


def test_what_nbformat_says_of_ids_is_not_printed(complete, recwarn):
    """A line for each cell of one id, and as long as the id is."""
    path = complete()
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        cell["id"] = "x" * 100_000
    path.write_text(json.dumps(notebook))
    assert read_submission(path).defines("chunk_sizes") and not recwarn.list


WHOLE = 'def f(x):\n    """Says it."""\n    {}\n    return x + 1\n'
LINES = {  # a cell, and where its `return` stands
    "f?": ("f?\n" + WHOLE.format("y = x"), 5),
    "??f": (WHOLE.format("y = x") + "??f", 4),
    "x = !ls": ("files = !ls\nfirst = files[:1]\n" + WHOLE.format("y = first"), 6),
    "!pip": ("!pip install \\\n    einops\n" + WHOLE.format("y = x"), 6),
    "%timeit in a block": (
        "for n in range(3):\n    %timeit sum(range(n))\n" + WHOLE.format("0"),
        6,
    ),
    "%timeit in the function": (WHOLE.format("%timeit -n 1 x + 1"), 4),
    "! in the function": (WHOLE.format("for line in []:\n        !echo {line}"), 5),
    "result of a magic": (WHOLE.format("t = %timeit -o x"), 4),
    "%%time": ("%%time\n" + WHOLE.format("y = x"), 5),
    "%%capture and more": ("\n%%capture out\n%matplotlib inline\n" + WHOLE.format("!ls"), 7),
    "get_ipython() itself": ("get_ipython().system('ls')\n" + WHOLE.format("y = x"), 5),
}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("suffix", ["ipynb", "py"])
def test_a_line_of_ipythons_costs_nothing(tmp_path, notebook, name, suffix):
    text, line = LINES[name]
    if suffix == "ipynb":
        path = notebook("m.ipynb", [(text, ["exercise"], [])])
    else:
        path = written(tmp_path, '# %% tags=["exercise"]\n' + text)
        line += 1
    read = read_submission(path)
    assert read.defines("f") and not read.is_stub("f")
    assert read.cells[-1].source.split("\n")[line - 1] == "    return x + 1"
    function, problems = load(Solution(read.cells), "f")
    assert function(2) == 3 and problems == []


def test_what_is_below_another_language_is_not_read(notebook):
    cells = [(f"%%{name}\ndef f(x) {{ ls }}\n", ["exercise"], []) for name in ("bash", "html", "!")]
    cells.append((WHOLE.format("y = x"), ["exercise"], []))
    read = read_submission(notebook("m.ipynb", cells))
    function, problems = load(Solution(read.cells), "f")
    assert function(2) == 3 and problems == []


def test_python_stays_as_it_is(notebook):
    """Also where a line of it looks like one of IPython's."""
    text = 'TEXT = """\n%time\n!ls\n"""\nx = (7\n%2)\n' + WHOLE.format("y = x != 3")
    assert read_submission(notebook("m.ipynb", [(text, [], [])])).cells[0].source == text


def test_a_cell_of_nothing_but_magics_is_read_at_once(tmp_path):
    """IPython's own loop reads a cell anew after each of them: minutes for some hundreds."""
    text = "!ls\n" * 900 + "y = f(a)\n" * 20_000
    began = time.monotonic()
    assert not read_submission(written(tmp_path, text + "x = (\n")).defines("f")
    assert time.monotonic() - began < 60


def test_a_function_sent_from_a_notebook_takes_no_shell_along():
    """There `get_ipython` is a method of the kernel's shell, which no pickle holds."""

    class Shell:
        def get_ipython(self):
            return self

        def __reduce__(self):
            raise TypeError("a shell cannot be pickled")

    class Asked(Exercise):
        name, reference = "f", "minitrain.parallel.collectives.algorithms:chunk_sizes"

    names = {"get_ipython": Shell().get_ipython}
    code = "def f(x):\n    get_ipython().run_line_magic('time', '')\n    return x + 1\n"
    exec(compile(code, "<ipython-input-3-x>", "exec"), names)
    pickled = SubmissionPickler(Asked, ()).pickled(names["f"])
    assert load(Solution(live=pickled), "f")[0](2) == 3
