# exercise: run_operations
# a small class holds the state; own cross-entropy sum over the count of all;
# torch.autograd.backward; a detached leaf; returns a float-like sum at the end
import torch
import torch.nn.functional as F


class Runner:
    def __init__(self, group, stage, batches):
        self.group, self.stage, self.batches = group, stage, batches
        self.above = group.rank - 1 if group.rank > 0 else None
        self.below = group.rank + 1 if group.rank + 1 < group.size else None
        self.count = sum(b.tokens_counted for b in batches)
        self.alive, self.sends, self.shares = {}, [], []

    def forward(self, i):
        batch, x = self.batches[i], None
        if self.above is not None:
            received = self.group.recv(self.stage.message(batch), self.above)
            x = received.detach().requires_grad_(True)
        out = self.stage(x, batch)
        if self.below is None:
            summed = F.cross_entropy(
                out.flatten(0, -2), batch.targets.flatten(), ignore_index=-100, reduction="sum"
            )
            out = summed / self.count
            self.shares.append(out.detach())
        else:
            self.sends.append(self.group.isend(out.detach(), self.below))
        self.alive[i] = (x, out)

    def backward(self, i):
        x, out = self.alive[i]
        del self.alive[i]
        if self.below is None:
            torch.autograd.backward(out)
        else:
            gradient = self.group.recv(self.stage.message(self.batches[i]), self.below)
            torch.autograd.backward([out], [gradient])
        if self.above is not None:
            self.sends.append(self.group.isend(x.grad, self.above))


def run_operations(group, order, stage, batches) -> torch.Tensor:
    runner = Runner(group, stage, batches)
    act = {"F": runner.forward, "B": runner.backward}
    for operation in order:
        act[operation[0]](operation[1])
    for send in runner.sends:
        send.wait()
    return torch.stack(runner.shares).sum() if runner.shares else 0
