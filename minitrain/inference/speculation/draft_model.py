"""A draft model: any Transformer of the same vocabulary, cheaper than the target.

    its cache   Once upon a time there was a       it had drafted "time there was a"
    the text    Once upon a time there lived       the target accepted "time there"
                                                   cut after "there", read "lived", draft again

Its cached tokens are compared with the text at each call: the common prefix stays cached and the
rest is cut. So a rejection, a round with everything accepted (the last draft and the bonus token
are still unread), and a preempted request that resumes are one case. All requests draft in one
batch. Cost a round: g passes of the draft model, the first over all unread tokens.

The target can be its own draft model, with fewer bits or fewer layers, without training:

    quantized_draft(target, "int8")    every matrix, the head's too, in 8 bits through the packed
                                       kernels: a quarter of the bytes, and nearly the same tokens
    first_layers(target, 4)            its first 4 blocks, then norm and head: no extra memory

A one-token pass is memory-bound, so c, a draft's relative cost, is about its share of the bytes.
That includes the head: in a small model with a large vocabulary it is most of what is read, and a
draft that keeps it whole is not cheap. Formats without a kernel save bytes but no time.
Papers: Leviathan et al., arXiv 2211.17192; gpt-fast (2023), int4 drafts; Zhang et al., Draft &
Verify, 2309.08168; Elhoushi et al., LayerSkip, 2404.16710.
Shapes: B rows  T tokens  D width  V vocabulary.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.speculation.proposer import Asked, Draft, chosen, drawn
from minitrain.model.transformer import Transformer, empty
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.layers.packed_kernels import accelerate, kernel_for
from minitrain.quantization.model import quantize_model

New = tuple[list[int], Tensor | None]  # tokens to read, with hidden (n, D) for them


class Rows:
    """The rows of a proposer's cache. A row may have belonged to another request: its user compares
    the contents. The least recently used row is evicted."""

    def __init__(self, count: int) -> None:
        self.count, self.free = count, list(range(count))
        self.taken: OrderedDict[Hashable, int] = OrderedDict()  # least recently used first

    def of(self, keys: Sequence[Hashable]) -> list[int]:
        """One row per key, for at most `count` different keys."""
        for key in keys:
            if key in self.taken:
                self.taken.move_to_end(key)
        for key in keys:
            if key not in self.taken:
                self.taken[key] = self.free.pop() if self.free else self.taken.popitem(False)[1]
        return [self.taken[key] for key in keys]

    def forget(self, key: Hashable) -> None:
        if key in self.taken:
            self.free.append(self.taken.pop(key))


class InRows(ABC):
    """A proposer that drafts token by token in the rows of a dense cache: `rows` requests at once,
    more take turns; texts get no drafts beyond `longest` tokens."""

    def __init__(self, cache: DenseCache, longest: int) -> None:
        self.cache, self.longest = cache, longest
        self.rows = Rows(len(cache.lengths))

    def propose(self, requests: Sequence[Asked]) -> list[Draft]:
        drafts = [Draft() for _ in requests]
        fitting = [i for i, asked in enumerate(requests) if self._fits(asked)]
        for first in range(0, len(fitting), self.rows.count):
            some = fitting[first : first + self.rows.count]
            for i, draft in zip(some, self._draft([requests[i] for i in some])):
                drafts[i] = draft
        return drafts

    @torch.no_grad()
    def _draft(self, requests: Sequence[Asked]) -> list[Draft]:
        """Drafts for at most as many requests as there are rows."""
        rows = self.rows.of([asked.key for asked in requests])
        new = self._begin(rows, requests)
        tokens: list[list[int]] = [[] for _ in requests]
        q: list[list[Tensor | None]] = [[] for _ in requests]
        for step in range(max(asked.most for asked in requests)):
            going = [i for i, asked in enumerate(requests) if step < asked.most]
            found = self._read({rows[i]: new[i] for i in going})
            for i in going:
                logits, hidden = found[rows[i]]
                token, probabilities = chosen(requests[i], logits)
                tokens[i].append(token)
                q[i].append(probabilities)
                new[i] = [token], hidden
        return [drawn(*each) for each in zip(tokens, q)]

    def _fits(self, asked: Asked) -> bool:
        return len(asked.tokens) + asked.most <= self.longest

    @abstractmethod
    def _begin(self, rows: Sequence[int], requests: Sequence[Asked]) -> list[New]:
        """Rolls the rows back to their common prefix with the requests -> the unread tokens."""

    @abstractmethod
    def _read(self, new: dict[int, New]) -> dict[int, tuple[Tensor, Tensor | None]]:
        """New tokens, at least one for each of these rows -> logits (V,) after the last of each,
        and hidden (1, D) to be read with the next token."""

    def forget(self, key: Hashable) -> None:
        self.rows.forget(key)


def filled(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    """(B, width) int64, padded at the ends."""
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


class DraftModel(InRows):
    """Drafts with a model; `longest` defaults to the model's max_length."""

    def __init__(self, model: Transformer, rows: int = 1, longest: int | None = None) -> None:
        longest = longest or model.config.max_length
        super().__init__(DenseCache.of(model, rows, room=2 * longest), longest)  # and an unread one
        self.model, self.vocab_size = model, model.config.vocab_size
        self.read: list[list[int]] = [[] for _ in range(rows)]  # the tokens cached in each row

    def _begin(self, rows: Sequence[int], requests: Sequence[Asked]) -> list[New]:
        unread = []
        for row, asked in zip(rows, requests):
            shared = common_length(self.read[row], asked.tokens[:-1])  # the newest is read again
            self.read[row] = self.read[row][:shared]
            unread.append((list(asked.tokens[shared:]), None))
        self.cache.truncate([len(read) for read in self.read])
        return unread

    def _read(self, new: dict[int, New]) -> dict[int, tuple[Tensor, None]]:
        added = [new.get(row, ([], None))[0] for row in range(len(self.read))]
        tokens = filled(added, max(map(len, added)))  # (B, T)
        hidden = read_on(self.model, tokens.to(self.model.embed.weight.device), self.cache)
        self.read = [read + more for read, more in zip(self.read, added)]
        self.cache.truncate([len(read) for read in self.read])  # drops the padding
        last = torch.stack([hidden[row, len(added[row]) - 1] for row in new])
        return {row: (logits, None) for row, logits in zip(new, self.model.head(last))}


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix."""
    for at, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return at
    return min(len(one), len(other))


def quantized_draft(target: Transformer, form: str = "int8") -> Transformer:
    """A copy of the target with the blocks' matrices and the head in this format; embedding and
    norms are shared. On a CPU through a packed kernel, if the format has one."""
    draft = first_layers(target, target.config.layers)
    draft.blocks = copy.deepcopy(target.blocks)
    quantize_model(draft, named(form))
    draft.head = QuantLinear(named(form).quantize(target.head.weight))
    layers = (layer for layer in draft.modules() if isinstance(layer, QuantLinear))
    on_cpu = target.head.weight.device.type == "cpu"
    if on_cpu and any(kernel_for(layer.weight) for layer in layers):
        accelerate(draft)
    return draft


def first_layers(target: Transformer, layers: int) -> Transformer:
    """The target's first blocks, embedding, norm and head; parameters are shared."""
    if not 1 <= layers <= target.config.layers:
        raise InputError(
            f"the target has {target.config.layers} layers: draft with 1 to "
            f"{max(1, target.config.layers - 1)} of them, not {layers}"
        )
    draft = empty(replace(target.config, layers=1), "meta")
    draft.config = replace(target.config, layers=layers)
    draft.embed, draft.norm, draft.head = target.embed, target.norm, target.head
    draft.blocks = nn.ModuleList(target.blocks[:layers])
    return draft
