"""The course's own functions, sent whole: an exercise may build on one that is not there yet.

Their file is hidden in the sandbox, so they travel by value, each with only what it uses itself.
"""

from __future__ import annotations

import sys

import cloudpickle

from minitrain.lab.checks import Exercise
from minitrain.lab.course import reference


def pickled_reference(exercise: type[Exercise]) -> bytes:
    """The reference of an exercise, for `pickle.loads` where its module cannot be imported."""
    original = reference(exercise)
    modules = [sys.modules[name] for name in hidden_modules(exercise) if name in sys.modules]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(original)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def hidden_modules(exercise: type[Exercise]) -> set[str]:
    """The modules of the files that the exercise hides, and that of its reference."""
    files = {name.removesuffix(".py").replace("/", ".") for name in exercise.hidden}
    return {*files, exercise.reference.partition(":")[0]}
