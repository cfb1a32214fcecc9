# right: all heads at once by einsum, log-softmax and gather; places without a token are masked by
# a weight of 0 in a weighted sum
import torch


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    h = hidden.detach()
    K, T = inner.shape[0], tokens.shape[1]
    heads = torch.arange(1, K + 1, device=h.device)
    aims = torch.arange(T, device=h.device)[None, :] + 1 + heads[:, None]  # (K, T)
    real = aims < T
    wanted = tokens[:, aims.clamp(max=T - 1)].transpose(0, 1)  # (K, B, T)
    z = torch.einsum("btd,ked->kbte", h, inner)
    x = h + z * z.sigmoid()
    scores = torch.einsum("kbtd,kvd->kbtv", x, outer)
    nats = scores.logsumexp(-1) - scores.gather(-1, wanted[..., None])[..., 0]
    per_head = (nats * real[:, None].to(nats.dtype)).sum((1, 2))
    means = per_head / (len(tokens) * real.sum(1))
    return (decay ** heads.to(nats.dtype) * means).sum()
