"""Optimizer offload: state used once a step waits elsewhere for its turn.

    compute   ·······|- step 1 -|- step 2 -|- step 3 -|·······
    lane      |read 1|read 2|write 1|read 3|write 2|  |write 3|

The state is cut into n chunks. While one is updated, the next is read and the last is written, so
two are in memory. For R bytes read at r bytes/s, W written at w bytes/s, and C seconds of compute:

    I/O = R/r + W/w        step >= max(I/O + C/n, C + I/O/n)

The tensor object of an offloaded state stays: its storage has 0 bytes until it is filled again, so
the optimizer's dictionaries, and a unit's views of its shard, need no change. One thread moves the
data, in call order: a read after a write of the same tensors returns what was written.
Papers: Ren et al. 2021, "ZeRO-Offload"; Rajbhandari et al. 2021, "ZeRO-Infinity". Lab: e03.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

import torch
from torch import Tensor, nn

from minitrain.memory.stores import Store


class Mover:
    """Copies tensors to a store and back on its own thread, one job after another.

    On a GPU the copies run on a separate stream: after everything computed before the call, and
    beside everything computed after it.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._jobs: deque[Future] = deque()  # in order; those whose result has not been checked
        self._queue: SimpleQueue = SimpleQueue()
        # A daemon: a process may end without waiting, since the store is always consistent.
        threading.Thread(target=_work, args=(self._queue,), name="offload", daemon=True).start()
        weakref.finalize(self, self._queue.put, None)

    def submit(self, job: Callable[[], None], tensors: Sequence[Tensor]) -> Future:
        """Queues `job` after all earlier ones, and raises any error of those."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()
        on_gpu = any(tensor.is_cuda for tensor in tensors)
        ready = torch.cuda.current_stream().record_event() if on_gpu else None
        self._jobs.append(Future())
        self._queue.put((self._jobs[-1], partial(_run, job, ready)))
        return self._jobs[-1]

    def commit(self) -> None:
        """Makes all writes the new state; if anything failed, the old state stays."""
        while self._jobs:
            self._jobs.popleft().result()
        self.store.commit()


def _work(queue: SimpleQueue) -> None:
    """The thread: runs one job after another, until it gets None."""
    while (entry := queue.get()) is not None:
        future, job = entry
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)
        del entry, future, job  # an idle thread holds no tensors


@torch.no_grad()
def _run(job: Callable[[], None], ready: torch.cuda.Event | None) -> None:
    if ready is None:
        job()
        return
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_event(ready)
        job()
        torch.cuda.current_stream().synchronize()


class Shelf:
    """A place in the store for some tensors, each alone in its storage.

    Without a mover the tensors stay in memory, and every call does nothing.
    """

    def __init__(self, mover: Mover | None = None, key: str = "") -> None:
        self.mover, self.key = mover, key
        self.tensors: list[Tensor] = []
        self.away = False
        self._going: Future | None = None
        self._coming: Future | None = None

    def put(self, tensors: Sequence[Tensor]) -> None:
        """Writes them, then frees their memory; do not touch them before `get`."""
        if self.mover is not None:
            self.tensors, self.away = list(tensors), True
            self._going = self.mover.submit(partial(self._write, self.tensors), self.tensors)

    def drop(self) -> None:
        """Frees their memory without writing: nothing has changed since the last `get`."""
        if self.mover is not None:
            self.away = True
            self._going = self.mover.submit(partial(_release, self.tensors), self.tensors)

    def forget(self) -> None:
        """Releases them for good."""
        self.tensors, self.away, self._coming = [], False, None

    def settle(self) -> None:
        """Waits until the memory of offloaded tensors is free."""
        if self._going is not None:
            self._going.result()

    def fetch(self) -> None:
        """Starts reading them back."""
        if self.away and self._coming is None:
            self._coming = self.mover.submit(partial(self._read, self.tensors), self.tensors)

    def get(self) -> None:
        """Waits until they are back."""
        self.fetch()
        if self._coming is not None:
            self._coming.result()
        self.away, self._coming = False, None

    def _write(self, tensors: Sequence[Tensor]) -> None:
        self.mover.store.write(self.key, tensors)
        _release(tensors)

    def _read(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size())
        self.mover.store.read(self.key, tensors)


def _release(tensors: Sequence[Tensor]) -> None:
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()  # data read from them has arrived
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)


def in_turn(shelves: Sequence[Shelf], state: Callable[[int], list[Tensor]]) -> Iterator[int]:
    """Yields 0, 1, … with that shelf's tensors loaded; meanwhile the next load and the last save.

    `state(i)` are the tensors to offload after turn i, possibly more than before it.
    """
    for index, shelf in enumerate(shelves):
        shelf.get()
        for following in shelves[index + 1 : index + 2]:
            following.fetch()
        if index > 1:  # the first step reads nothing, so nothing would wait for the lane
            shelves[index - 2].settle()
        yield index
        shelf.put(state(index))
    for shelf in shelves[:1]:
        shelf.mover.commit()


def state_of(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The tensors that the optimizer keeps for these parameters."""
    return [
        value
        for parameter in parameters
        for value in optimizer.state.get(parameter, {}).values()
        if isinstance(value, Tensor)
    ]
