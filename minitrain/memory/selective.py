"""Selective recomputation: keep what is dear to compute, repeat what is dear to hold.

A policy answers for each operation whether its result is kept; the repetition then takes the result
and goes on, so that a kept matmul costs nothing the second time:

    forward    norm   q·k·v*   scores   softmax   out   o*   norm   gate* up*   silu·up   down
    again      norm      ·     scores   softmax   out   ·    norm     ·     ·   silu·up       * kept

Cost in FLOPs: only those of what is repeated: T·T attention written out, 4·L·H·C·T a token, a share
of about T/18D of a step; nothing with the fused kernel, whose result is kept. Korthikanti et al.
give T/6D: attention's forward and backward. In bytes, a token and block: 2 D + 2 HC + 2 KC + 2 F
numbers of 4 D + 2 HC + 2 KC + 4 F. Paper: Korthikanti et al. 2022, arXiv 2205.05198. Lab: e05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from minitrain.errors import InputError

Policy = Callable[[OpOverload], bool]  # whether to keep the operation's result
Result = tuple[OpOverload, Any]  # an operation, and the tree of tensors that it gave

_MATMULS = ("mm", "addmm", "convolution", "_scaled_mm", "_grouped_mm")
_FUSED_ATTENTION = tuple(
    f"_scaled_dot_product_{kernel}_attention{ending}"
    for kernel in ("flash", "efficient", "cudnn", "fused")
    for ending in ("", "_for_cpu", "_overrideable")
)
_KEPT = frozenset((*_MATMULS, *_FUSED_ATTENTION, "topk"))


def save_matmuls(op: OpOverload) -> bool:
    """Keeps products with weights, fused attention, and `topk`.

    Not `bmm`, the product of two activations: attention's T x T scores when they are written out.
    `topk` is a router's choice of experts: a tie or a rounding that fell otherwise the second time
    would send a token's gradient to an expert that never saw the token.
    """
    return op.namespace == "aten" and op.overloadpacket.__name__ in _KEPT


@lru_cache
def _makes_new_tensors(op: OpOverload) -> bool:
    """Views and operations in place are always repeated: they cost nothing, and hold nothing."""
    returns = op._schema.returns
    return bool(returns) and all(out.alias_info is None for out in returns)


class Recorder(TorchDispatchMode):
    """The first time: lets every operation run, and remembers the results that the policy keeps."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self._results: list[Result] = []
        self._versions: list[int] = []  # of each tensor in them, when it was made
        self._marked = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        if _makes_new_tensors(function) and self.policy(function):
            self._results.append((function, out))
            self._versions += [tensor._version for tensor in _tensors(out)]
        return out

    def mark(self) -> None:
        """So far every result may be needed; those that come after, if nothing follows, are not."""
        self._marked = len(self._results)

    def results(self, marked: bool) -> list[Result]:
        """All of them, or those up to the mark; each must still be what the operation gave."""
        if self._versions != [tensor._version for tensor in _tensors(self._results)]:
            raise InputError(
                "a checkpointed function changed a result in place that its policy keeps: the "
                "repetition would start from the changed one; write it without the in-place "
                "operation, or leave the operation out of the policy"
            )
        results = self._results[: self._marked] if marked else self._results
        return tree_map_only(Tensor, Tensor.detach, results)  # without the graph, which holds them


class Replayer(TorchDispatchMode):
    """The second time: an operation that the policy kept gives the remembered result."""

    def __init__(self, policy: Policy, results: Iterable[Result]) -> None:
        super().__init__()
        self.policy, self.results = policy, iter(results)

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if _makes_new_tensors(function) and self.policy(function):
            op, kept = next(self.results, (None, None))
            if op is function:  # a fresh alias, since autograd will write the graph on it
                return tree_map_only(Tensor, Tensor.detach, kept)
            if op is not None:
                raise InputError(
                    f"a checkpointed function did something else when it was repeated: {function} "
                    f"where it did {op}; it must do the same operations in the same order"
                )
        return function(*arguments, **(options or {}))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
