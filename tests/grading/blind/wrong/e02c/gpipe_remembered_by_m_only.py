# exercise: gpipe
# says: nothing may be kept from one call to the next
# schedules are remembered under m alone, so gpipe(2, 8) after gpipe(4, 8) has four lists: "with
# one list for each rank", p of them.

from minitrain.parallel.pipeline.operations import Operation, Schedule

made = {}


def gpipe(p: int, m: int) -> Schedule:
    if m not in made:
        forwards = [Operation("F", i) for i in range(m)]
        backwards = [Operation("B", i) for i in range(m)]
        made[m] = Schedule("gpipe", m, 1, [forwards + backwards] * p)
    return made[m]
