# right: masks in place of slices, and the draw by the inverse of the cumulated probabilities
import torch


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    def one(z, request):
        if not request.temperature:
            return z.argmax().item()
        z = z.double() / request.temperature
        if request.top_k is not None:
            keep = z.topk(min(request.top_k, len(z))).indices
            z = torch.full_like(z, -torch.inf).index_copy(0, keep, z[keep])
        p = torch.softmax(z, 0)
        if request.top_p is not None:
            order = p.argsort(descending=True, stable=True)
            before = p[order].cumsum(0).roll(1)
            before[0] = -1
            p[order[before >= request.top_p]] = 0
        edges = p.cumsum(0)
        u = torch.rand((), generator=request.generator, dtype=torch.float64) * edges[-1]
        return torch.searchsorted(edges, u, right=True).item()

    return [one(z, request) for z, request in zip(logits, requests)]
