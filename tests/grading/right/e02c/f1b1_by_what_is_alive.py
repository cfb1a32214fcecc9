from minitrain.parallel.pipeline.operations import Operation, Schedule


def one_forward_one_backward(p, m):
    """A forward wherever fewer than p - r microbatches are alive, else a backward."""
    orders = []
    for r in range(p):
        order, done, back = [], 0, 0
        while back < m:
            if done < m and done - back < p - r:
                order.append(Operation("F", done))
                done += 1
            else:
                order.append(Operation("B", back))
                back += 1
        orders.append(tuple(order))
    return Schedule("1f1b", m, 1, tuple(orders))
