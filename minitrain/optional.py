"""Optional dependencies, imported only when a feature needs them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from minitrain.errors import InputError


def require(user: str, *modules: str, install: str = "", instead: str = "") -> None:
    """InputError where one of the modules that `user` needs is not installed.

    install: their names for pip, if different; instead: an alternative to suggest.
    """
    missing = [module for module in modules if not _is_there(module.partition(".")[0])]
    if missing:
        raise _cannot(user, " and ".join(missing), "not installed", install, instead)


def optional(user: str, module: str, install: str = "", instead: str = "") -> ModuleType:
    """The module; InputError where it is missing or fails to load."""
    require(user, module, install=install, instead=instead)
    try:
        return import_module(module)
    except ImportError as error:
        raise _cannot(user, module, f"broken ({error})", install, instead) from error


def _is_there(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None
    return find_spec(package) is not None


def _cannot(user: str, modules: str, state: str, install: str, instead: str) -> InputError:
    advice = f"pip install {install or modules.replace(' and ', ' ')}"
    return InputError(f"{user} needs {modules}, which is {state}: {advice}{instead}")
