# exercise: Zero3
# differs: the neighbours are looked up in two dicts made once (keyed by identity), None at the
# ends; after backward it frees before it reduces, which is as right: the gradients have memory of
# their own


class Zero3:
    """Gathers, prefetches, frees and reduces the units of a model."""

    def __init__(self, units: list):
        self.units = units
        self.after = {id(a): b for a, b in zip(units, [*units[1:], None])}
        self.before = {id(b): a for a, b in zip([None, *units[:-1]], units)}
        for unit in units:
            unit.watch(
                self.before_forward,
                self.after_forward,
                self.before_backward,
            )
            unit.when_complete(self.after_backward)

    def _come(self, unit, neighbour) -> None:
        unit.start_gather()  # the needed one goes first
        unit.gather()
        if neighbour is not None:
            neighbour.start_gather()

    def before_forward(self, unit) -> None:
        self._come(unit, self.after[id(unit)])

    def after_forward(self, unit) -> None:
        unit.free()

    def before_backward(self, unit) -> None:
        self._come(unit, self.before[id(unit)])

    def after_backward(self, unit) -> None:
        unit.free()
        reduce_unit(unit)
