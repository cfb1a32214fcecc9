"""Tensor parallelism: every matrix of a layer is cut over N ranks, and two sums a layer join them.

A column linear makes 1/N of the features, the row linear after it reads them: what it gives is a
part of a sum. In between, attention and MLP work on their own heads and features. Each rank holds
1/N of the matrices, of the FLOPs and of the activations in between.

    forward    x ─ q,k,v ─ attend ─ o ─ all-reduce ─ + ─ gate,up ─ down ─ all-reduce ─ +
    backward   all-reduce ‖ dW of q,k,v               all-reduce ‖ dW of gate,up

    sequence=False   2 all-reduces forward, 2 backward                   8(N-1)/N·S bytes a layer
    sequence=True    all-gathers before, reduce-scatters after instead   10(N-1)/N·S: x twice

S = 4·B·T·D. With `sequence`, norms and the stream hold T/N tokens a rank (memory / N), and so the
gradients of norms and row biases are parts, to be summed over tp. Papers: Shoeybi et al., arXiv
1909.08053; Korthikanti et al., 2205.05198 (sequence). Lab: e02b_tensor_parallel.
Shapes: B batch  T tokens  D width  F features  H heads  K key/value heads  C head size  N ranks.
"""

from __future__ import annotations

from dataclasses import replace

from einops import rearrange
from torch import Tensor, nn

from minitrain.errors import divide
from minitrain.model.attention.grouped_query import Attention
from minitrain.model.mlp import MLP, swiglu
from minitrain.model.rope import Rotation
from minitrain.model.transformer import Transformer
from minitrain.parallel.layout import Slice, even_slice, lay_out, layout_of, padded_slice
from minitrain.parallel.tensor.heads import Heads, SharedRows, heads_of, share, shared_rows
from minitrain.parallel.tensor.linear import ColumnLinear, RowLinear, column_linears
from minitrain.parallel.tensor.vocabulary import VocabularyEmbedding
from minitrain.ranks.group import Group


class TensorAttention(Attention):
    """This rank's query heads, and the key/value heads that they read."""

    def __init__(
        self,
        attention: Attention,
        group: Group,
        heads: Heads,
        shared: SharedRows,
        sequence: bool = False,
    ) -> None:
        nn.Module.__init__(self)  # Attention's own would make whole matrices
        self.group, self.sequence = group, sequence
        self.kernel = attention.kernel
        size = self.head_size = attention.head_size
        width, kv_width = len(attention.q.weight), len(attention.k.weight)
        self.heads, self.shared = heads, shared
        columns = even_slice("features of attention", width, group, dim=0)
        first, count = heads.keys.start * size, len(heads.keys) * size
        kv_columns = Slice(0, first, count, kv_width, heads.owned_rows(size))
        self.q = ColumnLinear(attention.q, group, columns, sequence)
        self.k = ColumnLinear(attention.k, group, kv_columns, sequence)
        self.v = ColumnLinear(attention.v, group, kv_columns, sequence)
        self.o = RowLinear(attention.o, group, replace(columns, dim=1), sequence)

    def forward(self, x: Tensor, turns: Rotation, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D), or (B, T/N, D) with `sequence` -> the same."""
        k, v = share([(z.weight, z.bias) for z in (self.k, self.v)], self.shared)
        pairs = [(self.q.weight, self.q.bias), k, v]
        made = column_linears(x, pairs, self.group, self.sequence)  # (B, T, H·C/N or K·C/N)
        q, k, v = (z.with_beside(x, y) for z, y in zip((self.q, self.k, self.v), made))
        return self.o(self.attend(q, self._as_read(k), self._as_read(v), turns, mask))

    def _as_read(self, z: Tensor) -> Tensor:
        """Keys or values (B, T, K·C), one a query head where the groups here are not equal."""
        if self.heads.is_grouped:
            return z
        return rearrange(self.split(z)[:, :, self.heads.reads], "b t h c -> b t (h c)")


class TensorMLP(nn.Module):
    """This rank's F/N features: `gate` and `up` make them, `down` sums over all ranks'."""

    def __init__(self, mlp: MLP, group: Group, sequence: bool = False) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence
        columns = even_slice("features of the MLP", len(mlp.gate.weight), group, dim=0)
        self.gate = ColumnLinear(mlp.gate, group, columns, sequence)
        self.up = ColumnLinear(mlp.up, group, columns, sequence)
        self.down = RowLinear(mlp.down, group, replace(columns, dim=1), sequence)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D), or (B, T/N, D) with `sequence` -> the same."""
        pairs = [(z.weight, z.bias) for z in (self.gate, self.up)]
        made = column_linears(x, pairs, self.group, self.sequence)  # (B, T, F/N)
        gate, up = (z.with_beside(x, y) for z, y in zip((self.gate, self.up), made))
        return self.down(swiglu(gate, up))


def tensor_parallel(model: Transformer, group: Group, sequence: bool = False) -> Transformer:
    """Leaves on each rank its slices of a one-process model, which every rank has alike.

    The model itself is changed, and returned. It gives this rank's logits (B, T, V/N), for
    `vocabulary_parallel_loss`. An MLP of another kind than `MLP` (experts) stays whole.
    """
    config = model.config
    heads = heads_of(group.rank, group.size, config.heads, config.kv_heads)
    divide("features of the MLP", config.ffn_size, group.size)  # before anything is changed
    shared = shared_rows(group, heads, config.head_size)
    model.embed = VocabularyEmbedding(model.embed, group, sequence)
    for block in model.blocks:
        if isinstance(block.mlp, MLP):
            block.mlp = TensorMLP(block.mlp, group, sequence)
        block.attention = TensorAttention(block.attention, group, heads, shared, sequence)
    part = padded_slice(config.vocab_size, group, dim=0)
    model.head = ColumnLinear(model.head, group, part, sequence)
    model.tie()
    if sequence:
        model.sequence_ranks = group.size
        for parameter in model.parameters():
            if "tp" not in layout_of(parameter).split:
                lay_out(parameter, partial="tp")
    return model
