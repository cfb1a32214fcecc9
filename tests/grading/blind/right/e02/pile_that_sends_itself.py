# right: buckets are a small class that is sent as soon as the next parameter does not fit, in one walk; the naive version goes by names and remembers what it has seen
import torch


class Pile:
    def __init__(self, group, limit):
        self.group, self.limit = group, limit
        self.members, self.room = [], limit

    def put(self, p):
        if self.members and p.nbytes > self.room:
            self.send()
        self.members.append(p)
        self.room -= p.nbytes

    def send(self):
        if not self.members:
            return
        for p in self.members:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        joined = torch.cat([p.grad.reshape(-1) for p in self.members])
        self.group.all_reduce(joined, op="avg")
        begin = 0
        for p in self.members:
            piece = joined[begin : begin + p.numel()]
            p.grad.copy_(piece.reshape(p.shape))
            begin += p.numel()
        self.members, self.room = [], self.limit


def all_reduce_gradients_bucketed(group, model, bucket_bytes: int) -> None:
    pile = Pile(group, bucket_bytes)
    for p in list(model.parameters())[::-1]:
        if p.requires_grad:
            pile.put(p)
    pile.send()


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    seen = set()
    for _, p in model.named_parameters(remove_duplicate=False):
        if id(p) in seen or not p.requires_grad:
            continue
        seen.add(id(p))
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        group.all_reduce(p.grad, op="avg")
