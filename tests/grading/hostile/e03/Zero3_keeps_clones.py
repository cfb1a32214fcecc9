# exercise: Zero3
# says: keep no copy of what gather() brought


class Zero3:
    """As asked, and every unit stays in memory as a clone."""

    def __init__(self, units):
        self.units, self.clones = list(units), {}
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def begins(self, unit, following):
        unit.gather()
        self.clones[id(unit)] = [p.detach().clone() for p in unit.parameters]
        if 0 <= following < len(self.units):
            self.units[following].start_gather()

    def before_forward(self, unit):
        self.begins(unit, self.units.index(unit) + 1)

    def before_backward(self, unit):
        self.begins(unit, self.units.index(unit) - 1)

    def after_forward(self, unit):
        unit.free()

    def after_backward(self, unit):
        reduce_unit(unit)  # noqa: F821 the learner's own of before
        unit.free()
