"""Fine-tuning: a trained model learns something new, and little of it, or all of it, moves.

    adapt ▸ methods ▸ adapters/{lora, dora, pissa, embedding, ia3, bottleneck, bias, norm}
                    ▸ prompts/{prefix, prompt}        layer: the one wrapper that carries them all
    merging      an adapter into the weights and out of them; the model without it
    lora_plus    parameter groups for the optimizer
    peft_files   saved and loaded as PEFT does
    many/        one adapter a row of the batch, paged in and out of a budget of bytes
    tensor       an adapter cut over ranks as its layer is

Shapes, beside the course's legend: `R rank of an adapter  I, O features in and out of a layer`.
"""
