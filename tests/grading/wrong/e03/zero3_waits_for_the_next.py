# exercise: Zero3
# says: nothing is hidden


class Zero3:
    def __init__(self, units):
        self.units = units
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def before_forward(self, unit):
        unit.gather()
        for following in self.units[self.units.index(unit) + 1 :][:1]:
            following.gather()

    def after_forward(self, unit):
        unit.free()

    def before_backward(self, unit):
        unit.gather()
        for following in self.units[: self.units.index(unit)][-1:]:
            following.gather()

    def after_backward(self, unit):
        reduce_unit(unit)  # noqa: F821 the learner's own of before
        unit.free()
