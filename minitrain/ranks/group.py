"""A rank's view of its group: its rank, the size, and every operation to reach the other ranks.

`Group` wraps one of torch's process groups and is passed as an argument: no default group, no
globals. Operations are in place, as in torch.distributed, and return the tensor that they fill, or
with async_op=True a `Work`. Strided and empty tensors are allowed. Each operation is recorded in
`group.trace` by `group.clock`, and in the flight recorder: 15 µs of a rank's time.

    all_reduce ─ GroupCall ─ Work (work.py) ─ torch ─ work.wait() ─ the tensor

The hook for an emulated clock: `launch(fabric=…)` makes a `LogicalClock` for each rank and calls
`group.use(clock)`; subgroups share it. Its interface is `measure.traffic.Clock`.
"""

from __future__ import annotations

import atexit
import gc
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from minitrain.errors import InputError, divide, unknown_name
from minitrain.measure.traffic import Clock, Trace, WallClock, ring_bytes
from minitrain.ranks.flight_recorder import FlightRecorder
from minitrain.ranks.work import GroupCall, Work, dense, land, shape

REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,  # divided on arrival: gloo has no average of its own
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
MEANT = {"mean": "avg", "average": "avg", "add": "sum"}  # common synonyms, for the error message
PATIENCE_SECONDS = 600.0  # how long an operation waits for the other ranks: NCCL's own default
LEAVING_SECONDS = 2.0  # for torch's threads to end; one that waits for a lost rank never does
holders: WeakSet[Any] = WeakSet()  # the `Group`s of this process, which keep torch's alive


