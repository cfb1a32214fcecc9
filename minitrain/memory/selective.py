"""Selective recomputation: keep results that are costly to compute, recompute those costly to hold.

A policy decides for each operation whether its result is kept; recomputation then reuses the
result, so a kept matmul costs nothing the second time:

    forward    norm   q·k·v*   scores   softmax   out   o*   norm   gate* up*   silu·up   down
    again      norm      ·     scores   softmax   out   ·    norm     ·     ·   silu·up       * kept

Cost in FLOPs: only the recomputed ones: T·T attention if materialized, 4·L·H·C·T a token, a share
of about T/18D of a step; none with the fused kernel, whose result is kept. Korthikanti et al.
give T/6D: attention's forward and backward. In bytes, per token and block: 2 D + 2 HC + 2 KC + 2 F
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
from minitrain.measure.flops import FUSED_ATTENTION

Policy = Callable[[OpOverload], bool]  # whether to keep the operation's result
Result = tuple[OpOverload, Any]  # an operation, and its output as a tree of tensors

_MATMULS = ("mm", "addmm", "convolution", "_scaled_mm", "_grouped_mm")
_KEPT = frozenset((*_MATMULS, *FUSED_ATTENTION, "topk"))


def save_matmuls(op: OpOverload) -> bool:
    """Keeps products with weights, fused attention, and `topk`.

    Not `bmm`, the product of two activations: attention's T x T scores if they are materialized.
    `topk` is a router's choice of experts: a tie or a rounding that differs the second time would
    send a token's gradient to an expert that never saw the token.
    """
    return op.namespace == "aten" and op.overloadpacket.__name__ in _KEPT


@lru_cache
def _makes_new_tensors(op: OpOverload) -> bool:
    """False for views and in-place operations, always rerun since they cost and hold nothing."""
    returns = op._schema.returns
    return bool(returns) and all(out.alias_info is None for out in returns)


class Recorder(TorchDispatchMode):
    """First pass: runs every operation, and stores the results that the policy keeps."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self._results: list[Result] = []
        self._versions: list[int] = []  # of each stored tensor, when it was made
        self._marked = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        if _makes_new_tensors(function) and self.policy(function):
            self._results.append((function, out))
            self._versions += [tensor._version for tensor in _tensors(out)]
        return out

    def mark(self) -> None:
        """Marks that results so far may be needed; later ones are not, if nothing more is saved."""
        self._marked = len(self._results)

    def results(self, marked: bool) -> list[Result]:
        """All results, or those up to the mark; raises if one has been changed since."""
        if self._versions != [tensor._version for tensor in _tensors(self._results)]:
            raise InputError(
                "a checkpointed function changed a result in place that its policy keeps: the "
                "repetition would start from the changed one; write it without the in-place "
                "operation, or leave the operation out of the policy"
            )
        results = self._results[: self._marked] if marked else self._results
        return tree_map_only(Tensor, Tensor.detach, results)  # without the graph, which holds them


class Replayer(TorchDispatchMode):
    """Second pass: an operation that the policy kept returns its stored result."""

    def __init__(self, policy: Policy, results: Iterable[Result]) -> None:
        super().__init__()
        self.policy, self.results = policy, iter(results)

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if _makes_new_tensors(function) and self.policy(function):
            op, kept = next(self.results, (None, None))
            if op is function:  # a fresh alias, since autograd will attach the graph to it
                return tree_map_only(Tensor, Tensor.detach, kept)
            if op is not None:
                raise InputError(
                    f"a checkpointed function did something else when it was repeated: {function} "
                    f"where it did {op}; it must do the same operations in the same order"
                )
        return function(*arguments, **(options or {}))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
