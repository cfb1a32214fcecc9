"""Data between the launching process and its ranks: functions by value, tensors as bytes.

A function of a cell, or of a module that a rank could not import, is sent by value (cloudpickle).
A tensor is sent as its own elements on the CPU: a slice does not bring along its large base, and
nothing is put into /dev/shm, which is 64 MB in a typical container.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from minitrain.errors import InputError


class Pickler(cloudpickle.Pickler):
    """cloudpickle, with tensors as plain CPU data, and modules of any kind by name.

    cloudpickle also pickles every submodule of `torch` that a function might use: the name `ops` in
    it is enough for `torch.ops`, a module with a class of its own, which cannot be pickled.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ModuleType) and type(value) is not ModuleType:
            if sys.modules.get(value.__name__) is value:
                return import_module, (value.__name__,)
        if type(value) in (Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            if value.device.type != "meta" and not value.is_quantized:
                return _tensor_parts(value)
        return super().reducer_override(value)


def dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} where plain values are sent")


def plain_loads(data: bytes) -> Any:
    """Unpickles plain values; imports and calls nothing that the pickle names."""
    return _PlainUnpickler(io.BytesIO(data)).load()


def pack_call(fn: Callable, args: tuple, fabric: Any = None) -> bytes:
    """`(fn, args, fabric)` for `pickle.loads` in a rank; InputError names any unpicklable part."""
    with modules_by_value(_strangers(fn, *args)):
        try:
            return dumps((fn, args, fabric))
        except Exception as error:
            raise InputError(_culprit(fn, args, error)) from error


def _tensor_parts(value: Tensor) -> tuple:
    plain = value.detach().cpu().contiguous().resolve_conj().resolve_neg()
    raw = bytearray(plain.view(-1).view(torch.uint8).numpy()) if plain.numel() else bytearray()
    kind, is_leaf = type(value), value.is_leaf  # the autograd history of a result stays on the rank
    leaf = (is_leaf and value.requires_grad, value.grad if is_leaf else None)
    return _tensor, (kind, raw, value.dtype, tuple(value.shape), *leaf)


def _tensor(
    kind: type,
    raw: bytearray,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    requires_grad: bool,
    grad: Tensor | None,
) -> Tensor:
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = flat.view(shape)
    if kind is torch.nn.Parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad)
    tensor.requires_grad_(requires_grad).grad = grad
    return tensor


@contextmanager
def modules_by_value(modules: Collection[ModuleType]) -> Iterator[None]:
    """Pickles functions and classes of these modules by value, which otherwise go by name."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _strangers(*values: Any) -> list[ModuleType]:
    """The modules of these functions that a fresh process could not find."""
    modules = {sys.modules.get(getattr(value, "__module__", None) or "") for value in values}
    return [module for module in modules if module is not None and not _importable(module)]


def _importable(module: ModuleType) -> bool:
    """True if the module's file lies where its name says, below a folder of sys.path."""
    file, name = getattr(module, "__file__", None), module.__name__
    if name == "__main__" or file is None or not file.endswith(".py") or _is_ours(name):
        return True  # __main__ goes by value anyway; built-in modules need no file
    relative = Path(*name.split("."))
    homes = [Path(entry or ".") / relative for entry in sys.path]
    found = [path for home in homes for path in (home.with_suffix(".py"), home / "__init__.py")]
    return any(path.exists() and path.samefile(file) for path in found)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == __name__.partition(".")[0]


def _culprit(fn: Callable, args: tuple, error: Exception) -> str:
    """Names the argument, or the name that `fn` uses, that cannot be sent to another process."""
    advice = "make it on the rank, inside the function, or send plain data"
    for label, value in [*_arguments(fn, args), *_names_used(fn)]:
        try:
            dumps(value)
        except Exception as own:
            kind = type(value).__name__
            return f"{label}, a {kind}, cannot be sent to the ranks ({own}): {advice}"
    return f"{getattr(fn, '__name__', fn)} cannot be sent to the ranks ({error}): {advice}"


def _arguments(fn: Callable, args: tuple) -> list[tuple[str, Any]]:
    try:
        names = list(inspect.signature(fn).parameters)[1:]
    except (TypeError, ValueError):
        names = []
    names += [str(i + 1) for i in range(len(names), len(args))]
    return [(f"argument '{name}'", value) for name, value in zip(names, args)]


def _names_used(fn: Callable) -> list[tuple[str, Any]]:
    try:
        used = inspect.getclosurevars(fn)
    except (TypeError, ValueError):
        return []
    found = {**used.globals, **used.nonlocals}
    return [(f"'{name}', which {fn.__name__} uses", value) for name, value in found.items()]
