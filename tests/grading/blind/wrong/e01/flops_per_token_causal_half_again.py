# exercise: flops_per_token
# says: though half of it is masked
# Counts only the half of the attention that a causal mask leaves; the docstring says "with
# attention over `length` tokens counted in full".

def flops_per_token(config, length: int) -> int:
    D, L, F = config.hidden_size, config.layers, config.ffn_size
    H, K, C = config.heads, config.kv_heads, config.head_size
    weights = L * (2 * D * H * C + 2 * D * K * C + 3 * D * F) + config.vocab_size * D
    attention = 4 * L * H * C * length // 2
    return 3 * (2 * weights + attention)
