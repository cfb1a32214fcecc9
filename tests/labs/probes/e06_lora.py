"""The probes of lab e06: what runs in the sandbox, beside a submission on adapters.

Nothing here knows what is expected: the verdicts, in test_e06_lora.py, are made from what comes
back. Objects of several cases are alive at once, and take their turns.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.finetuning.layer import Adapted
from minitrain.measure.flops import counted_flops
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer

from .in_turn import in_turn

MATMULS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot")


class Coded(nn.Module):
    """A linear layer of bytes: it says no more than its sizes, and can be called."""

    def __init__(self, weight, bias):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("codes", (weight * 64).round().clamp(-127, 127).to(torch.int8))

    def forward(self, x):
        return x @ (self.codes.to(x.dtype) / 64).T


class Narrow(Coded):
    """It answers in bfloat16, whatever it is given."""

    def forward(self, x):
        return super().forward(x).bfloat16()


class Codes:
    """A weight that is no tensor: of a quantized layer."""

    def __init__(self, weight):
        self.codes, self.shape = weight, weight.shape

    def dequantize(self):
        return self.codes.clone()


class Quantized(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = Codes(weight)
        if bias is not None:  # without one it has no such attribute
            self.bias = nn.Parameter(bias.clone())

    def forward(self, x):
        return nn.functional.linear(x, self.weight.dequantize(), getattr(self, "bias", None))


def dense(weight, bias):
    """A linear layer around copies of both."""
    layer = nn.Linear(*reversed(weight.shape), bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


BASES = {"dense": dense, "coded": Coded, "narrow": Narrow, "quantized": Quantized}


class Carried:
    """A base under an adapter: cases have weight, x (a list), "arguments" after base, and what the
    parameters are "set" to at first and "then", by their names or by their shapes."""

    def __init__(self, make, case):
        self.case, self.calls = case, []
        self.base = BASES[case.get("base", "dense")](case["weight"], case.get("bias"))
        self.before = [t.detach().clone() for t in (*self.base.parameters(), *self.base.buffers())]
        self.adapter = make(self.base, *case["arguments"])
        self.layer = Adapted(self.base, self.adapter)
        self.base.register_forward_pre_hook(lambda module, args: self.calls.append(1))

    def named(self):
        """[its name or its shape, the parameter]"""
        found = self.adapter.named_parameters()
        return [
            (str(tuple(p.shape)) if self.case.get("by_shape") else name, p) for name, p in found
        ]

    def start(self):
        """As it is made, and what a first backward moves."""
        x = self.case["x"][0]
        with torch.no_grad():
            plain = self.base(x.clone())
        turn = self.turn(x)
        moved = [name for name, g in turn["gradients"].items() if g is not None and g.any()]
        held = sum(t.numel() for t in plain_tensors(self.adapter))
        named = [(name, p.detach().clone()) for name, p in self.named()]
        return {"y": turn["y"], "plain": plain, "moved": moved, "held": held, "named": named}

    @torch.no_grad()
    def fill(self, numbers="set"):
        for name, parameter in self.named():
            if name in self.case[numbers]:
                parameter.copy_(self.case[numbers][name])

    def turns(self, numbers):
        """After a step, so to say: values and gradients of each x; those after another, in eval."""
        self.fill(numbers)
        self.layer.train(numbers == "set")
        return [self.turn(x) for x in self.case["x"]]

    def turn(self, x):
        x = x.clone().requires_grad_()
        self.layer.zero_grad()
        self.calls.clear()
        y = self.layer(x)
        dy = (1.5 + torch.cos(torch.arange(y.numel(), dtype=torch.float32))).view_as(y).to(y.dtype)
        if y.requires_grad:
            y.backward(dy)
        gradients = {name: p.grad for name, p in self.named()}
        return {"y": y.detach(), "dx": x.grad, "gradients": gradients, "calls": len(self.calls)}

    def end(self):
        now = [*self.base.parameters(), *self.base.buffers()]
        is_frozen = not any(p.requires_grad for p in self.base.parameters())
        delta = self.adapter.delta() if hasattr(self.adapter, "delta") else torch.zeros(())
        return {
            "untouched": is_frozen and all(torch.equal(a, b) for a, b in zip(now, self.before)),
            "delta": delta.detach(), "delta_learns": delta.requires_grad,
        }  # fmt: skip


def plain_tensors(module):
    """Buffers and plain attributes of a module and of those inside it."""
    own = ("_parameters", "_buffers", "_modules")
    values = [v for part in module.modules() for k, v in vars(part).items() if k not in own]
    values += [v for value in values if isinstance(value, dict) for v in value.values()]
    values += [v for value in values if isinstance(value, (list, tuple)) for v in value]
    return [*module.buffers(), *(v for v in values if isinstance(v, torch.Tensor))]


def carried(f, cases):
    layers = [Carried(f, case) for case in cases]
    starts = [layer.start() for layer in layers]
    turns = [layer.turns("set") for layer in layers]
    later = [layer.turns("then") for layer in layers]
    return [
        {**start, "turns": [*first, *second], **layer.end()}
        for layer, start, first, second in zip(layers, starts, turns, later)
    ]


def started_twice(f, weight, arguments):
    """lora_A of two adapters of like layers."""
    return [f(dense(weight, None), *arguments).lora_A.detach() for _ in range(2)]


class Operations(TorchDispatchMode):
    """The largest tensor that an operation makes, and how many matmuls there are."""

    def __init__(self):
        super().__init__()
        self.largest, self.matmuls = 0, 0

    def __torch_dispatch__(self, op, types, args=(), options=None):
        out = op(*args, **(options or {}))
        self.matmuls += op.overloadpacket.__name__ in MATMULS
        if isinstance(out, torch.Tensor) and not op.is_view:
            self.largest = max(self.largest, out.numel())
        return out


def weighed(f, case):
    """The largest tensor of forward, of backward, and of what is saved beside W itself."""
    carried = Carried(f, case)
    carried.fill()
    own, saved = carried.base.weight.untyped_storage().data_ptr(), [0]

    def note(tensor):
        if tensor.untyped_storage().data_ptr() != own:
            saved.append(tensor.numel())
        return tensor

    x = case["x"][0].clone().requires_grad_()
    with Operations() as forward, saved_tensors_hooks(note, lambda tensor: tensor):
        y = carried.layer(x)
    with Operations() as backward:
        y.sum().backward()
    return {"forward": forward.largest, "backward": backward.largest, "saved": max(saved)}


def merged_by(f, cases):
    """cases: (kind of base, weight, bias, delta). Layers, asked after all of them are made."""
    bases = [BASES[kind](weight, bias) for kind, weight, bias, _ in cases]
    deltas = [case[3].clone() for case in cases]
    results = [f(base, delta) for base, delta in zip(bases, deltas)]
    return [looked_at(*row) for row in zip(cases, bases, deltas, results)]


def looked_at(case, base, delta, layer):
    kind, weight, bias, old_delta = case
    if not isinstance(layer, nn.Linear):
        return {"type": type(layer).__name__}
    now = base.weight.codes if kind == "quantized" else base.weight.detach()
    is_own = layer.weight.untyped_storage().data_ptr() != now.untyped_storage().data_ptr()
    is_alike = layer.weight.dtype == weight.dtype
    return {
        "type": "Linear", "weight": layer.weight.detach(), "sizes": [layer.in_features, layer.out_features],
        "bias": None if layer.bias is None else layer.bias.detach(),
        "y": layer(torch.ones(2, weight.shape[1], dtype=weight.dtype)).detach() if is_alike else None,
        "trained": [name for name, p in layer.named_parameters() if p.requires_grad],
        "graph": layer.weight.grad_fn is not None, "own": is_own,
        "untouched": torch.equal(now, weight) and layer is not base, "delta": torch.equal(delta, old_delta),
        "base_bias": bias is None or torch.equal(base.bias.detach(), bias),
        "asks": all(p.requires_grad for p in base.parameters()),
    }  # fmt: skip


def prefixes(f, cases):
    return [prefixed(f, *case) for case in cases]


def prefixed(f, sizes, count, width):
    """What a prefix gives: as made, switched off, after its numbers changed, dropped once, twice."""
    layers, heads, kv_heads, size = sizes
    model = Transformer(ModelConfig(11, heads * size, layers, heads, kv_heads, 8))
    prefix, other, wider = (f(model, count, more) for more in (width, width, width + 5))

    def taken(of):
        return [[z.detach().clone() for z in of.of_layer(layer)] for layer in range(layers)]

    found = {"made": taken(prefix), "other": taken(other), "enabled": prefix.enabled}
    found |= {"numbers": trained(prefix), "wider": trained(wider)}
    if any(z.shape[1:2] != (count,) for pair in found["made"] for z in pair):
        return found
    found["owns_model"] = bool(identities(model) & identities(prefix))
    prefix.enabled = False
    found["off"] = taken(prefix)
    prefix.enabled = True
    found["sources"], found["bends"] = sources(prefix, layers, count), bends(prefix)
    with torch.no_grad():
        for parameter in prefix.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    found["moved"] = taken(prefix)
    prefix.drop_mlp()
    kept, found["dropped"], found["left"] = identities(prefix), taken(prefix), trained(prefix)
    found["left_sources"] = sources(prefix, layers, count)
    found["leaves"] = all(p.is_leaf for p in prefix.parameters())
    try:
        prefix.drop_mlp()
    except Exception as error:
        return {**found, "fails": f"{type(error).__name__}: {error}"}
    return {**found, "again": taken(prefix), "kept": identities(prefix) == kept}


def identities(module):
    return {id(p) for p in module.parameters()}


def trained(module):
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def sources(prefix, layers, count):
    """(L, n, N) bool: which of all its N numbers a layer's keys and values of a token hang on."""
    tensors = [*prefix.parameters(), *plain_tensors(prefix)]  # vectors need not learn
    tensors = [t for t in tensors if t.is_floating_point() and t.is_leaf]
    asked = [t.requires_grad for t in tensors]
    for tensor in tensors:
        tensor.requires_grad_(True)
    found = torch.zeros(layers, count, sum(t.numel() for t in tensors), dtype=torch.bool)
    for layer in range(layers):
        for token in range(count):
            total = sum(z[:, token].square().sum() for z in prefix.of_layer(layer))
            if total.requires_grad:
                gradients = torch.autograd.grad(total, tensors, materialize_grads=True)
                found[layer, token] = torch.cat([g.flatten() for g in gradients]) != 0
    for tensor, before in zip(tensors, asked):
        tensor.requires_grad_(before)
    return found


