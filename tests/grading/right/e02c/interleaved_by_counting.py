from minitrain.parallel.pipeline.operations import Operation, Schedule


def interleaved(p, m, v):
    """As Megatron does: the k-th forward's chunk and microbatch from k alone."""

    def forward(k):
        turn, within = divmod(k, p * v)
        return Operation("F", turn * p + within % p, within // p)

    def backward(k):
        _, i, c = forward(k)
        return Operation("B", i, v - 1 - c)

    total, orders = m * v, []
    for r in range(p):
        warm = p - 1 - r if v == 1 else min(total, 2 * (p - 1 - r) + (v - 1) * p)
        order = [forward(k) for k in range(warm)]
        for k in range(warm, total):
            order.append(forward(k))
            order.append(backward(k - warm))
        order.extend(backward(k) for k in range(total - warm, total))
        orders.append(order)
    return Schedule("interleaved", m, v, orders)
