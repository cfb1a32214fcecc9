"""One fine-tuning run: opens the model, adapts it, trains, and reports learning and forgetting.

adapter/          the result, in PEFT's files (for --method full: model/, a Hugging Face folder)
step-…/           checkpoints of the adapter and its optimizer, from which --resume continues
finetune.json     the options      metrics.jsonl   one line per step  before.json   the perplexities
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn

from minitrain.apps.finetune.options import ADAPTER, BEFORE_FILE, MERGED, RUN_FILE, Job
from minitrain.apps.finetune.text import Texts, make_texts
from minitrain.apps.models import open_model
from minitrain.apps.train.run import Saver, sole_writer
from minitrain.apps.train.setup import find_device
from minitrain.data.loader import Loader
from minitrain.data.packing import Packed
from minitrain.errors import InputError
from minitrain.finetuning.layer import adapted_layers
from minitrain.finetuning.model import (
    adapt,
    adapter_groups,
    check_rank,
    find_method,
    trainable_parameters,
)
from minitrain.finetuning.peft_files import save_adapter
from minitrain.generators import seed_generators
from minitrain.measure.parts import Parts
from minitrain.model.hub.load import save_pretrained
from minitrain.model.hub.text import TextFiles, check_known
from minitrain.monitoring.hardware import find_sensor
from minitrain.monitoring.json_lines import JsonLines, metrics_file
from minitrain.monitoring.meter import Meter
from minitrain.paths import write_atomically
from minitrain.reliability.checkpoint.contents import whole_layout
from minitrain.reliability.checkpoint.folder import checkpoints, newest_checkpoint
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.loop import TrainConfig, evaluate, train
from minitrain.training.report import STOPPED, Reporter
from minitrain.training.state import TrainState
from minitrain.words import memory_text

DATA_FILE = "data.sha256"


@dataclass
class Run:
    """A prepared run; `Saver` calls `save` once a minute, and at the end."""

    job: Job
    state: TrainState
    texts: Texts
    files: TextFiles
    device: torch.device

    def perplexity(self, rows: Packed) -> float:
        """exp of the nats per learned token, with dropout off."""
        model, batch = self.state.model, self.job.options.batch
        model.eval()
        loss = evaluate(model, Loader(rows, batch, shuffle=False))
        model.train()
        return math.exp(min(loss, 700.0))

    def perplexities(self) -> dict[str, float]:
        return {name: self.perplexity(getattr(self.texts, name)) for name in ("new", "old")}

    def held_out_loss(self) -> float:
        return math.log(self.perplexity(self.texts.new))

    def save(self) -> None:
        files = {
            RUN_FILE: self.job.to_json().encode(),
            DATA_FILE: self.texts.fingerprint.encode(),
        }
        save_checkpoint(self.job.folder, self.state, files, layout=whole_layout(trained_tensors))


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a run changes, and PiSSA's initial factors."""
    tensors = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    for path, layer in adapted_layers(model).items():
        own = {n: b for n, b in layer.adapter.named_buffers() if n.startswith("first_")}
        tensors |= {f"{path}.adapter.{name}": buffer for name, buffer in own.items()}
    return tensors


def run(job: Job) -> tuple[str, bool]:
    """The summary, and whether it was interrupted."""
    if checkpoints(Path(job.model)):  # the run may continue and write a newer one
        job = replace(job, model=str(newest_checkpoint(Path(job.model))))
    prepared = prepare(job)
    with sole_writer(job.folder):
        write_atomically(job.folder / RUN_FILE, job.to_json())
        before = first_perplexities(prepared)
        print(introduction(prepared, before), flush=True)
        return train_and_conclude(prepared, before)


def prepare(job: Job) -> Run:
    """Prepares the run; every input error is found here, before anything is written."""
    options, device = job.options, find_device(job.device)
    model, files = open_model(job.model, device, getattr(torch, options.dtype))
    if options.length > model.config.max_length:
        raise InputError(
            f"--length {options.length} is more than the model can read: use "
            f"{model.config.max_length} or less"
        )
    method = find_method(options.method, options.method_options)
    check_rank(model, method)
    texts = make_texts(options, files)
    rows = (texts.training, texts.new, texts.old)
    largest = max(int(some.tokens.max()) for some in rows if len(some))
    check_known(largest, model.config.vocab_size, files.tokenizer)
    seed_generators(options.seed)
    adapt(model, method, seed=options.seed).train()
    optimizer = torch.optim.AdamW(adapter_groups(model, options.rate), lr=options.rate)
    loader = Loader(texts.training, options.batch, seed=options.seed, drop_last=True)
    state = TrainState(model, optimizer, loader)
    if job.resume and checkpoints(job.folder):
        resume(job, state, texts)
    return Run(job, state, texts, files, device)


