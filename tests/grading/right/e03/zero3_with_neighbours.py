class Zero3:
    """Each unit's neighbours in a table; the next one leaves before this one is waited for."""

    def __init__(self, units):
        self.after = dict(zip(map(id, units), [*units[1:], None]))
        self.before = dict(zip(map(id, units), [None, *units[:-1]]))
        for unit in units:
            unit.watch(self.enter, self.leave, self.enter_backward)
            unit.when_complete(self.done)

    def enter(self, unit):
        self.turn(unit, self.after[id(unit)])

    def enter_backward(self, unit):
        self.turn(unit, self.before[id(unit)])

    def turn(self, unit, neighbour):
        unit.start_gather()
        if neighbour is not None:
            neighbour.start_gather()
        unit.gather()

    def leave(self, unit):
        unit.free()

    def done(self, unit):
        unit.free()
        reduce_unit(unit)  # noqa: F821 the learner's own of before
