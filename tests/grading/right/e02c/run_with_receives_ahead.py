import torch
import torch.nn.functional as F


def run_operations(group, order, stage, batches):
    """Posts the next receive while it computes; waits for a send when the next one leaves."""
    up, down = group.rank - 1, group.rank + 1
    tokens = sum(int((batch.targets != -100).sum()) for batch in batches)
    kept, leaving, answer = {}, {}, 0.0

    def expected(operation):
        source = up if operation.kind == "F" else down
        if not 0 <= source < group.size:
            return None
        return group.irecv(stage.message(batches[operation.microbatch]), source)

    def leave(tensor, to):
        if to in leaving:
            leaving[to].wait()
        leaving[to] = group.isend(tensor, to)

    arriving = expected(order[0])
    for operation, following in zip(order, [*order[1:], None]):
        came = None if arriving is None else arriving.wait()
        arriving = None if following is None else expected(following)
        i = operation.microbatch
        if operation.kind == "F":
            if came is not None:
                came.requires_grad_(True)
            result = stage(came, batches[i])
            if down < group.size:
                leave(result.detach(), down)
            else:
                result = F.cross_entropy(
                    result.flatten(0, 1), batches[i].targets.flatten(), reduction="sum"
                )
                result = result / tokens
                answer += result.item()
            kept[i] = came, result
            result = came = None
        else:
            given, result = kept.pop(i)
            result.backward(came)
            if given is not None:
                leave(given.grad, up)
    for work in leaving.values():
        work.wait()
    return answer
