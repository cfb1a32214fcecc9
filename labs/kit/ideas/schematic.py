"""A schematic of an idea: drawn, described in alt text, and adjustable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minitrain.lab import widgets
from minitrain.lab.drawing.display import Rich

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Schematic:
    """`draw(ax, **values)` draws it; `alt(**values)` is its alt text, whose first sentence is the
    title.

    choices: as `widgets.explore` takes them, from small to large; size: in inches, (width, height).
    """

    draw: Callable[..., None]
    alt: Callable[..., str]
    size: tuple[float, float]
    choices: Mapping[str, widgets.Choice] = field(default_factory=dict)

    def __call__(self) -> None:
        """Shows it."""
        widgets.explore(self.titled, alt=self.alt, inches=self.size, **self.choices)

    def picture(self, **values: Any) -> Rich:
        """The picture at these values, with defaults for the rest."""
        return widgets.painted(self.titled, self.alt, "", self.size, self._all(values))

    def words(self, **values: Any) -> str:
        """The alt text at these values, with defaults for the rest."""
        return self.alt(**self._all(values))

    def _all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {name: widgets.default_of(name, choice) for name, choice in self.choices.items()}
        return {**chosen, **values}

    def titled(self, ax: Axes, **values: Any) -> None:
        """Draws on given axes, titled with the first sentence of the alt text."""
        self.draw(ax, **values)
        ax.set_title(self.alt(**values).partition(". ")[0])


def schematic(
    alt: Callable[..., str], width: float, height: float, **choices: widgets.Choice
) -> Callable[[Callable[..., None]], Schematic]:
    """Decorator that makes a drawing function a `Schematic`; line breaks in alt text become
    spaces."""

    def one_line(**values: Any) -> str:
        return " ".join(alt(**values).split())

    return lambda draw: Schematic(draw, one_line, (width, height), choices)
