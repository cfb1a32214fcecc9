# exercise: place
# says: the chattiest axis last, also where
# sorts the axes by what they send and counts nothing ("a good rule of thumb, and wrong, for
# one, where that axis is longer than a node ... So count")

import torch

if "Mesh" not in globals():  # an earlier exercise, right

    class Mesh:
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
            free = [axes] if isinstance(axes, str) else axes
            here = self.coordinates(rank)
            found = []
            for other in range(torch.Size(self.shape).numel()):
                there = self.coordinates(other)
                if all(here[a] == there[a] for a in self.axes if a not in free):
                    found.append(other)
            return found

        def group(self, group, axes):
            return group.split(self.ranks(axes, group.rank)[0])

        def check(self, ranks: int):
            assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

        def __repr__(self):
            return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def place(sizes: dict, sent: dict, ranks_per_node: int) -> Mesh:
    order = sorted(sizes, key=lambda axis: sent.get(axis, 0))
    return Mesh(**{axis: sizes[axis] for axis in order})
