"""Fault tolerance: checkpoints, fault detection, and recovery.

    from minitrain.reliability import load_checkpoint, save_checkpoint
    save_checkpoint("runs/a", TrainState(model, optimizer, loader, step))

checkpoint/   written whole or not at all: on disk, in memory, in an object store
events        one log of what happened, when, on which rank; ranks that ended without a log entry
spikes        an outlying loss or gradient: skip the step, roll back; which rank's gradient it was
stragglers    ranks that compute slowly       hangs     ranks that stop responding
corruption    ranks that compute wrongly      notice    signals and cloud notices: save, then end
restart       the same ranks again            elastic   fewer ranks, the same batches
disk          a folder, and an emulated one whose power can be cut
plain         each of these in a few lines, as lab e12 writes them
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "save_checkpoint": "checkpoint.save",
        "load_checkpoint": "checkpoint.load",
        "BackgroundSaver": "checkpoint.background",
        "SpikeGuard": "spikes",
    },
)
