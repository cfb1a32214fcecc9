# right: sorts once, cuts by slices, and draws with one uniform number and the running sum in place of torch.multinomial
import torch


def _one(z: torch.Tensor, request) -> int:
    if request.temperature == 0:
        return z.argmax().item()
    z, ids = torch.sort(z.double() / request.temperature, descending=True, stable=True)
    z = z[: request.top_k]  # None: all
    p = z.softmax(0)
    if request.top_p is not None:
        # tokens whose sum does not yet reach p, and the one with which it does
        below = int((p.cumsum(0) < request.top_p).sum())
        p = p[: below + 1]
    total = p.cumsum(0)
    u = torch.rand((), generator=request.generator, dtype=torch.float64) * total[-1]
    at = min(int(torch.searchsorted(total, u, right=True)), len(p) - 1)
    return ids[at].item()


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    return [_one(logits[b], request) for b, request in enumerate(requests)]
