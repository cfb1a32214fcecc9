"""The same command on a Ray cluster: Ray places the ranks, and starts all again when one dies.

    pip install 'minitrain[ray]'                # 567 MB
    python ray_train.py --workers 16 --gpu -- --preset 100M --data tinystories … --out /runs/100M

What follows `--` is `minitrain train`'s. A rank is a worker of Ray's; the command's own checkpoints
are what it goes on from, so --out is an absolute path that all nodes see. Ray has set up torch's
process group by then, which `launch` takes as it is.

A signal does not reach a worker's thread. So SIGTERM goes to this process, which writes a file
beside the run; each rank looks for it every 5 s, by --notice: all save after the same step and end.
(`ray job stop` sends SIGTERM, and kills after 3 s: set RAY_JOB_STOP_WAIT_TIME_S=120.) With a
--notice of your own, such as aws, SIGTERM ends all at once.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

INTERRUPTED = 130  # what minitrain train ends with when it was asked to


def rank(arguments: list[str]) -> None:
    """On each worker: RANK and WORLD_SIZE are set, as by torchrun."""
    from minitrain.__main__ import app

    stop = stop_file(out_of(arguments))
    given = [] if "--notice" in arguments else ["--notice", stop.as_uri()]
    code = app(["train", *arguments, *given], standalone_mode=False)
    if code == INTERRUPTED and stop.exists():
        return  # asked by the driver: Ray is not to start it again
    if code:
        raise SystemExit(f"minitrain train ended with {code}")


def out_of(arguments: list[str]) -> Path:
    """What --out says; else a path that is not absolute."""
    after = [*arguments, "--out", ""]
    return Path(after[after.index("--out") + 1])


def beside(out: Path) -> Path:
    """What Ray itself writes down lies beside the run."""
    return out.parent / f"{out.name}-ray"


def stop_file(out: Path) -> Path:
    return beside(out) / "stop"


@contextmanager
def sigterm_makes(path: Path):
    """Within the block; afterwards the file is gone, so that the same command goes on."""

    def make(number: int, frame: object) -> None:
        path.write_text("SIGTERM")

    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    before = signal.signal(signal.SIGTERM, make)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        path.unlink(missing_ok=True)


def fit(
    arguments: list[str], workers: int, gpu: bool, rank: Callable = rank, failures: int = 3
) -> bool:
    """Until the command is done, or has failed more often than `failures` times. False where
    SIGTERM ended it before."""
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    out = out_of(arguments)
    trainer = TorchTrainer(
        rank,
        train_loop_config=arguments,
        torch_config=TorchConfig(backend=backend),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu),
        run_config=RunConfig(
            name="ray",
            storage_path=str(beside(out)),
            failure_config=FailureConfig(max_failures=failures),
        ),
    )
    ray.init()  # which takes SIGTERM for itself
    if "--notice" in arguments:
        trainer.fit()
        return True
    with sigterm_makes(stop_file(out)):
        trainer.fit()
        return not stop_file(out).exists()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="ray_train.py --workers N [--gpu] -- TRAIN'S OPTIONS")
    parser.add_argument("--workers", type=int, required=True, help="ranks")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each")
    parser.add_argument("train", nargs="+", help="with --out, an absolute path")
    given = parser.parse_args()
    if not out_of(given.train).is_absolute():
        parser.error("give --out an absolute path that all nodes see, after --")
    if not fit(given.train, given.workers, given.gpu):
        raise SystemExit(INTERRUPTED)
