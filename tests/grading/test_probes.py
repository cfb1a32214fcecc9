"""The line between probes and verdicts: what decides never comes near a submission.

A probe runs in the sandbox, in the submission's own interpreter, which may read and change all that
it finds there. So nothing that a verdict rests on may be sent: no expected value, no hint, no check.
"""

from __future__ import annotations

import ast
import sys
from types import FunctionType, ModuleType

import cloudpickle
import pytest
import torch

from minitrain.lab.grading.collect import checks_folder, lab_names
from minitrain.lab.grading.course import load_lab
from minitrain.lab.grading.pickling import by_value
from minitrain.ranks.payload import dumps

from ..labs.probes.alive import Alive

EVERY = pytest.mark.parametrize("name", lab_names())
TOLD = 25  # letters from which on a text of a verdict is words, and no key of a dict


def probes_of(name: str) -> ModuleType:
    return sys.modules[load_lab(name).items[0].__module__].probes


def parsed(*parts: str) -> ast.Module:
    return ast.parse(checks_folder().joinpath(*parts).read_text(encoding="utf-8"))


def texts(tree: ast.AST) -> set[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in constants if isinstance(text, str) and len(text) >= TOLD}


@EVERY
def test_probes_import_nothing_that_decides(name: str):
    """`capstone` has the clusters that a submission is asked by; what it decides is judged outside."""
    for node in ast.walk(parsed("probes", f"{name}.py")):
        if isinstance(node, ast.ImportFrom):
            decides = f"{node.module}.".removeprefix("minitrain.lab.capstone.")
            assert node.level <= 1 and "minitrain.lab" not in decides, f"line {node.lineno}"


@EVERY
def test_what_is_sent_is_a_probe(name: str):
    """The first argument of `submission.run` and `.launch`: of the probes' file, or handed in."""
    tree = parsed(f"test_{name}.py")
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        given = {argument.arg for argument in function.args.args}
        for call in (node for node in ast.walk(function) if is_sent(node)):
            sent = call.args[0]
            is_probe = isinstance(sent, ast.Attribute) and ast.unparse(sent.value) == "probes"
            assert is_probe or (isinstance(sent, ast.Name) and sent.id in given), ast.unparse(call)


def is_sent(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func) in ("submission.run", "submission.launch")
    )


@EVERY
def test_no_words_of_a_verdict_cross_the_boundary(name: str):
    module = probes_of(name)
    secrets = texts(parsed(f"test_{name}.py")) - texts(parsed("probes", f"{name}.py")) - {name}
    assert secrets, "a lab's verdicts say something"
    for probe in vars(module).values():
        if isinstance(probe, FunctionType) and probe.__module__ == module.__name__:
            with by_value(probe):
                payload = dumps(probe)
            assert [text for text in secrets if text.encode() in payload] == []


def test_a_verdict_that_is_sent_would_be_seen():
    """The search above can fail: a function of a verdict's file carries its words."""
    items = load_lab(lab_names()[0]).items
    verdict = sys.modules[items[0].__module__]
    cloudpickle.register_pickle_by_value(verdict)
    try:
        payload = cloudpickle.dumps(items[0])
    finally:
        cloudpickle.unregister_pickle_by_value(verdict)
    assert any(text.encode() in payload for text in texts(parsed(f"test_{lab_names()[0]}.py")))


# --- what probes/alive.py counts: storages made inside, as long as anybody holds them ---


def test_a_clone_counts_once_as_long_as_it_is_held():
    given, alive = torch.ones(4), Alive()
    with alive:
        view, clone = given.view(2, 2), given.clone()
        kept = [clone, clone[1:], given.add_(1)]
    assert alive.nbytes() == 16, "no view, and nothing that was there before"
    assert alive.nbytes([clone[2:]]) == 0 and alive.nbytes(at_least=17) == 0
    del clone, kept
    assert alive.nbytes() == 0 and view.shape == (2, 2)


def test_memory_that_was_given_back_counts_no_more():
    alive = Alive()
    with alive:
        full = torch.zeros(8)
    full.untyped_storage().resize_(0)
    assert alive.nbytes() == 0
    full.untyped_storage().resize_(32)
    assert alive.nbytes() == 32
