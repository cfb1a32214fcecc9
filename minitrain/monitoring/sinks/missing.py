"""Packages that are asked for by name only when someone wants what they do."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from minitrain.errors import InputError


def wanted(module: str, package: str, what: str) -> ModuleType:
    """The module; where it cannot be had, InputError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{what} needs {package} ({error}): pip install {package}") from None
