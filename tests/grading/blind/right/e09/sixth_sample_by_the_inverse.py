# right: float64 and the inverse of the distribution function with one torch.rand, in place of
# multinomial; so other draws from the same distribution
import torch


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    def one(row, request):
        if request.temperature == 0:
            return row.argmax().item()
        row = row.double() / request.temperature
        most = row.numel() if request.top_k is None else min(request.top_k, row.numel())
        best, order = torch.topk(row, most)
        reached = best.softmax(0).cumsum(0)
        if request.top_p is not None:
            kept = int((reached < request.top_p).sum()) + 1
            reached = reached[:kept]
        u = torch.rand(1, generator=request.generator, dtype=torch.float64)
        place = torch.searchsorted(reached, u * reached[-1], right=True)
        return order[place.clamp(max=len(reached) - 1)].item()

    return [one(row, request) for row, request in zip(logits, requests)]
