"""Layers that change the cost of a token, and hybrid models of them.

from minitrain.model.architectures import build_hybrid, hybrid_config, state_bytes
model = build_hybrid(hybrid_config(preset("1M"), "DDDA"))

mixer             a layer with a state       linear_attention   sums, kernels, random features
ssd, delta        Mamba-2, gated DeltaNet    latent             MLA: a latent cache
sparse            blocks of keys, not all    multi_token        more than the next token
hybrid            layers by a pattern        cost               weights, state, FLOPs
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "build_hybrid": "hybrid",
        "hybrid_config": "hybrid",
        "state_bytes": "cost",
        "MultiToken": "multi_token",
    },
)
