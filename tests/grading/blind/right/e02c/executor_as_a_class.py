# right: the executor is an object with a method for each kind of operation; torch.autograd.backward in the place of out.backward
import torch
from minitrain.training.loss import token_weighted_loss


class Executor:
    def __init__(self, group, stage, batches):
        self.group, self.stage, self.batches = group, stage, batches
        self.before = group.rank - 1 if group.rank > 0 else None
        self.behind = group.rank + 1 if group.rank + 1 < group.size else None
        self.tokens = sum(batch.tokens_counted for batch in batches)
        self.alive, self.sends, self.shares = {}, [], []

    def send(self, tensor, to):
        self.sends.append(self.group.isend(tensor, to))

    def F(self, number):
        batch, incoming = self.batches[number], None
        if self.before is not None:
            incoming = self.group.recv(self.stage.message(batch), self.before)
            incoming = incoming.detach().requires_grad_(True)
        result = self.stage(incoming, batch)
        if self.behind is None:
            result = token_weighted_loss(result, batch.targets, self.tokens)
            self.shares.append(result.detach())
        else:
            self.send(result.detach(), self.behind)
        self.alive[number] = incoming, result

    def B(self, number):
        incoming, result = self.alive[number]
        del self.alive[number]
        gradient = None
        if self.behind is not None:
            gradient = self.group.recv(torch.empty_like(result), self.behind)
        torch.autograd.backward(result, gradient)
        if self.before is not None:
            self.send(incoming.grad, self.before)

    def finish(self):
        for work in self.sends:
            work.wait()
        return torch.stack(self.shares).sum() if self.shares else torch.zeros(())


def run_operations(group, order, stage, batches) -> torch.Tensor:
    executor = Executor(group, stage, batches)
    for kind, microbatch, _ in order:
        getattr(executor, kind)(microbatch)
    return executor.finish()
