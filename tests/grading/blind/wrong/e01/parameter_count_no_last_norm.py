# exercise: parameter_count
# says: is missing
# Leaves out the last norm (D parameters, a tiny share of the total); "A last norm, and a head
# V·D unless it is `tied`".

def parameter_count(config) -> int:
    D, L, F = config.hidden_size, config.layers, config.ffn_size
    H, K, C = config.heads, config.kv_heads, config.head_size
    layer = 2 * D * H * C + 2 * D * K * C + 3 * D * F + 2 * D
    tables = 1 if config.tied else 2
    return tables * config.vocab_size * D + L * layer
