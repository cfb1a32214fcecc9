# right: all heads in one einsum, targets padded and masked, means by counts
import torch


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    K, (B, T) = inner.shape[0], tokens.shape
    h = hidden.detach()
    x = h[None] + torch.nn.functional.silu(torch.einsum("btd,ked->kbte", h, inner))
    logs = torch.einsum("kbtd,kvd->kbtv", x, outer).log_softmax(-1)
    ahead = torch.arange(T)[None] + torch.arange(2, K + 2)[:, None]  # (K, T)
    valid = (ahead < T).to(logs.dtype)
    targets = tokens[:, ahead.clamp(max=T - 1)].transpose(0, 1)  # (K, B, T)
    nll = -logs.gather(-1, targets[..., None])[..., 0]
    mean = (nll * valid[:, None]).sum((1, 2)) / (B * valid.sum(1))
    weight = decay ** torch.arange(1, K + 1, dtype=logs.dtype)
    return (weight * mean).sum()
