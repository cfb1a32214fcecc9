"""The probes of lab e12: what runs in the sandbox, beside a submission on reliability.

Nothing here knows what is expected: the verdicts, in test_e12_reliability.py, are made from what
comes back. Disks note what is done to them; what a power cut would leave is worked out elsewhere.
"""

from __future__ import annotations

import pickle
import random

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from .alive import Alive
from .in_turn import in_turn


class NotedDisk:
    """A folder in memory. `full`: the first write puts half of the bytes down, and fails."""

    def __init__(self, files, full=False):
        files, log = dict(files), []

        def write(name, data):
            data = bytes(data)
            if full:
                files[name] = data[: len(data) // 2]
                log.append(["write", name, files[name]])
                raise OSError(28, "No space left on device")
            files[name] = data
            log.append(["write", name, data])

        def flush(name):
            files[name]
            log.append(["flush", name])

        def rename(old, new):
            files[new] = files.pop(old)
            log.append(["rename", old, new])

        def read(name):
            log.append(["read", name])
            return files[name]

        def names():
            return list(files)

        self.write, self.flush, self.rename, self.read, self.names = (
            write,
            flush,
            rename,
            read,
            names,
        )
        self.flush_names = lambda: log.append(["flush_names"])
        self.noted = lambda: list(log)


def saved(f, calls):
    """calls: (files, step, data, whether the disk is full): what was done to each disk."""
    found = []
    for files, step, data, full in calls:
        disk, error = NotedDisk(files, full), None
        try:
            f(disk, step, data)
        except OSError as raised:
            error = str(raised)
        found.append({"log": disk.noted(), "error": error})
    return found


def found_newest(f, calls):
    """calls: files. What is found, and what was done to the disk."""
    found = []
    for files in calls:
        disk = NotedDisk(files)
        found.append({"out": f(disk), "log": disk.noted()})
    return found


class Handle:
    """A job that runs when it is waited for, or when the drill lets it run."""

    def __init__(self, drill, function, arguments):
        self.drill, self.job, self.error = drill, (function, arguments), None

    def run(self, who):
        if self.job is None:
            return
        (function, arguments), self.job = self.job, None
        before, self.drill.who = self.drill.who, who
        try:
            function(*arguments)
        except Exception as raised:
            self.error = raised
        self.drill.who = before

    def result(self, timeout=None):
        self.run("waited for")
        if self.error is not None:
            raise self.error

    def exception(self, timeout=None):
        self.run("waited for")
        return self.error

    def done(self):
        return self.job is None


class Drill:
    """A saver at work: what is written when, by whom, and how much memory it holds."""

    def __init__(self, f, tensors):
        self.tensors, self.notes, self.who, self.fails = tensors, [], "foreground", False
        self.handles, self.alive, self.call = [], Alive(), None
        self.saver = f(self.start, self.write)

    def start(self, function, *arguments):
        pending = sum(not handle.done() for handle in self.handles)
        held = self.alive.nbytes(list(self.tensors.values()))
        note = {"what": "start", "during": self.call, "pending": pending, "held": held}
        self.notes.append(note)
        self.handles.append(Handle(self, function, arguments))
        return self.handles[-1]

    def write(self, step, tensors):
        held = self.alive.nbytes(list(self.tensors.values()))
        if self.fails:
            self.fails = False
            self.notes.append({"what": "failed", "step": step, "during": self.call})
            raise OSError(28, f"no room for step {step}")
        with _disable_current_modes():
            values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.notes.append(
            {
                "what": "write",
                "who": self.who,
                "during": self.call,
                "step": step,
                "values": values,
                "held": held,
                "graph": any(tensor.grad_fn is not None for tensor in tensors.values()),
            }
        )

    def do(self, action, step=None):
        self.call, raised = [action, step], None
        if action == "train":
            with torch.no_grad():
                for tensor in self.tensors.values():
                    tensor.copy_(tensor + 1)
        elif action == "full":
            self.fails = True
        elif action == "others":
            self.tensors = others_than(self.tensors)
        elif action == "run":
            for handle in self.handles:
                handle.run("beside")
        else:
            try:
                with self.alive:
                    self.saver.save(
                        step, dict(self.tensors)
                    ) if action == "save" else self.saver.wait()
            except OSError as error:
                raised = str(error)
        self.notes.append({"what": "done", "during": self.call, "raised": raised})
        self.call = None


def others_than(tensors):
    """One tensor fewer, and one of half as many bytes: what a later save may be given."""
    kept = {name: tensor.detach().clone() for name, tensor in tensors.items() if name != "half"}
    return {**kept, "moment": kept["moment"].float()}


def drilled(f, tensors, script):
    """The notes of a script of actions; `tensors` are the training's own, some of them leaves."""
    own = {name: t.clone().requires_grad_(t.is_floating_point()) for name, t in tensors.items()}
    drill = Drill(f, own)
    for action in script:
        drill.do(*action)
    return {"notes": drill.notes, "tensors": {name: t.detach() for name, t in own.items()}}


def resharded(f, calls):
    """calls: (whole, old, new, padding): each new rank's part, and what it read."""
    found = []
    for whole, old, new, padding in calls:
        size = -(-len(whole) // old)
        rest = torch.full((old * size - len(whole),), padding, dtype=whole.dtype)
        files = torch.cat([whole, rest]).view(old, size)
        for rank in range(new):
            reads = []

            def read(file, start, stop, files=files, reads=reads, size=size):
                reads.append([int(file), int(start), int(stop)])
                if not 0 <= file < len(files):
                    last = len(files) - 1
                    raise IndexError(f"read({file}, {start}, {stop}): the files are 0 to {last}")
                if not 0 <= start <= stop <= size:
                    raise IndexError(f"read({file}, {start}, {stop}): a file has {size} elements")
                return files[file, start:stop].clone()

            out = f(read, len(whole), old, new, rank, whole.dtype)
            found.append({"out": out, "reads": reads})
    return found


class Rows:
    """The place in the data. To load one draws a random number, as iter(DataLoader) does."""

    def __init__(self):
        self.order, self.place = random.sample(range(40), 40), 0

    def next(self, count=4):
        if self.place + count > len(self.order):
            random.shuffle(self.order)
            self.place = 0
        self.place += count
        return self.order[self.place - count : self.place]

    def state_dict(self):
        return {"order": self.order, "place": self.place}

    def load_state_dict(self, state):
        self.order, self.place = state["order"], state["place"]
        torch.rand(1)


def rate(step):
    return 1 / (1 + 0.1 * step)


class Run:
    def __init__(self, seed):
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
        layers = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1)
        self.model, self.loader = nn.Sequential(*layers), Rows()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.data = torch.linspace(-1, 1, 160).sin().view(40, 4)

    def step(self):
        rows = self.loader.next()
        x = self.data[rows] + 0.1 * torch.from_numpy(np.random.randn(4, 4)).float()
        loss = (self.model(x)[:, 0] - x.sum(1) * random.random()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.item()

    def parts(self):
        """All that it is, part by part."""
        kept = self.optimizer.state_dict()
        return {
            "weights": [p.detach().clone() for p in self.model.parameters()],
            "buffers": [b.clone() for b in self.model.buffers()],
            "optimizer": [t.clone() for state in kept["state"].values() for t in state.values()],
            "rates": [group["lr"] for group in kept["param_groups"]],
            "schedule": self.schedule.last_epoch,
            "loader": [self.loader.place, *self.loader.order],
            "torch": torch.get_rng_state(),
            "numpy": [int(n) for n in np.random.get_state()[1]] + [np.random.get_state()[2]],
            "python": list(random.getstate()[1]),
        }


def snapped(f, seed, before, after, step=Run.step, parts=Run.parts):
    """A run, a snapshot of it, and what other runs are after it was restored into them."""
    run = Run(seed)
    for _ in range(before):
        step(run)
    found = {"at": parts(run)}
    early, late, unused = f(run), f(run), f(run)
    found["left"] = parts(run)
    try:
        found["unpicklable"] = pickle.dumps(vars(late)) and None
    except Exception as error:  # whatever it is that it keeps
        found["unpicklable"] = type(error).__name__
    other = Run(seed + 1)
    step(other)
    early.restore(other)
    found["restored"] = parts(other)
    for _ in range(10):
        step(run)
    late.restore(run)  # into the run itself
    found["losses"] = [[step(run) for _ in range(after)]]
    other = Run(seed + 5)
    step(other)
    unused.restore(other)  # for the first time
    found["restored late"] = parts(other)
    for more in (3, 4):
        other = Run(seed + more)
        for _ in range(more):
            step(other)
        late.restore(other)
        found[f"restored {more}"] = parts(other)
        found["losses"].append([step(other) for _ in range(after)])
    return found


def plain_run(seed, steps):
    """The losses of a run that nobody interrupts."""
    run = Run(seed)
    return [run.step() for _ in range(steps)]


def called(f, calls):
    return in_turn(f, calls)


def decided(f, series):
    """series: (options, losses): the rules live side by side and are asked in turn."""
    rules = [f(**options) for options, _ in series]
    found = [[] for _ in series]
    for place in range(max(len(losses) for _, losses in series)):
        for rule, (_, losses), own in zip(rules, series, found):
            if place < len(losses):
                own.append(rule(losses[place]))
    return found