class Group:
    """`ranks` are the members' numbers in the launch; `rank` is this one's index among them."""

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        ranks: Sequence[int],
        rank: int,
        device: torch.device | None = None,
        trace: Trace | None = None,
        recorder: FlightRecorder | None = None,
        name: str = "all",
    ) -> None:
        self.process_group, self.ranks, self.rank = process_group, tuple(ranks), rank
        self.size, self.name = len(self.ranks), name
        self.device = device or torch.device("cpu")
        self.trace = trace or Trace(self.ranks[rank], clock=WallClock())
        self.recorder = recorder or FlightRecorder.alone()
        self._made: Counter[tuple[int, ...]] = Counter()  # subgroups, by their members
        holders.add(self)  # until Python ends

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, size={self.size}, ranks={list(self.ranks)})"

    @property
    def clock(self) -> Clock:
        assert self.trace.clock is not None, "a rank's own trace has a clock"
        return self.trace.clock

    def use(self, clock: Clock) -> None:
        """Switches this group and its subgroups to `clock`."""
        self.trace.clock, self.trace.emulated = clock, clock.emulated

    def now(self) -> float:
        """Seconds on this rank's clock: real ones, or the logical ones of an emulated fabric."""
        return self.clock.now()

    # ---- from one rank to another ----

    def send(self, tensor: Tensor, to: int) -> Tensor:
        """Sends `tensor`, and returns it once `to` has received it."""
        return self.isend(tensor, to).wait()

    def recv(self, tensor: Tensor, source: int) -> Tensor:
        """Fills `tensor` with what `source` sends, and returns it."""
        return self.irecv(tensor, source).wait()

    def isend(self, tensor: Tensor, to: int) -> Work:
        buffer, peer = dense(tensor, "send"), self._checked(to, "send to")
        start = partial(self.process_group.send, [buffer], to, 0)
        call = GroupCall("send", tensor, tensor.nbytes, start, lambda: tensor, peer=peer)
        return Work(self, call)

    def irecv(self, tensor: Tensor, source: int) -> Work:
        buffer, peer = dense(tensor, "recv"), self._checked(source, "receive from")
        start = partial(self.process_group.recv, [buffer], source, 0)
        call = GroupCall("recv", tensor, 0, start, partial(land, tensor, buffer), peer=peer)
        return Work(self, call)

    def exchange(self, send_tensor: Tensor, to: int, recv_tensor: Tensor, source: int) -> Tensor:
        """Sends to one rank while receiving from another; returns `recv_tensor`, filled.

        Both are in flight before it waits for either, so a ring of exchanges cannot deadlock.
        """
        arriving = self.irecv(recv_tensor, source)
        leaving = self.isend(send_tensor, to)
        leaving.wait()
        return arriving.wait()

    # ---- all together ----

    def all_reduce(self, tensor: Tensor, op: str = "sum", async_op: bool = False) -> Tensor | Work:
        """Every rank ends with the sum (avg, max, min) of all ranks' `tensor`."""
        buffer = dense(tensor, "all_reduce")
        options = dist.AllreduceOptions()
        options.reduceOp = _reduction(op, tensor)
        start = partial(self.process_group.allreduce, [buffer], options)
        finish = partial(land, tensor, buffer, self.size if op == "avg" else 1)
        sent = ring_bytes("all_reduce", tensor.nbytes, self.size)
        return self._run(GroupCall("all_reduce", tensor, sent, start, finish, f"({op})"), async_op)

    def broadcast(self, tensor: Tensor, root: int = 0, async_op: bool = False) -> Tensor | Work:
        """Every rank ends with the root's `tensor`."""
        if not 0 <= root < self.size:
            raise InputError(f"root {root} is not a rank of this group: use 0 to {self.size - 1}")
        buffer = dense(tensor, "broadcast")
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        start = partial(self.process_group.broadcast, [buffer], options)
        finish = partial(land, tensor, buffer)
        is_last = self.rank == (root - 1) % self.size  # of the chain: it forwards nothing
        sent = 0 if is_last else tensor.nbytes
        call = GroupCall("broadcast", tensor, sent, start, finish, f"(root {root})")
        return self._run(call, async_op)

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: str = "sum", async_op: bool = False
    ) -> Tensor | Work:
        """Reduces all ranks' `input`, N·n elements; `output` gets this rank's n of the result."""
        source, buffer = dense(input, "reduce_scatter"), dense(output, "reduce_scatter")
        self._check_sizes("reduce_scatter", whole=input, part=output)
        options = dist.ReduceScatterOptions()
        options.reduceOp = _reduction(op, input)
        flat = (buffer.view(-1), source.view(-1))
        start = partial(self.process_group._reduce_scatter_base, *flat, options)
        finish = partial(land, output, buffer, self.size if op == "avg" else 1)
        sent = ring_bytes("reduce_scatter", input.nbytes, self.size)
        call = GroupCall("reduce_scatter", input, sent, start, finish, f"({op})")
        return self._run(call, async_op)

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Tensor | Work:
        """Gathers all ranks' `input`, of n elements, in rank order into `output`, of N·n."""
        source, buffer = dense(input, "all_gather"), dense(output, "all_gather")
        self._check_sizes("all_gather", whole=output, part=input)
        start = partial(self.process_group._allgather_base, buffer.view(-1), source.view(-1))
        finish = partial(land, output, buffer)
        sent = ring_bytes("all_gather", output.nbytes, self.size)
        return self._run(GroupCall("all_gather", output, sent, start, finish), async_op)

    def all_to_all(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Tensor | Work:
        """Rank i's j-th piece of `input` becomes rank j's i-th piece of `output` (rows, dim 0)."""
        source, buffer = dense(input, "all_to_all"), dense(output, "all_to_all")
        incoming = self._splits(output, output_splits, "output")
        outgoing = self._splits(input, input_splits, "input")
        start = partial(self.process_group.alltoall_base, buffer, source, incoming, outgoing)
        finish = partial(land, output, buffer)
        kept = outgoing[self.rank] * (input.nbytes // max(1, len(input)))
        call = GroupCall("all_to_all", input, input.nbytes - kept, start, finish)
        return self._run(call, async_op)

    def barrier(self) -> None:
        """Returns once all ranks have called it."""
        empty = torch.empty(0, device=self.device)
        call = GroupCall("barrier", empty, 0, self.process_group.barrier, lambda: empty)
        Work(self, call).wait()

    # ---- smaller groups ----

    def split(self, color: int | None) -> Group | None:
        """Ranks with the same color form a group, in their old order; None joins none."""
        mine = torch.tensor([-1 if color is None else color], device=self.device)
        colors = torch.empty(self.size, dtype=mine.dtype, device=self.device)
        start = partial(self.process_group._allgather_base, colors, mine)
        call = GroupCall(
            "all_gather", colors, 0, start, lambda: colors, "(split)", is_traced=False
        )  # not a learner's traffic
        Work(self, call).wait()
        return self.subgroup([rank for rank, other in enumerate(colors.tolist()) if other == color])

    def subgroup(self, ranks: Sequence[int]) -> Group | None:
        """The group of these ranks, in this order. All its members must call; others get None."""
        if len(set(ranks)) < len(ranks) or not all(0 <= r < self.size for r in ranks):
            raise InputError(f"{list(ranks)} must be different ranks from 0 to {self.size - 1}")
        if self.rank not in ranks:
            return None
        place, members = list(ranks).index(self.rank), [self.ranks[r] for r in ranks]
        self._made[tuple(members)] += 1
        name = f"{self.name}/{members}#{self._made[tuple(members)]}"  # the same on every member
        process_group = new_process_group(self.process_group, members, name)
        return Group(process_group, members, place, self.device, self.trace, self.recorder, name)

    # ---- what they share ----

    def _run(self, call: GroupCall, async_op: bool) -> Tensor | Work:
        work = Work(self, call)
        if not async_op:
            return work.wait()
        if self.device.type == "cpu":
            work.stamp_end()
        return work

    def _checked(self, peer: int, doing: str) -> int:
        if not isinstance(peer, int) or not 0 <= peer < self.size:
            known = f"0 to {self.size - 1}"
            raise InputError(f"cannot {doing} rank {peer} of {self.size}: use a rank from {known}")
        if peer == self.rank:
            raise InputError(f"rank {peer} cannot {doing} itself, it would wait for ever: copy")
        return peer

    def _check_sizes(self, kind: str, whole: Tensor, part: Tensor) -> None:
        if whole.numel() != self.size * part.numel() or whole.dtype != part.dtype:
            raise InputError(
                f"{kind} over {self.size} ranks between {shape(part)} and {shape(whole)}: the "
                f"larger must have {self.size} x {part.numel()} elements of the same dtype"
            )

    def _splits(self, tensor: Tensor, splits: Sequence[int] | None, name: str) -> list[int]:
        rows = tensor.shape[0] if tensor.dim() else 0
        if splits is None:
            try:
                return [divide(f"rows of {name}", rows, self.size)] * self.size
            except InputError as error:
                raise InputError(f"{error}, or give {name}_splits, one number a rank") from None
        splits = [int(split) for split in splits]
        if len(splits) != self.size or sum(splits) != rows or min(splits) < 0:
            raise InputError(f"{name}_splits {splits} must be {self.size} numbers of sum {rows}")
        return splits


def _reduction(op: str, tensor: Tensor) -> Any:
    if op not in REDUCTIONS:
        raise unknown_name("reduction", op, REDUCTIONS, MEANT.get(op))
    if op == "avg" and not tensor.is_floating_point():
        raise InputError(f"no avg of {tensor.dtype}: sum it, or convert it to float first")
    return REDUCTIONS[op]


# ---- torch's process groups: how ranks meet, form a group, and leave ----


def meet(
    on_gpus: bool, store: dist.Store | None = None, rank: int = -1, ranks: int = -1
) -> dist.ProcessGroup:
    """Waits for all ranks and joins them; without a store, by torchrun's environment variables."""
    if not dist.is_initialized():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
            store=store,
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=PATIENCE_SECONDS),
        )
    return c10d._get_default_group()


