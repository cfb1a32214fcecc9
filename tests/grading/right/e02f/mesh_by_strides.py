class Mesh:
    """Ranks are sums of steps: how far a rank goes along each axis."""

    def __init__(self, **sizes):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())
        self.steps, step = {}, 1
        for axis, size in reversed(sizes.items()):
            self.steps[axis], step = step, step * size

    def __getitem__(self, axis):
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank):
        return {axis: rank // self.steps[axis] % self[axis] for axis in self.axes}

    def ranks(self, axes, rank):
        found = [rank]
        for axis in (axes,) if isinstance(axes, str) else axes:
            step = self.steps[axis]
            first = [r - r // step % self[axis] * step for r in found]
            found = [r + step * place for r in first for place in range(self[axis])]
        return sorted(found)
