"""Builds the parts of a training run, and checks them before anything is written.

text -> tokenizer -> rows;  model, optimizer, the checkpoint if a run is resumed -> DDP or a mesh
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch
from torch import nn

from minitrain.apps.train.options import EVENTS_FILE, OPTIMIZERS, RUN_FILE, Job, TrainOptions
from minitrain.apps.train.text import TOKENIZER_FILE, Rows, read_rows
from minitrain.apps.train.watches import check_replicas
from minitrain.apps.train.wiring import Seat, Wiring, find_seat, wire
from minitrain.data.loader import Loader
from minitrain.data.tokenizer import END, Tokenizer
from minitrain.errors import InputError
from minitrain.generators import seed_generators
from minitrain.measure.clock import compare, matmul_peak
from minitrain.measure.flops import mfu
from minitrain.measure.parameters import parameter_count
from minitrain.memory.segments import recompute
from minitrain.model.config import ModelConfig, preset
from minitrain.model.hub.load import describe, hub_tensors
from minitrain.model.hub.text import TextFiles, fast_tokenizer
from minitrain.model.transformer import build
from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.adamw import adamw
from minitrain.optimizers.groups import parameter_groups
from minitrain.optimizers.lion import Lion
from minitrain.optimizers.sgd import SGD
from minitrain.precision.low_bit_linear import CURRENT, convert, follow
from minitrain.ranks.group import Group
from minitrain.reliability.checkpoint.background import BackgroundSaver
from minitrain.reliability.checkpoint.contents import CheckpointRanks, whole_layout
from minitrain.reliability.checkpoint.folder import checkpoints, newest_checkpoint, verify
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.events import EventLog
from minitrain.training.loop import TrainConfig
from minitrain.training.state import TrainState

CLOSING_SECONDS = 3.0  # of the requested minutes, for the last evaluation, sample and save
EVALUATION_ROWS = 32
DATA_FILE = "data.sha256"
WEIGHT_DECAY = {"lion": 0.2, "sgd": 1e-4}  # 0.1 for the others


@dataclass
class Run:
    """The parts of a run on one rank."""

    job: Job
    options: TrainOptions
    rows: Rows
    tokenizer: Tokenizer
    config: ModelConfig
    wiring: Wiring
    seat: Seat
    ranks: CheckpointRanks
    train_config: TrainConfig
    device: torch.device
    peak: float  # FLOP/s of a rank's matmuls in this dtype, on rank 0
    saver: BackgroundSaver
    group: Group | None

    @property
    def speaks(self) -> bool:
        return self.ranks.rank == 0

    @property
    def state(self) -> TrainState:
        """The state of this rank's part."""
        return self.wiring.state

    @property
    def log(self) -> EventLog:
        return EventLog(self.job.folder / EVENTS_FILE, self.ranks.rank)

    def utilisation(self, tokens_per_second: float) -> float:
        own = tokens_per_second / self.ranks.size
        return mfu(own, self.config, self.options.length, self.peak)

    def evaluate(self) -> float:
        """Held-out nats per token."""
        rows = -(-EVALUATION_ROWS // self.seat.size)
        seat = (self.seat.rank, self.seat.size)
        return self.wiring.evaluate(Loader(self.rows.held_out, rows, *seat, shuffle=False))

    def save(self) -> TrainState:
        """Writes a checkpoint in the background -> its state: the whole model, at least on rank 0.
        NotSaved if the previous one could not be written."""
        if self.options.audit and self.group is not None:
            check_replicas(self.group, self.state, self.log)
        files = {
            RUN_FILE: self.options.to_json().encode(),
            DATA_FILE: self.rows.fingerprint.encode(),
            **hub_files(self.config, self.tokenizer),
        }
        whole = self.wiring.whole()
        self.saver.save(whole, files)
        return whole


def hub_files(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, bytes]:
    """The files that let `transformers` open a checkpoint; for models it lacks, only the tokenizer.
    A document begins and ends with the end token."""
    files = fast_tokenizer(tokenizer.backend.to_str(), {"bos_token": END, "eos_token": END})
    end = tokenizer.end_token
    try:
        return describe(config, TextFiles(files, end, (end,)), torch.float32)
    except InputError:  # `export` reports the reason
        return files


def prepare(group: Group | None, job: Job) -> Run:
    """Prepares the run; every input error is found here, before anything is written."""
    ranks = find_ranks(group)
    device = find_device(job.device) if group is None else group.device
    options = replace(job.options, dtype=agreed_dtype(job.options.dtype, device, group))
    checkpoint = None
    if job.resume and checkpoints(job.folder):
        checkpoint = newest_checkpoint(job.folder)
        verify(checkpoint)
    tokenizer, rows = read_rows(options, checkpoint and checkpoint / TOKENIZER_FILE)
    config = preset(options.preset, vocab_size=tokenizer.vocab_size)
    check_memory(options, config, device)
    # One rank measures while the others wait: their matmuls would slow its own.
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
    peak = matmul_peak(dtype, device) if ranks.rank == 0 else math.nan
    seed_generators(options.seed + ranks.rank)
    model = build(config, device, seed=options.seed)
    if options.dtype == "fp8":
        convert(model, CURRENT)
    model = recompute(model, options.recompute)
    seat = find_seat(options, group)
    own = (options.microbatch, seat.rank, seat.size)
    loader = Loader(rows.training, *own, options.seed, drop_last=True)
    state = TrainState(model, make_optimizer(options, model), loader)
    if checkpoint:
        resume(checkpoint, rows, state, ranks)
    plan = train_config(options, rows, job.started, group)
    check_unfinished(plan, state)
    wiring = wire(state, group, options, plan)
    moves = wiring.state.optimizer
    follow(model, moves)  # casts a weight to fp8 once a step
    if options.compile:
        model.compile()
    saver = BackgroundSaver(job.folder, moves, ranks, layout=whole_layout(hub_tensors))
    return Run(
        job, options, rows, tokenizer, config, wiring, seat, ranks, plan, device, peak, saver, group
    )


def make_optimizer(options: TrainOptions, model: nn.Module) -> torch.optim.Optimizer:
    """Over two groups, of which the matrices decay."""
    name = options.optimizer
    if name == "adamw":
        return adamw(model, options.lr)
    rules = {"adam8bit": Adam8bit, "lion": Lion, "sgd": SGD, "adafactor": Adafactor}
    return rules[name](parameter_groups(model, WEIGHT_DECAY.get(name, 0.1)), lr=options.lr)


def find_ranks(group: Group | None) -> CheckpointRanks:
    if group is None:
        return CheckpointRanks(may_change=True)
    return CheckpointRanks(group.rank, group.size, group.barrier, may_change=True)


def resume(checkpoint: Path, rows: Rows, state: TrainState, ranks: CheckpointRanks) -> None:
    """Loads the checkpoint, if the text is still the same."""
    if (checkpoint / DATA_FILE).read_text() != rows.fingerprint:
        raise InputError(
            f"the text is not the one that {checkpoint.parent} was trained on: put the old one "
            "back, or start a new run with another --out"
        )
    load_checkpoint(checkpoint, state, ranks, layout=whole_layout(hub_tensors))


def train_config(
    options: TrainOptions, rows: Rows, started: float, group: Group | None
) -> TrainConfig:
    """The length in steps, given or computed from tokens, or in the remaining seconds."""
    autocast = torch.bfloat16 if options.dtype == "bfloat16" else None
    shared = {"lr": options.lr, "accumulate": options.accumulate, "autocast": autocast}
    if options.minutes is None:
        tokens_per_step = options.batch * rows.tokens / len(rows.training)
        steps = options.steps or math.ceil(options.tokens / tokens_per_step)
        return TrainConfig(steps=steps, **shared)
    whole = 60 * options.minutes
    left = torch.tensor(max(whole / 2, whole - (time.time() - started) - CLOSING_SECONDS))
    if group is not None:
        left = group.all_reduce(left.to(group.device), op="min")
    return TrainConfig(seconds=left.item(), **shared)


class Complete(InputError):
    """The run has completed all its steps."""


def check_unfinished(plan: TrainConfig, state: TrainState) -> None:
    if state.step >= plan.total_steps(state.step, state.seconds):
        raise Complete(
            f"this run is complete ({state.step} steps, {state.seconds / 60:.1f} minutes): go on "
            f"with more of them, such as --resume {longer(plan, state)}"
        )


def longer(plan: TrainConfig, state: TrainState) -> str:
    """Suggests an option that more than doubles the run."""
    if plan.steps is None:
        return f"--minutes {max(state.seconds / 20, 0.2):.1f}"
    return f"--steps {2 * state.step}"


def find_device(name: str | None) -> torch.device:
    """The named device; by default a GPU if there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {name} cannot be used here ({reason}): try cpu") from error
    return device


def agreed_dtype(name: str, device: torch.device, group: Group | None) -> str:
    """For "auto": bfloat16 where every rank's matmuls are at least 1.4 times as fast in it."""
    if name != "auto":
        return name
    gain = torch.tensor(bfloat16_gain(device), device=device)
    if group is not None:
        gain = group.all_reduce(gain, op="min")
    return "bfloat16" if gain >= 1.4 else "float32"


def bfloat16_gain(device: torch.device) -> float:
    """The speed-up of a bfloat16 matmul over float32, best time against best time."""
    size = 4096 if device.type == "cuda" else 384
    full = torch.randn(size, size, device=device)
    half = full.bfloat16()
    timed = compare({"full": lambda: full @ full, "half": lambda: half @ half}, repeats=9).timings
    return timed["full"].best / timed["half"].best


def check_memory(options: TrainOptions, config: ModelConfig, device: torch.device) -> None:
    name, (_, each) = options.preset, OPTIMIZERS[options.optimizer]
    needed = each * parameter_count(config)
    free = psutil.virtual_memory().available
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    if needed > free:
        raise InputError(
            f"--preset {name} needs {needed / 2**30:,.0f} GiB with {options.optimizer}, "
            f"and {device} has {free / 2**30:.0f} GiB free: use a smaller one, such as 100M or 1M"
        )
