"""Rich objects: one HTML for notebooks, one text for everywhere else, and the data that is graded.

In a kernel a `Rich` object is shown as HTML; in a terminal, a script or pytest its text is printed.
The style is inline and its colours read on white and on black, because untrusted notebooks lose
style sheets, and Colab has no `--jp-…` variables; where defined, these take precedence.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from typing import Any

from minitrain.lab.drawing.colors import BLUE
from minitrain.lab.grading.submission import RECORDED

TONES = {"good": "#1b7f4b", "bad": "#b3401e", "wait": "#6b7280", "info": BLUE}

FONT = (
    "font-family:var(--jp-ui-font-family,system-ui,-apple-system,'Segoe UI',sans-serif);"
    "font-size:14px;line-height:1.5;color:var(--jp-content-font-color1,inherit);"
)
RULE = "border-bottom:1px solid #88888855;"
MUTED = "opacity:0.75;"


@dataclass(frozen=True)
class Rich:
    """Output as `html` in a notebook, `text` elsewhere; `data` travels with the output.

    `value` replaces the text in a notebook's text/plain: nbgrader reads partial credit from there.
    """

    html: str
    text: str
    data: dict[str, Any] | None = None
    value: str | None = None

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {"text/html": self.html, "text/plain": self.value or self.text}
        return {**bundle, RECORDED: self.data} if self.data is not None else bundle


def in_kernel() -> bool:
    """True in a notebook (JupyterLab, Colab, nbclient), which renders HTML."""
    return _kernel_shell() is not None


def _kernel_shell() -> Any:
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return shell if hasattr(shell, "kernel") else None


def display(rich: Rich) -> None:
    """Shows a rich object now, in the middle of a cell or of a script."""
    if not in_kernel():
        print(rich.text)
        return
    from IPython.display import display as show_in_notebook

    show_in_notebook(rich)


def publish(rich: Rich) -> None:
    """Shows it as the *result* of the cell, which is where nbgrader looks for points."""
    shell = _kernel_shell()
    if shell is None:
        print(rich.text)
    else:
        shell.displayhook(rich)


def words(text: str) -> str:
    """Text for HTML: escaped, `code` between backticks, line breaks kept."""
    parts = escape(str(text)).split("`")
    for i in range(1, len(parts) - (len(parts) % 2 == 0), 2):
        parts[i] = f"<code>{parts[i]}</code>"
    return "".join(parts) if len(parts) % 2 else escape(str(text))