@torch.no_grad()
def bends(prefix):
    """In how many of its parameters what it makes is not a straight line."""
    found = 0
    for parameter in prefix.parameters():
        step, made = torch.randn_like(parameter), []
        for _ in range(3):
            made.append(prefix.of_layer(0)[0].clone())
            parameter += step
        parameter -= 3 * step
        found += not torch.allclose(made[0] + made[2], 2 * made[1], atol=1e-3)
    return found


def in_rows(f, calls):
    """calls: (tables, scalings, x, a, b); all batches are made before the first is computed."""
    given = [([list(t) for t in tables], list(scalings)) for tables, scalings, *_ in calls]
    turns = iter([f(*pair) for pair in given])
    results = in_turn(lambda *rest: next(turns).added(*rest), [call[2:] for call in calls])
    kept = [pair == tuple(map(list, call[:2])) for pair, call in zip(given, calls)]
    return {"calls": results, "kept": all(kept)}


def layers_of_one_batch(f, tables, scalings, layers):
    """One batch through several layers: (x, a, b) each."""
    rows = f([list(t) for t in tables], list(scalings))
    return in_turn(lambda x, a, b: rows.added(x, a, b), layers)


def effort(f, cases):
    """cases: (tables, scalings, x, a, b): matmuls and FLOPs of `added`."""
    found = []
    for tables, scalings, x, a, b in cases:
        rows = f([list(t) for t in tables], list(scalings))
        with Operations() as operations:
            rows.added(x, a, b)
        flops = counted_flops(lambda r=rows, x=x, a=a, b=b: r.added(x, a, b))
        found.append({"matmuls": operations.matmuls, "flops": flops})
    return found
