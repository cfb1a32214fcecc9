# exercise: Zero1
# says: it is not sharded. Give `make` the shards


class Zero1:
    """DDP by another name: every rank has all of the state."""

    def __init__(self, units, make):
        self.units = units
        self.parameters = [p for unit in units for p in unit.parameters]
        self.optimizer = make(self.parameters)

    def step(self):
        for unit in self.units:
            for parameter in unit.parameters:
                unit.group.all_reduce(parameter.grad, op="avg")
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
