# exercise: mfu
# says: that is 6P
# Uses the rule of thumb 6·P (with embedding and norms, without attention) instead of the
# model's FLOPs; the text builds on `flops_per_token`, which depends on `length`.

def parameter_count(config) -> int:
    D, L, F = config.hidden_size, config.layers, config.ffn_size
    H, K, C = config.heads, config.kv_heads, config.head_size
    layer = 2 * D * H * C + 2 * D * K * C + 3 * D * F + 2 * D
    tables = 1 if config.tied else 2
    return tables * config.vocab_size * D + L * layer + D


def mfu(tokens_per_second: float, config, length: int, peak: float) -> float:
    return tokens_per_second * 6 * parameter_count(config) / peak
