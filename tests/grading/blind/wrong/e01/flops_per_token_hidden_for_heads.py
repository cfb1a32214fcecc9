# exercise: flops_per_token
# says: which need not be D
# Uses the well-known 12·L·D·T for the attention, which is right only where H·C = D; "QK^T and
# AV, 2·L·H·C·T each".

def flops_per_token(config, length: int) -> int:
    D, L, F = config.hidden_size, config.layers, config.ffn_size
    H, K, C = config.heads, config.kv_heads, config.head_size
    weights = L * (2 * D * C * (H + K) + 3 * D * F) + config.vocab_size * D
    return 6 * weights + 12 * L * D * length
