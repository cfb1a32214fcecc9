"""Inference with a trained model, from a naive generator to an engine that serves many requests.

    from minitrain.inference import Engine, SamplingParameters
    engine = Engine(model, num_blocks=256)
    answers = engine.generate([tokens], SamplingParameters(max_new_tokens=50))

sampling      the naive generator, the cached one, and one token for each of many requests
parameters    a request's settings: how its tokens are drawn, and when it ends
forward       the pass over new tokens, for every cache
cache/        dense rows, pages that sequences share, quantized, a ring
engine/       continuous batching: request, scheduler, runner, answers
speculation/  drafts of any kind, verified exactly
streaming     incremental detokenization and stop strings;  vocabulary: tokens one by one
load          traffic for an engine or a server, and the latency its users see
disaggregated/  prefill on other ranks than decode
plain/        cache, engine and sampler as lab e09 writes them, each idea in a few lines
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "Engine": "engine.engine",
        "SamplingParameters": "parameters",
        "generate": "sampling",
        "speculate": "speculation.serving",
    },
)
