# right: stages split by peeling off both ends; 1F1B as p-r forwards and then a backward and a forward in turn; the executor with closures and plain torch's summed cross-entropy
import torch
from minitrain.parallel.pipeline.operations import Operation, Schedule
from torch.nn.functional import cross_entropy


def split_layers(layers: int, stages: int) -> list[int]:
    if stages < 2:
        return [layers] * stages
    base, more = divmod(layers, stages)
    last = base + (more == stages - 1)  # then one of the ends has to be longer
    return [base, *split_layers(layers - base - last, stages - 2), last]


def one_forward_one_backward(p: int, m: int) -> Schedule:
    def order(r):
        start = min(p - r, m)
        yield from (Operation("F", i) for i in range(start))
        for i in range(m):
            yield Operation("B", i)
            if start + i < m:
                yield Operation("F", start + i)

    return Schedule("1f1b", m, 1, [list(order(r)) for r in range(p)])


def run_operations(group, order, stage, batches) -> torch.Tensor:
    me, end = group.rank, group.size - 1
    count = sum(batch.tokens_counted for batch in batches)
    inputs, outputs, pending = {}, {}, []
    summed = torch.zeros(())

    def forward(i):
        nonlocal summed
        x = None
        if me != 0:
            x = group.recv(stage.message(batches[i]), me - 1)
            x.requires_grad_()
            inputs[i] = x
        outputs[i] = y = stage(x, batches[i])
        if me == end:
            loss = cross_entropy(
                y.flatten(0, -2),
                batches[i].targets.flatten(),
                ignore_index=-100,
                reduction="sum",
            )
            outputs[i] = loss / count
            summed = summed + outputs[i].detach()
        else:
            pending.append(group.isend(y.detach(), me + 1))

    def backward(i):
        y = outputs.pop(i)
        if me == end:
            y.backward()
        else:
            y.backward(group.recv(torch.empty_like(y), me + 1))
        if me != 0:
            pending.append(group.isend(inputs.pop(i).grad, me - 1))

    for kind, i, _ in order:
        forward(i) if kind == "F" else backward(i)
    while pending:
        pending.pop(0).wait()
    return summed