def resume(job: Job, state: TrainState, texts: Texts) -> None:
    checkpoint = newest_checkpoint(job.folder)
    if (checkpoint / DATA_FILE).read_text() != texts.fingerprint:
        raise InputError(
            f"the text is not the one that {job.folder} was begun with: put the old one back, or "
            "start a new run with another --out"
        )
    load_checkpoint(checkpoint, state, layout=whole_layout(trained_tensors))
    if state.step >= job.options.steps:
        raise InputError(
            f"{job.folder} has made its {state.step} steps: go on with more, --resume --steps "
            f"{2 * state.step}"
        )


def first_perplexities(run: Run) -> dict[str, float]:
    """Perplexities before the first step; a resumed run reads the stored ones."""
    path = run.job.folder / BEFORE_FILE
    if run.state.step and path.is_file():
        return json.loads(path.read_text())
    found = run.perplexities()
    write_atomically(path, json.dumps(found) + "\n")
    return found


def introduction(run: Run, before: dict[str, float]) -> str:
    options, (trained, total) = run.job.options, trainable_parameters(run.state.model)
    lines = [
        f"model   {run.job.model}: {total - trained:,} parameters, {options.dtype} on {run.device}",
        f"adapter {options.method}: {trained:,} are trained, {trained / total:.2%} of all",
        f"text    {options.data}: {int(run.texts.training.valid.sum()):,} tokens to learn, in rows "
        f"of {options.length}",
        f"before  perplexity {before['new']:.2f} on it, {before['old']:.2f} on {options.old_text}",
        f"folder  {run.job.folder}",
    ]
    if options.method == "full":
        lines[0:2] = [f"model   {run.job.model}: {total:,} parameters, all trained, {run.device}"]
    if run.state.step:
        lines.append(f"resumed at step {run.state.step:,}")
    return "\n".join(lines)


def train_and_conclude(run: Run, before: dict[str, float]) -> tuple[str, bool]:
    options, done = run.job.options, run.state.step
    config = TrainConfig(steps=options.steps, lr=options.rate, weight_decay=0.0)
    parts = Parts()
    reporter = Reporter(
        [JsonLines(metrics_file(run.job.folder), done)],
        run.held_out_loss,
        done_part=done / options.steps,
        memory=lambda: memory_in_use(run.device),
        measure=Meter(parts, device=run.device, sensor=find_sensor(run.device)),
    )
    with reporter:
        result = train(
            run.state.model,
            run.state.loader,
            config,
            callbacks=[reporter, Saver(run)],
            state=run.state,
            stop=run.job.stop_file.exists,
            begin=parts.begin,
        )
        if result.interrupted:
            reporter.close(STOPPED)
    run.save()
    go_on = f"python -m minitrain finetune --out {shlex.quote(str(run.job.folder))} --resume"
    if result.interrupted:
        return f"stopped after step {run.state.step:,} and saved; go on with: {go_on}", True
    return conclusion(run, before, result.tokens_per_second), False


def conclusion(run: Run, before: dict[str, float], speed: float) -> str:
    after, options = run.perplexities(), run.job.options
    saved = write_result(run)
    rows = [
        f"{label:<8}{before[name]:>10.2f}{after[name]:>10.2f}   {text}"
        for label, name, text in (("new", "new", options.data), ("old", "old", options.old_text))
    ]
    folder, merged = (shlex.quote(f"{run.job.folder}{more}") for more in ("", "-merged"))
    merge = f"; merge it with: python -m minitrain merge {folder} --out {merged}"
    more = {"full": ""} | dict.fromkeys(MERGED, merge)
    return "\n".join(
        [
            "perplexity  before     after",
            *rows,
            f"trained   {run.state.step:,} steps, {run.state.tokens:,} tokens in "
            f"{run.state.seconds:.0f} s, {speed:,.0f} tokens/s, {memory_in_use(run.device)}",
            f"saved     {saved}" + more.get(options.method, ", which stays beside its model"),
        ]
    )


def write_result(run: Run) -> Path:
    model, folder = run.state.model, run.job.folder
    if run.job.options.method == "full":
        save_pretrained(model, folder / "model", text=run.files)
        return folder / "model"
    save_adapter(model, folder / ADAPTER, base=run.job.model)
    return folder / ADAPTER


def memory_in_use(device: torch.device) -> str:
    """CUDA's peak memory, or this process's current memory."""
    if device.type == "cuda":
        return memory_text(torch.cuda.max_memory_allocated(device))
    return memory_text(psutil.Process().memory_info().rss)
