# exercise: medusa_loss
# differs: all heads at once by einsum; places without a token have the target -100, which
# cross_entropy ignores, and each head's mean is over its own places
import torch
import torch.nn.functional as F


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    K, T = inner.shape[0], tokens.shape[1]
    with torch.no_grad():
        h = hidden.clone()
        targets = torch.full((K, *tokens.shape), -100)
        for k in range(K):
            targets[k, :, : T - k - 2] = tokens[:, k + 2 :]
    x = h + F.silu(torch.einsum("ked,btd->kbte", inner, h))
    logits = torch.einsum("kve,kbte->kbtv", outer, x)
    lost = F.cross_entropy(
        logits.flatten(0, 2), targets.flatten(), ignore_index=-100, reduction="none"
    )
    counted = (targets != -100).flatten(1).sum(1)
    each = lost.view(K, -1).sum(1) / counted
    weights = torch.tensor([decay ** (k + 1) for k in range(K)], dtype=each.dtype)
    return weights @ each
