"""One training run on one rank: prepares, trains, concludes.

A run evaluates eight times, writes a line of metrics.jsonl for each step, a checkpoint a minute,
and faults to events.jsonl, and stops after the step in which it is asked to. It ends with a last
evaluation, a sample and a checkpoint. A kill costs the steps since the last checkpoint; --resume
repeats them, and without a checkpoint the same command or --resume starts over.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import nn

from minitrain.apps.train.options import LOCK_FILE, RUN_FILE, Job
from minitrain.apps.train.reporting import during, introduction, metered, sinks
from minitrain.apps.train.setup import Complete, Run, longer, prepare
from minitrain.apps.train.watches import watched
from minitrain.apps.train.wiring import DataParallel
from minitrain.errors import InputError
from minitrain.inference.sampling import generate
from minitrain.monitoring.step_trace import StepTracer
from minitrain.paths import write_atomically
from minitrain.ranks.group import Group
from minitrain.reliability.checkpoint.folder import NotSaved, checkpoints, forget_after
from minitrain.reliability.events import EventLog, last_words, silent_ranks
from minitrain.reliability.notice import stop_on_signals
from minitrain.reliability.spikes import SpikeGuard
from minitrain.reliability.stragglers import StragglerWatch
from minitrain.training.loop import StepRecord, TrainResult, train
from minitrain.training.report import STOPPED, Reporter, describe_loss
from minitrain.training.state import TrainState

SAVE_SECONDS = 60.0
SAMPLE_TOKENS = 120
TEMPERATURE = 0.8


def run_rank(group: Group | None, job: Job) -> tuple[str, bool]:
    """The whole run on one rank -> the summary, and whether it was interrupted."""
    with ExitStack() as stack:
        stack.enter_context(stop_on_signals(job.stop_file))
        try:
            run = prepare(group, job)
        except Complete as complete:  # a scheduler may restart a run that is complete
            if not job.again:
                raise
            return str(complete), False
        run.ranks.barrier()  # all are ready before any writes
        if run.speaks:
            stack.enter_context(sole_writer(job.folder))
            begin(run)
        if group is not None:  # a single rank prints its own error
            stack.enter_context(last_words(run.log, lambda: run.state.step))
        return train_and_conclude(run)


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Locks the run's folder against a second process; the OS releases the lock if it is killed."""
    lock = FileLock(folder / LOCK_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InputError(
            f"another process is training in {folder}: wait for its end, or give --out another name"
        ) from error
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror}): give --out a folder in which you may"
        ) from error
    try:
        yield
    finally:
        lock.release()


def begin(run: Run) -> None:
    """Writes the options, and prints the introduction."""
    path = run.job.folder / RUN_FILE
    if path.is_file() and not checkpoints(run.job.folder):
        print(f"{run.job.folder} holds a run without a checkpoint: it begins anew")
    write_atomically(path, run.options.to_json())
    print(introduction(run), flush=True)


def train_and_conclude(run: Run) -> tuple[str, bool]:
    done, log = run.state.step, run.log
    if run.speaks:
        announce(run, log)
    meter = metered(run, SAVE_SECONDS)
    reporter = Reporter(
        sinks(run),
        during(meter.parts, "evaluation", run.evaluate),
        run.rows.floor,
        run.utilisation,
        speaks=run.speaks,
        done_part=done / run.train_config.total_steps(done, run.state.seconds),
        measure=meter,
    )
    step = run.job.sinks.trace_step
    traced = [] if step is None else [StepTracer(run.job.folder, step, meter, run.group)]
    saver = during(meter.parts, "checkpoint", Saver(run, log))
    # Pipeline stages differ by design; data-parallel ranks have equal work.
    watch = run.group is not None and isinstance(run.wiring, DataParallel)
    stragglers = [StragglerWatch(run.group, log)] if watch else []
    with watched(run.options, run.group, run.job.stop_file, log), reporter:
        result = train(
            run.wiring.model,
            run.state.loader,
            run.train_config,
            callbacks=[reporter, *traced, saver, *stragglers],
            peers=run.wiring.peers,
            state=run.state,
            step=run.wiring.step,
            stop=run.job.stop_file.exists,
            accept=spike_guard(run, log),
            begin=meter.parts.begin,
        )
        if result.interrupted:
            reporter.close(STOPPED)
    if result.interrupted and run.speaks:
        log.write("stopped", run.state.step)
    return conclude(run, result, reporter), result.interrupted


