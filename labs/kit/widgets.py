"""Sliders on analytic or cached results; a static picture at the defaults always comes first.

    def draw(ax, ranks, gigabytes):             # draws fast: a formula, or a table in memory
        ...
    widgets.explore(draw, ranks=(2, 64, 8), gigabytes=[1, 10, 100])

A choice is `(first, last, default)`, or a list, whose first element is the default, or a list and
the default: `([1, 2, 4, 8], 2)`. Values run from small to large. Without a live kernel or
ipywidgets only the sliders are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minitrain.errors import InputError
from minitrain.lab.drawing.display import Rich, display, in_kernel
from minitrain.lab.drawing.figures import canvas, picture

Choice = tuple[float, float, float] | list[Any] | tuple[list[Any], Any]
Words = str | Callable[..., str]
LABEL_HANDLES = """
const label = () => {
    for (const row of document.querySelectorAll(".jupyter-widgets:has(> .widget-label)"))
        for (const handle of row.querySelectorAll(".noUi-handle"))
            handle.setAttribute("aria-label", row.querySelector(".widget-label").textContent);
};
const watch = new MutationObserver(label);
watch.observe(document.body, { childList: true, subtree: true });
setTimeout(() => watch.disconnect(), 10000);  // by then they are painted
label();
"""  # ipywidgets writes a slider's name beside it, and not where a screen reader looks for it


def explore(
    draw: Callable[..., None],
    *,
    alt: Words = "",
    caption: str = "",
    inches: tuple[float, float] | None = None,
    **choices: Choice,
) -> None:
    """Shows `draw(ax, **defaults)`, then, in a live kernel, sliders that redraw it.

    alt: alt text, or a function of the choice; "": derived from the picture. inches: width and
    height; None: 6.6 x 4.4.
    """

    def paint(values: dict[str, Any]) -> Rich:
        return painted(draw, alt, caption, inches, values)

    first = paint({name: default_of(name, choice) for name, choice in choices.items()})
    if choices and in_kernel():
        _show_with_handles(first, paint, choices)
    else:
        display(first)


def default_of(name: str, choice: Choice) -> Any:
    """The value that the static picture shows; InputError for an invalid choice."""
    if isinstance(choice, list) and choice:
        return choice[0]
    if isinstance(choice, tuple) and len(choice) == 3 and choice[0] <= choice[2] <= choice[1]:
        return choice[2]
    if isinstance(choice, tuple) and len(choice) == 2 and isinstance(choice[0], list):
        return choice[1]
    raise InputError(
        f"the choice {name}={choice!r} is neither (first, last, default) nor a list of values, "
        "alone or with its default"
    )


def painted(
    draw: Callable[..., None],
    alt: Words,
    caption: str,
    inches: tuple[float, float] | None,
    values: dict[str, Any],
) -> Rich:
    """The picture at these values, with its alt text."""
    width, height = inches or (None, None)
    with canvas(width=width, height=height) as (fig, ax):
        draw(ax, **values)
        return picture(fig, alt if isinstance(alt, str) else alt(**values), caption)


def _show_with_handles(
    first: Rich, paint: Callable[[dict[str, Any]], Rich], choices: dict[str, Choice]
) -> None:
    """The picture with sliders below; moving one replaces the picture in place."""
    import ipywidgets
    from IPython.display import display as show_in_notebook

    shown = show_in_notebook(first, display_id=True)
    handles = {name: _handle(name, choice) for name, choice in choices.items()}

    def redraw(_: Any) -> None:
        shown.update(paint({name: handle.value for name, handle in handles.items()}))

    for handle in handles.values():
        handle.observe(redraw, names="value")
    show_in_notebook(ipywidgets.VBox(list(handles.values())))
    script = {"application/javascript": LABEL_HANDLES, "text/plain": ""}
    show_in_notebook(script, raw=True)


def _handle(name: str, choice: Choice) -> Any:
    import ipywidgets

    label = {"description": name.replace("_", " "), "style": {"description_width": "initial"}}
    default = default_of(name, choice)
    if isinstance(choice, list) or len(choice) == 2:
        values = choice if isinstance(choice, list) else choice[0]
        return ipywidgets.SelectionSlider(options=values, value=default, **label)
    first, last, _ = choice
    if all(isinstance(value, int) for value in choice):
        return ipywidgets.IntSlider(value=default, min=first, max=last, **label)
    return ipywidgets.FloatSlider(
        value=default, min=first, max=last, step=(last - first) / 100, **label
    )
