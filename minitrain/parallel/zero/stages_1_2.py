"""ZeRO: data parallelism whose ranks stop keeping copies of what only one of them has to update.

P parameters, N ranks; bytes a rank holds, in mixed precision (bfloat16, AdamW in float32), and when
all is float32; what it sends, in units of P elements:

                                    mixed           float32      sends
    DDP                             16 P            16 P         2     all-reduce
    stage 1  optimizer state        4 P + 12 P/N    8 P + 8 P/N  2     reduce-scatter, all-gather
    stage 2  and gradients          2 P + 14 P/N    4 P + 12 P/N 2     the same
    stage 3  and parameters         16 P/N          16 P/N       3     and a gather more: stage_3.py

    compute   |- backward 3 -|- backward 2 -|- backward 1 -|·|- step 3 -|- step 2 -|- step 1 -|·|
    link                     |-- reduce 3 --|-- reduce 2 --|-|          |gather 3  |gather 2  |-|

Paper: Rajbhandari et al. 2020, "ZeRO", table 1 (stage 3 keeps float32 shards and no bfloat16 ones:
14 P/N). Lab: e03. Shapes: S elements of a unit (unit.py)  N ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.parallel.ddp import BUCKET_BYTES, broadcast_parameters, bucket_groups, trainable
from minitrain.parallel.zero.guards import not_wrapped
from minitrain.parallel.zero.sharded import Sharded
from minitrain.parallel.zero.unit import Unit
from minitrain.ranks.group import Group


class Zero(Sharded):
    """Stages 1 and 2: the parameters stay whole. A model in bfloat16 gets float32 shards.

    Both reduce alike; stage 1 keeps the buffers of all gradients, so that microbatches under
    `no_sync` cost it nothing, and stage 2 frees each as soon as its part is with its owner: two are
    held at a time. By default a bucket is an eighth of the model, from 2 MB to DDP's 25. Freeze
    before wrapping what no forward uses, or AdamW decays it (`Sharded` says why).
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        stage: int = 2,
        bucket_bytes: int | None = None,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        if stage not in (1, 2):
            raise InputError(f"stage {stage!r}: Zero is stage 1 or 2; Zero3 is stage 3")
        not_wrapped(model)
        broadcast_parameters(group, model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        eighth = sum(p.nbytes for p in trainable(model)) // 8
        buckets = bucket_groups(model, bucket_bytes or min(BUCKET_BYTES, max(2 * 2**20, eighth)))
        units = [
            Unit({names[p]: p for p in bucket}, group, stage, reduce_dtype=reduce_dtype)
            for bucket in buckets
        ]
        super().__init__(model, group, units, stage)
        model.register_load_state_dict_post_hook(self._loaded)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        for unit in self.units:
            unit.check_place()
        return super().forward(*inputs, **named_inputs)

    def _loaded(self, model: nn.Module, keys: Any) -> None:
        """`model.load_state_dict` has written the parameters: the shards follow."""
        for unit in self.units:
            unit.keep_changes()
