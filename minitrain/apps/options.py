"""Options of commands: declared in annotations, shown by typer, read by their kinds.

    gpus: Annotated[int, Option(whole(1, 10**6), "The number of chips.")] = 64
    $ minitrain plan --gpus 1e20
    error: --gpus is '1e20': give a whole number from 1 to 1,000,000

Typer sees each as text with a callback (`typed`); a dataclass of such fields also defines a
command's options, and validates itself (`check_fields`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, getdoc, signature
from typing import Annotated, Any, Optional, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from minitrain.apps.kinds import Kind
from minitrain.errors import InputError


@dataclass(frozen=True)
class Option:
    """In an annotation: an option's kind, its help text, and its help panel."""

    kind: Kind
    help: str
    default: str | None = None  # in words, for a computed default (the parameter's own is None)
    panel: str | None = None
    many: bool = False  # may be repeated; for an argument: all the rest

    declared = staticmethod(typer.Option)


class Argument(Option):
    """A positional argument."""

    declared = staticmethod(typer.Argument)


@dataclass(frozen=True)
class Flag:
    """A bool, --NAME unless `names` gives other spellings."""

    help: str
    panel: str | None = None
    names: tuple[str, ...] = ()


QUIET = Flag("Show no progress.", names=("--quiet", "-q"))


class Command(TyperCommand):
    """Shows --help without a type in its own help."""

    def get_help_option(self, context: typer.Context) -> Any:
        return untyped(super().get_help_option(context))


class Group(TyperGroup):
    def get_help_option(self, context: typer.Context) -> Any:
        return untyped(super().get_help_option(context))


def untyped(option: Any) -> Any:
    option.metavar, option.help = "", "Show this page."
    return option


def group(name: str, help: str) -> typer.Typer:
    return typer.Typer(
        name=name,
        help=help,
        cls=Group,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )


def add(to: typer.Typer, function: Callable, *options: type) -> None:
    """Adds a command to a group; the second paragraph of its docstring holds the help's examples.

    `options` are the dataclasses behind the function's **given.
    """
    to.command(cls=Command, **help_of(function))(typed(function, *options))


def help_of(function: Callable) -> dict[str, str]:
    text, _, examples = getdoc(function).partition("\n\n")
    return {"help": text, "epilog": "\n\n".join(["Examples:", *examples.splitlines()])}


def typed(function: Callable, *options: type) -> Callable:
    """`function` with the signature that typer reads."""
    hints = get_type_hints(function, include_extras=True)
    taken = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=own.default, annotation=hints[name])
        for name, own in signature(function).parameters.items()
        if own.kind is not Parameter.VAR_KEYWORD
    ]
    taken += [parameter for kind in options for parameter in of_fields(kind)]
    taken = [as_text(parameter) for parameter in taken]

    @wraps(function)
    def command(**given: Any) -> Any:
        return function(**given)

    command.__signature__ = Signature(taken)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in taken}
    return command


def of_fields(kind: type) -> list[Parameter]:
    """A parameter for each option field of a dataclass, inherited ones last."""
    hints = get_type_hints(kind, include_extras=True)
    ordered = sorted(fields(kind), key=lambda field: field.name not in kind.__annotations__)
    defaults = {f.name: Parameter.empty if f.default is MISSING else f.default for f in ordered}
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in defaults.items()
        if get_origin(hints[name]) is Annotated
    ]


def as_text(parameter: Parameter) -> Parameter:
    """Turns a parameter into typer's text parameter with a callback; others are unchanged."""
    option, label = option_of(parameter.annotation), label_of(parameter)
    if isinstance(option, Flag):
        names, shown = option.names or (label,), {"rich_help_panel": option.panel, "metavar": ""}
        flag = typer.Option(*names, help=option.help, show_default=False, **shown)
        return parameter.replace(annotation=Annotated[bool, flag])
    if option is None:
        return parameter

    def read(given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [option.kind(text, label) for text in given]
        return None if given is None else option.kind(given, label)

    info = option.declared(
        help=option.help,
        metavar=label if isinstance(option, Argument) else option.kind.metavar,
        show_default=option.default or True,
        rich_help_panel=option.panel,
        callback=read,
    )
    default = parameter.default
    text: Any = list[str] if option.many else str
    if default is None:
        text = Optional[text]  # noqa: UP045
    elif default is not Parameter.empty:
        default = f"{default:g}" if isinstance(default, float) else str(default)
    return parameter.replace(annotation=Annotated[text, info], default=default)


def option_of(annotation: Any) -> Option | Flag | None:
    notes = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    return next((note for note in notes if isinstance(note, (Option, Flag))), None)


def label_of(parameter: Parameter) -> str:
    """An option as it is typed, --deadline; or an argument's metavar, RUNS."""
    if isinstance(option_of(parameter.annotation), Argument):
        return parameter.name.upper()
    return f"--{parameter.name.replace('_', '-')}"


def check_fields(options: Any) -> None:
    """InputError for the first field of a dataclass whose value its option would reject."""
    for parameter in of_fields(type(options)):
        option, value = option_of(parameter.annotation), getattr(options, parameter.name)
        if isinstance(option, Option) and value is not None:
            label = label_of(parameter)
            if option.kind(str(value), label) != value:
                raise InputError(f"{label} is {value!r:.80}: give {option.kind.allowed}")
