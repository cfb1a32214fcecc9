# exercise: flops_per_token
# says: the head multiplies, tied or not
# Subtracts the embedding from the parameter count also where the head is tied to it, so a tied
# head costs nothing; "2 FLOPs for each matmul parameter (the head yes, ...)".

def parameter_count(config) -> int:
    D, L, F = config.hidden_size, config.layers, config.ffn_size
    H, K, C = config.heads, config.kv_heads, config.head_size
    layer = 2 * D * H * C + 2 * D * K * C + 3 * D * F + 2 * D
    tables = 1 if config.tied else 2
    return tables * config.vocab_size * D + L * layer + D


def flops_per_token(config, length: int) -> int:
    D, L = config.hidden_size, config.layers
    norms = (2 * L + 1) * D
    weights = parameter_count(config) - config.vocab_size * D - norms
    attention = 4 * L * config.heads * config.head_size * length
    return 3 * (2 * weights + attention)
