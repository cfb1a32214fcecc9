"""Shows a training run live in a notebook: the page of `minitrain watch`, once a second.

    with live.watching(folder):
        launch(train_on_ranks, folder, ranks=4)     # each rank writes folder/metrics….jsonl

The ranks run in their own processes; a thread of the kernel reads their files, and draws. After the
block the last state stays visible, even without a live kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minitrain.apps.watch.history import History
from minitrain.apps.watch.page import body, state_of, theme
from minitrain.errors import InputError
from minitrain.lab.drawing.display import Rich, display, in_kernel, words

AROUND = (
    "background:var(--panel);padding:10px 12px;border-radius:6px;font-family:system-ui,sans-serif;"
)


@contextmanager
def watching(folder: str | Path, every: float = 1.0) -> Iterator[History]:
    """Shows the run in `folder` while the block runs; outside a notebook, its final state as text.

    The folder's files need not exist yet. Yields the `History`, whose alerts can be inspected.
    """
    if every <= 0:
        raise InputError(f"every={every}: give seconds between two looks, over 0")
    history, over = History(Path(folder)), threading.Event()
    shown = _first(history) if in_kernel() else None
    thread = threading.Thread(target=_keep_new, args=(history, shown, over, every), daemon=True)
    thread.start()
    try:
        yield history
    finally:
        over.set()
        thread.join()
        history.look()
        if shown is None:
            display(drawn(history))
        else:
            shown.update(drawn(history))


def _first(history: History) -> Any:
    from IPython.display import display as show_in_notebook

    return show_in_notebook(drawn(history), display_id=True)


def _keep_new(history: History, shown: Any, over: threading.Event, every: float) -> None:
    while not over.wait(every):
        if history.look() and shown is not None:
            shown.update(drawn(history))


def drawn(history: History) -> Rich:
    """The run's current state, as HTML and as text."""
    state = state_of(history)
    heading = f"<b>{words(state['run'])}</b> {state['state']}"
    html = (
        f"<style>{theme()}</style>"
        f'<div class="minitrain-run" style="{AROUND}">{heading}{body(state)}</div>'
    )
    lines = [f"{state['run']}: {state['state']}"]
    lines += [f"  {name}: {value}" for name, value in state["facts"]]
    for each in state["alerts"]:
        ends = "" if each["fires"] else ", over"
        lines.append(
            f"  {each['name']} on {each['on']} since {each['since']}{ends}: {each['says']}"
        )
    return Rich(html, "\n".join(lines))
