"""Fine-tuning a pretrained model: adapters with few parameters, or all of its weights.

    from minitrain.finetuning import adapt, save_adapter
    model = adapt(model, "lora", rank=8)

    model -> methods -> adapters/{lora, dora, pissa, features, bottleneck, norm}, prompts
    layer          the one wrapper that holds any of them
    merging        merging an adapter into the weights, unmerging, unloading
    peft_files     saved and loaded as PEFT does
    many           one adapter per row of the batch, paged in and out of a byte budget
    tensor         an adapter sharded over ranks as its layer is

Shapes, beside the course's legend: `R rank of an adapter  I, O features in and out of a layer`.
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "adapt": "model",
        "merge_and_unload": "merging",
        "save_adapter": "peft_files",
        "load_adapter": "peft_files",
    },
)
