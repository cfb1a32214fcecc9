def weights(model):
    """A list of matrices, each with how often it is held and how often a token meets it."""
    h, kv = model.hidden, model.kv_heads * model.head_size
    plain = model.layers - model.moe_layers
    gate = [(h, model.ffn)] if model.gated else []
    small = [(h, model.moe_ffn)] * (3 if model.gated else 2)
    table = [
        ((h, h), 2 * model.layers, 2 * model.layers),
        ((h, kv), 2 * model.layers, 2 * model.layers),
    ]
    table += [(m, plain, plain) for m in [*gate, (h, model.ffn), (model.ffn, h)]]
    held, met = model.experts + model.shared_experts, model.experts_per_token + model.shared_experts
    table += [(m, model.moe_layers * held, model.moe_layers * met) for m in small]
    table += [((h, model.experts), model.moe_layers, model.moe_layers), ((h, model.vocab), 1, 1)]
    everything = sum(a * b * held for (a, b), held, _ in table)
    active = sum(a * b * met for (a, b), _, met in table)
    return everything + h * model.vocab + h + 2 * h * model.layers, active
