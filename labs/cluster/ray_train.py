"""The same command on a Ray cluster: Ray places the ranks, and starts all again when one dies.

    pip install 'minitrain[ray]'                # 567 MB
    python ray_train.py --workers 16 --gpu -- --preset 100M --data tinystories … --out /runs/100M

What follows `--` is `minitrain train`'s. A rank is a worker of Ray's; the command's own checkpoints
are what it goes on from, so --out is an absolute path that all nodes see. Ray has set up torch's
process group by then, which `launch` takes as it is. Signals do not reach a worker's thread: nobody
saves on SIGTERM here, and a worker that goes costs the steps since the last checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ray.train import FailureConfig, Result, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def rank(arguments: list[str]) -> None:
    """On each worker: RANK and WORLD_SIZE are set, as by torchrun."""
    from minitrain.__main__ import app

    code = app(["train", *arguments], standalone_mode=False)
    if code:
        raise SystemExit(f"minitrain train ended with {code}")


def out_of(arguments: list[str]) -> Path:
    """What --out says; else a path that is not absolute."""
    after = [*arguments, "--out", ""]
    return Path(after[after.index("--out") + 1])


def fit(
    arguments: list[str], workers: int, gpu: bool, rank: Callable = rank, failures: int = 3
) -> Result:
    """Until the command is done, or has failed more often than `failures` times."""
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    out = out_of(arguments)
    trainer = TorchTrainer(
        rank,
        train_loop_config=arguments,
        torch_config=TorchConfig(backend=backend),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu),
        run_config=RunConfig(
            name="ray",  # what Ray itself writes down lies beside the run
            storage_path=str(out.parent / f"{out.name}-ray"),
            failure_config=FailureConfig(max_failures=failures),
        ),
    )
    return trainer.fit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="ray_train.py --workers N [--gpu] -- TRAIN'S OPTIONS")
    parser.add_argument("--workers", type=int, required=True, help="ranks")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each")
    parser.add_argument("train", nargs="+", help="with --out, an absolute path")
    given = parser.parse_args()
    if not out_of(given.train).is_absolute():
        parser.error("give --out an absolute path that all nodes see, after --")
    fit(given.train, given.workers, given.gpu)
