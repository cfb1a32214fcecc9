"""One model, one loop: its configuration, steps, loss, state and reports.

from minitrain.training import TrainConfig, train
train(model, loader, TrainConfig(steps=1000))
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "train": "loop",
        "evaluate": "loop",
        "TrainConfig": "loop",
        "TrainState": "state",
    },
)
