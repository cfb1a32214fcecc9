"""The labs of the course, the items each one grades, and the references of its exercises.

The checks of a lab are `tests/labs/test_<lab>.py`, loaded by path; they name each exercise's
reference, which is sent as a pickle to a sandbox that hides its file.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from minitrain.errors import unknown_name
from minitrain.lab.grading.checks import Exercise, Graded, Reveal
from minitrain.lab.grading.collect import checks_folder, lab_names
from minitrain.ranks.payload import modules_by_value


@dataclass(frozen=True)
class LabChecks:
    """A lab as its grader sees it; `items` in the order of the file and the lab."""

    name: str
    items: tuple[type[Graded], ...]
    sizes: dict[str, dict[str, Any]]
    reveals: dict[str, Reveal] = field(default_factory=dict)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Files of the package hidden from its submissions."""
        files = {f for item in self.items if issubclass(item, Exercise) for f in item.hidden}
        return tuple(sorted(files))

    def find(self, kind: str, name: str) -> type[Graded]:
        """The exercise, experiment or question called `name`; InputError with the nearest."""
        known = {item.name: item for item in self.items if item.kind == kind}
        if name not in known:
            raise unknown_name(f"{kind} of {self.name}", name, known)
        return known[name]


def load_lab(name: str, root: Path | None = None) -> LabChecks:
    """The checks of a lab; InputError for one that does not exist."""
    if name not in lab_names(root):
        raise unknown_name("lab", name, lab_names(root))
    return lab_of(_load(checks_folder(root) / f"test_{name}.py"))


def lab_of(module: ModuleType) -> LabChecks:
    """The graded classes of a module, in order; each must be complete."""
    items = [item for item in vars(module).values() if _is_graded(item, module)]
    names = [(item.kind, item.name) for item in items]
    assert len(set(names)) == len(names), f"{module.LAB}: a name is used twice in {names}"
    for place, item in enumerate(items):
        assert item.name and item.max_points, f"{item.__name__} needs a name and checks"
        before = {earlier.name for earlier in items[:place]}
        unknown = set(getattr(item, "rests_on", ())) - before
        assert not unknown, f"{item.__name__} rests on {unknown}: known before it are {before}"
    tables = (getattr(module, table, {}) for table in ("SIZES", "REVEALS"))
    return LabChecks(module.LAB, tuple(items), *tables)


def reference(exercise: type[Exercise]) -> Any:
    """The course's own object for an exercise, "module:name" imported."""
    module, _, name = exercise.reference.partition(":")
    return getattr(importlib.import_module(module), name)


def pickled_reference(exercise: type[Exercise]) -> bytes:
    """The reference of an exercise, for `pickle.loads` where its module cannot be imported."""
    original = reference(exercise)
    modules = [sys.modules[name] for name in hidden_modules(exercise) if name in sys.modules]
    with modules_by_value(modules):
        return cloudpickle.dumps(original)


def hidden_modules(exercise: type[Exercise]) -> set[str]:
    """The modules of the files that the exercise hides, and that of its reference."""
    files = {name.removesuffix(".py").replace("/", ".") for name in exercise.hidden}
    return {*files, exercise.reference.partition(":")[0]}


def _is_graded(item: Any, module: ModuleType) -> bool:
    return (
        isinstance(item, type) and issubclass(item, Graded) and item.__module__ == module.__name__
    )


def _load(path: Path) -> ModuleType:
    """Loads a file of checks as a module in its folder's package, since it imports
    `.probes.<lab>`."""
    package = f"minitrain_checks_{zlib.crc32(str(path.parent.resolve()).encode()):08x}"
    if package not in sys.modules:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(path.parent)]
    name = f"{package}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} is a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
