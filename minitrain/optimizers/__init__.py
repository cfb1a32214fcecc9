"""Optimizers, each in plain and in fast form: AdamW, SGD, Lion, Muon, Adafactor, 8-bit Adam;
parameter groups, clipping, learning rates.

    from minitrain.optimizers import Adam8bit, parameter_groups
    Adam8bit(parameter_groups(model, weight_decay=0.1), lr=1e-3)
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "AdamW": "adamw",
        "Adam8bit": "adam8bit",
        "Muon": "muon",
        "parameter_groups": "groups",
        "warmup_cosine": "learning_rate",
    },
)
