"""A picture of an idea that explains itself: painted, said in words, tried at other values."""

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
    """`draw(ax, **values)` paints it; `say(**values)` is what is seen, for who cannot see it.

    The first sentence is the title. choices: as `widgets.explore` takes them, from small to large;
    size: in inches, (width, height).
    """

    draw: Callable[..., None]
    say: Callable[..., str]
    size: tuple[float, float] = (9.0, 4.5)
    choices: Mapping[str, widgets.Choice] = field(default_factory=dict)

    def __call__(self) -> None:
        """Shows it."""
        widgets.explore(self.titled, alt=self.say, inches=self.size, **self.choices)

    def picture(self, **values: Any) -> Rich:
        """It at these values, and at the defaults of those that are not named."""
        return widgets.painted(self.titled, self.say, "", self.size, self._all(values))

    def words(self, **values: Any) -> str:
        """What is seen then."""
        return self.say(**self._all(values))

    def _all(self, values: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {name: widgets.default_of(name, choice) for name, choice in self.choices.items()}
        return {**chosen, **values}

    def titled(self, ax: Axes, **values: Any) -> None:
        """Painted on axes that are there, with its first sentence above."""
        self.draw(ax, **values)
        ax.set_title(self.say(**values).partition(". ")[0])


def schematic(say: Callable[..., str], width: float, height: float, **choices: widgets.Choice):
    """Makes a `Schematic` of the function below it, which paints."""
    return lambda draw: Schematic(draw, say, (width, height), choices)
