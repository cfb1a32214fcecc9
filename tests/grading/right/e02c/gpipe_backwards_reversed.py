from minitrain.parallel.pipeline.operations import Operation, Schedule


def gpipe(p, m):
    """As in the paper: the last microbatch's backward first."""
    order = [Operation("F", i) for i in range(m)]
    order += [Operation("B", i) for i in reversed(range(m))]
    return Schedule("gpipe", m, 1, [list(order) for _ in range(p)])