def announce(run: Run, log: EventLog) -> None:
    """Logs the ranks of the previous session that ended silently, and the start of this one."""
    for rank in silent_ranks(log):
        log.of(rank).write("silent")
    if run.state.step:
        log.write("resumed", run.state.step, ranks=run.ranks.size)
    elif run.group is not None:
        log.write("began", ranks=run.ranks.size)


def spike_guard(run: Run, log: EventLog) -> SpikeGuard | None:
    if not run.options.skip_spikes:
        return None
    norms = run.wiring.own_norms
    saved = partial(went_back, run, log)
    return SpikeGuard(run.state, log, whose=norms and norms.out_of_line, went_back=saved)


def went_back(run: Run, log: EventLog) -> None:
    """Collective: saves at once; if the disk is full, checkpoints of later steps make room."""
    if saved_or_noted(run, log, run.saver.wait):
        return
    with suppress(NotSaved):
        run.saver.wait()  # a later step may still be being written
    if run.speaks:
        forget_after(run.job.folder, run.state.step)
    run.ranks.barrier()
    saved_or_noted(run, log, run.saver.wait)


def saved_or_noted(
    run: Any, log: EventLog | None, wait: Callable[[], object] = lambda: None
) -> bool:
    """Saves; a full disk is logged, and the training goes on."""
    try:
        run.save()
        wait()
    except NotSaved as error:
        print(f"\n{error}; the training goes on", file=sys.stderr)
        if log is not None:
            log.write("not saved", run.state.step, said=str(error))
        return False
    return True


class Saver:
    """Saves once a minute, at the same steps on every rank; after a full disk, a minute later."""

    def __init__(self, run: Any, log: EventLog | None = None):
        self.run, self.log, self.next = run, log, run.state.seconds + SAVE_SECONDS

    def __call__(self, record: StepRecord) -> None:
        if record.seconds >= self.next:
            self.next = record.seconds + SAVE_SECONDS
            saved_or_noted(self.run, self.log)


def conclude(run: Run, result: TrainResult, reporter: Reporter) -> str:
    """Saves, evaluates, samples -> the summary, or the command that continues a stopped run."""
    whole = last_save(run).model
    command = f"python -m minitrain train --out {shlex.quote(str(run.job.folder))} --resume"
    if result.interrupted:
        return f"stopped after step {run.state.step:,} and saved; go on with: {command}"
    loss, floor, speed = reporter.latest(), run.rows.floor, result.tokens_per_second
    if not run.speaks:
        return ""
    state = run.state
    lines = [
        f"held out  {describe_loss(loss, floor)}" + (f" of {floor:.3f}" if floor else ""),
        f"trained   {state.step:,} steps, {state.tokens:,} tokens in {state.seconds:.0f} s",
        f"speed     {speed:,.0f} tokens/s, MFU {run.utilisation(speed):.0%} in the median step",
        f"sample    {sample(run, whole)}",
        f"saved     {run.job.folder}; go on with: {command} {longer(run.train_config, state)}",
    ]
    return "\n".join(lines)


def last_save(run: Run) -> TrainState:
    """Saves a last time; an earlier failed save no longer matters."""
    try:
        whole = run.save()
    except NotSaved:
        whole = run.save()
    run.saver.wait()
    return whole


def sample(run: Run, model: nn.Module) -> str:
    """A sample from the start of a document, deterministic for a given model."""
    end = run.tokenizer.end_token
    generator = torch.Generator().manual_seed(run.options.seed)
    tokens = generate(
        model,
        [end],
        SAMPLE_TOKENS,
        TEMPERATURE,
        end_token=end,
        generator=generator,
        max_length=run.config.max_length,
    )
    return run.tokenizer.decode(tokens)
