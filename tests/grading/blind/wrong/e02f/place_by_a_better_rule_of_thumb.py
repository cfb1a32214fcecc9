# exercise: place
# says: of the others the chattiest last
# a refined rule (chattiest axis last, those longer than a node first) instead of the count;
# pp=2, dp=4, tp=4 with 8.9, 9 and 10 bytes on nodes of 8: the rule's order sends 428.8 bytes,
# dp pp tp only 288; the text: "So count: of all orders, the one whose `bytes_between` is
# least".

import torch


class _Mesh:  # exercise 1, right
    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        places = {}
        for axis in reversed(self.axes):
            rank, places[axis] = divmod(rank, self[axis])
        return {axis: places[axis] for axis in self.axes}

    def ranks(self, axes, rank: int) -> list[int]:
        axes = [axes] if isinstance(axes, str) else list(axes)
        fixed = [axis for axis in self.axes if axis not in axes]
        here, found = self.coordinates(rank), []
        for other in range(torch.Size(self.shape).numel()):
            there = self.coordinates(other)
            if all(here[axis] == there[axis] for axis in fixed):
                found.append(other)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def place(sizes, sent, ranks_per_node):
    def quiet_first(axis):
        fits = sizes[axis] <= ranks_per_node
        return fits, sent.get(axis, 0)

    return _Mesh(**{axis: sizes[axis] for axis in sorted(sizes, key=quiet_first)})
