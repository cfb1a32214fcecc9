"""A picture of an idea that explains itself: drawn, put in words, tried at other values."""

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
    """`draw(ax, **values)` draws it; `alt(**values)` is its alt text, whose start is the title.

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
        """It at these values, and at the defaults of those that are not named."""
        return widgets.painted(self.titled, self.alt, "", self.size, self._all(values))

    def words(self, **values: Any) -> str:
        """Its alt text at these values, and at the defaults of those that are not named."""
        return self.alt(**self._all(values))

    def _all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {name: widgets.default_of(name, choice) for name, choice in self.choices.items()}
        return {**chosen, **values}

    def titled(self, ax: Axes, **values: Any) -> None:
        """Drawn on given axes, under the first sentence of its alt text."""
        self.draw(ax, **values)
        ax.set_title(self.alt(**values).partition(". ")[0])


def schematic(
    alt: Callable[..., str], width: float, height: float, **choices: widgets.Choice
) -> Callable[[Callable[..., None]], Schematic]:
    """Makes a `Schematic` of a function that draws; a line break in the alt text is a space."""

    def one_line(**values: Any) -> str:
        return " ".join(alt(**values).split())

    return lambda draw: Schematic(draw, one_line, (width, height), choices)
