# exercise: sample
# differs: no multinomial; one uniform number of the request's own generator is looked up in the
# running sum, in float64
import torch


def sample(logits, requests):
    def one(row, request):
        if not request.temperature:
            return row.argmax().item()
        size = row.numel()
        k = size if request.top_k is None else min(request.top_k, size)
        best, ids = torch.topk(row.double() / request.temperature, k)
        p = torch.softmax(best, dim=0)
        if request.top_p is not None:
            before = torch.cat([p.new_zeros(1), p.cumsum(0)[:-1]])
            count = max(1, int((before < request.top_p).sum()))
            p = p[:count]
        total = p.cumsum(0)
        coin = torch.rand(1, generator=request.generator, dtype=torch.float64)
        place = int(torch.searchsorted(total, coin * total[-1], right=True))
        place = min(place, int((p > 0).sum()) - 1)
        return ids[place].item()

    return [one(row, request) for row, request in zip(logits, requests)]
