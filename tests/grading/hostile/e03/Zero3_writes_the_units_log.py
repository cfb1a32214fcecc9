# exercise: Zero3
# says: was not under way


class Zero3:
    """Nothing is prefetched; the log says that it was."""

    def __init__(self, units):
        self.units = list(units)
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def begins(self, unit, following):
        unit.gather()
        log = getattr(unit, "log", [])
        if 0 <= following < len(self.units):
            log.append(("start", following))

    def before_forward(self, unit):
        self.begins(unit, self.units.index(unit) + 1)

    def before_backward(self, unit):
        self.begins(unit, self.units.index(unit) - 1)

    def after_forward(self, unit):
        unit.free()

    def after_backward(self, unit):
        reduce_unit(unit)  # noqa: F821 the learner's own of before
        unit.free()
