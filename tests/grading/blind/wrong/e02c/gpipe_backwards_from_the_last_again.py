# exercise: gpipe
# says: the same list on every rank
# the backwards run from the last microbatch to the first (as autograd unwinds), the text says
# each from microbatch 0 on

from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p: int, m: int) -> Schedule:
    forwards = [Operation("F", i) for i in range(m)]
    backwards = [Operation("B", i) for i in reversed(range(m))]
    return Schedule("gpipe", m, 1, [forwards + backwards for _ in range(p)])