@atexit.register
def leave() -> None:
    """Ends gloo's threads while Python still runs; a `Group` is unusable afterwards.

    They release a message's tensors after the wait for it has returned, and a thread that does so
    after Python has ended aborts the process: "terminate called without an active exception".
    """
    if dist.is_initialized() or holders:  # a group in place is gone, torch's is not
        ending = threading.Thread(target=_let_go, daemon=True)
        ending.start()
        ending.join(LEAVING_SECONDS)


def _let_go() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    for holder in holders:
        holder.process_group = None
    gc.collect()  # a sharded model refers to itself through its hooks


def new_process_group(parent: Any, members: Sequence[int], name: str) -> Any:
    """torch's group of the world's ranks `members`, in that order, registered with torch.

    `dist.new_group` must be called by every rank of the world, in the same order; with
    `use_local_synchronization` it names the group by how many each member has made before, and so
    hangs if groups overlap: rank 1 in [0, 1] and [1, 2]. Here only the members call, and they agree
    on the name. If `parent` belongs to a carrier (process.py), the carrier makes the group.
    """
    if not isinstance(parent, dist.ProcessGroup):
        return parent.subgroup(members, name)
    everyone = c10d._get_default_group()
    backend, store = c10d._world.pg_map[everyone]
    place = list(members).index(everyone.rank())
    process_group, _ = c10d._new_process_group_helper(
        len(members),
        place,
        list(members),
        dist.Backend(backend),
        store,
        group_name=name,
        timeout=timedelta(seconds=PATIENCE_SECONDS),
    )
    c10d._world.pg_group_ranks[process_group] = {rank: i for i, rank in enumerate(members)}
    return process_group
