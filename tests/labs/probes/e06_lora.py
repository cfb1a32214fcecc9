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
        self.weight, self.bias = Codes(weight), None if bias is None else nn.Parameter(bias.clone())


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
    """A base under an adapter, in the hands of a probe."""

    def __init__(self, make, case):
        self.case, self.given = case, []
        self.base = BASES[case.get("base", "dense")](case["weight"], case.get("bias"))
        self.before = [t.detach().clone() for t in (*self.base.parameters(), *self.base.buffers())]
        self.adapter = make(self.base)
        self.layer = Adapted(self.base, self.adapter)
        self.base.register_forward_pre_hook(lambda module, args: self.given.append(args[0]))

    def first(self):
        """As it is made."""
        x = self.case["x"][0]
        with torch.no_grad():
            y, plain = self.layer(x.clone()), self.base(x.clone())
        named = {name: p.detach().clone() for name, p in self.adapter.named_parameters()}
        return {"y": y, "plain": plain, "named": named, "held": held_beside(self.adapter)}

    @torch.no_grad()
    def fill(self, numbers="set"):
        for name, value in self.case.get(numbers, {}).items():
            getattr(self.adapter, name).copy_(value)

    def second(self):
        """After a step, so to say: values and gradients of each x."""
        self.fill()
        return [self.turn(x) for x in self.case["x"]]

    def third(self):
        """After another step, in eval mode."""
        self.fill("then")
        self.layer.eval()
        return [self.turn(x) for x in self.case["x"]]

    def turn(self, x):
        x = x.clone().requires_grad_()
        self.layer.zero_grad()
        self.given.clear()
        y = self.layer(x)
        dy = (1.5 + torch.cos(torch.arange(y.numel(), dtype=torch.float32))).view_as(y).to(y.dtype)
        calls, is_x = len(self.given), all(z is x for z in self.given)
        if y.requires_grad:
            y.backward(dy)
        with torch.no_grad():
            is_same = torch.equal(self.layer(x), y)
        return {
            "y": y.detach(), "dy": dy, "dx": x.grad, "calls": calls, "is_x": is_x, "is_same": is_same,
            "gradients": {name: p.grad for name, p in self.adapter.named_parameters()},
            "of_base": [p.grad is not None for p in self.base.parameters()],
        }  # fmt: skip

    def last(self):
        now = [*self.base.parameters(), *self.base.buffers()]
        return [torch.equal(a, b) for a, b in zip(now, self.before)]


def held_beside(adapter):
    """Numbers that it holds, other than in parameters: in buffers and in plain attributes."""
    found = list(adapter.buffers())
    for module in adapter.modules():
        values = list(vars(module).values())
        values += [v for value in values if isinstance(value, (list, tuple)) for v in value]
        found += [v for v in values if isinstance(v, torch.Tensor)]
    return sum(t.numel() for t in found)


def carried(f, cases):
    """cases: dicts with weight, x (a list), "arguments" after base, and "set" after the start."""
    layers = [Carried(lambda base, c=case: f(base, *c["arguments"]), case) for case in cases]
    firsts = [layer.first() for layer in layers]
    fresh = [layer.turn(layer.case["x"][0]) for layer in layers]
    seconds = [layer.second() for layer in layers]
    deltas = [delta_of(layer.adapter) for layer in layers]
    thirds = [layer.third() for layer in layers]
    untouched = [layer.last() for layer in layers]
    columns = zip(firsts, fresh, seconds, deltas, thirds, untouched)
    return [
        {"first": a, "fresh": b, "second": c, "delta": d, "third": e, "untouched": f}
        for a, b, c, d, e, f in columns
    ]


def delta_of(adapter):
    return adapter.delta().detach() if hasattr(adapter, "delta") else None


def started_twice(f, weight, arguments):
    """The parameters of two adapters of like layers."""
    return [
        {n: p.detach().clone() for n, p in f(dense(weight, None), *arguments).named_parameters()}
        for _ in range(2)
    ]


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
    """Forward and backward each: its largest tensor; the numbers saved beside W itself; gradients."""
    carried = Carried(lambda base: f(base, *case["arguments"]), case)
    carried.fill()
    own, saved = carried.base.weight.untyped_storage().data_ptr(), {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() != own:
            saved[storage.data_ptr()] = tensor.numel()
        return tensor

    x = case["x"][0].clone().requires_grad_()
    with Operations() as forward, saved_tensors_hooks(note, lambda tensor: tensor):
        y = carried.layer(x)
    with Operations() as backward:
        y.sum().backward()
    return {
        "forward": forward.largest, "backward": backward.largest,
        "saved": max(saved.values(), default=0),
        "gradients": {name: p.grad for name, p in carried.adapter.named_parameters()},
    }  # fmt: skip


def merged_by(f, cases):
    """cases: (kind of base, weight, bias, delta). Layers, asked after all of them are made."""
    bases = [BASES[kind](weight, bias) for kind, weight, bias, _ in cases]
    deltas = [case[3].clone() for case in cases]
    results = [f(base, delta) for base, delta in zip(bases, deltas)]
    return [looked_at(*row) for row in zip(cases, bases, deltas, results)]


def looked_at(case, base, now_delta, layer):
    kind, weight, bias, delta = case
    if not isinstance(layer, nn.Linear):
        return {"linear": False, "type": type(layer).__name__, "is_base": layer is base}
    now = base.weight.codes if kind == "quantized" else base.weight.detach()
    own = layer.weight.untyped_storage().data_ptr()
    return {
        "linear": True, "is_base": layer is base, "weight": layer.weight.detach(),
        "bias": None if layer.bias is None else layer.bias.detach(),
        "sizes": [layer.in_features, layer.out_features],
        "trained": [name for name, p in layer.named_parameters() if p.requires_grad],
        "graph": layer.weight.grad_fn is not None,
        "untouched": torch.equal(now, weight), "shares": own == now.untyped_storage().data_ptr(),
        "delta": torch.equal(now_delta, delta), "asks": all(p.requires_grad for p in base.parameters()),
        "base_bias": bias is None or torch.equal(base.bias.detach(), bias),
        "y": computed(layer, weight),
    }  # fmt: skip


def computed(layer, weight):
    """What it makes of ones in the dtype of W, where it has that one."""
    if layer.weight.dtype != weight.dtype:
        return None
    return layer(torch.ones(2, weight.shape[1], dtype=weight.dtype)).detach()


def in_bottleneck(f, case):
    """cases: weight, bias, x, (width, bottleneck). Everything is set anew, by its shape."""
    width, bottleneck = case["arguments"]
    layer = Carried(lambda base: f(base, width, bottleneck), case)
    first = layer.first()
    first["gradients"] = gradients_of(layer, case["x"][0])
    with torch.no_grad():
        for parameter in layer.adapter.parameters():
            if tuple(parameter.shape) in case["by_shape"]:
                parameter.copy_(case["by_shape"][tuple(parameter.shape)])
    seconds = [layer.turn(x) for x in case["x"]]
    shapes = [list(p.shape) for p in layer.adapter.parameters()]
    of_base = {id(p) for p in layer.base.parameters()}
    owns_base = any(id(p) in of_base for p in layer.adapter.parameters())
    return {"first": first, "second": seconds, "shapes": shapes, "owns_base": owns_base,
            "untouched": layer.last()}  # fmt: skip


def bottlenecks(f, cases):
    return [in_bottleneck(f, case) for case in cases]


def gradients_of(layer, x):
    """Shape -> the largest gradient of that parameter in a first step."""
    layer.layer(x.clone()).square().sum().backward()
    found = [(list(p.shape), p.grad) for p in layer.adapter.parameters()]
    layer.layer.zero_grad()
    return [(shape, None if g is None else float(g.abs().max())) for shape, g in found]


def model_of(layers, heads, kv_heads, size):
    return Transformer(ModelConfig(11, heads * size, layers, heads, kv_heads, 8))


def prefixed(f, case):
    """What a prefix gives, before and after its MLP is dropped; and who made it."""
    model = model_of(*case["model"])
    layers = case["model"][0]
    prefix, other = (f(model, case["count"], case["width"]) for _ in range(2))
    alone = f(model, case["count"], case["width"] + 5)
    before = [taken(prefix.of_layer(i)) for i in range(layers)]
    overlap, moved = overlapping(prefix, layers), learned(prefix, layers)
    own, off = own_numbers(prefix, layers, case["count"]), switched_off(prefix, layers)
    sizes = [numbers(prefix), numbers(alone)]
    of_model = {id(p) for p in model.parameters()}
    owns_model = any(id(p) in of_model for p in prefix.parameters())
    prefix.drop_mlp()
    after = [taken(prefix.of_layer(i)) for i in range(layers)]
    kept = list(prefix.parameters())
    fails = failure_of(prefix.drop_mlp)
    is_kept = {id(p) for p in kept} == {id(p) for p in prefix.parameters()}
    twice = [taken(prefix.of_layer(i)) for i in range(layers)]
    others = [taken(other.of_layer(i)) for i in range(layers)]
    return {
        "before": before, "after": after, "twice": twice, "fails": fails, "others": others, "overlap": overlap,
        "own": own, "off": off, "is_kept": is_kept,
        "overlap_after": overlapping(prefix, layers), "sizes": sizes, "left": numbers(prefix),
        "leaves": all(p.is_leaf for p in prefix.parameters()), "owns_model": owns_model,
        "learned": moved, "learns": learned(prefix, layers), "enabled": bool(prefix.enabled),
    }  # fmt: skip


def failure_of(call):
    """What it raises, in words, or None."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def prefixes(f, cases):
    return [prefixed(f, case) for case in cases]


def taken(pair):
    keys, values = pair
    return [keys.detach().clone(), values.detach().clone()]


def numbers(module):
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def overlapping(prefix, layers):
    """How many numbers both the first layer's keys and the last one's are made from."""
    parts = []
    for layer in (0, layers - 1):
        prefix.zero_grad()
        backward_of(prefix.of_layer(layer))
        parts.append([None if p.grad is None else p.grad != 0 for p in prefix.parameters()])
    prefix.zero_grad()
    both = zip(*parts)
    return sum(int((a & b).sum()) for a, b in both if a is not None and b is not None)


def own_numbers(prefix, layers, count):
    """How many numbers each token's keys and values are made from, and no other token's."""
    if any(z.ndim != 3 or z.shape[1] != count for z in prefix.of_layer(0)):
        return []
    modules = [value for module in prefix.modules() for value in vars(module).values()]
    plain = [v for v in modules if isinstance(v, torch.Tensor) and v.is_floating_point()]
    leaves = [t for t in (*prefix.parameters(), *prefix.buffers(), *plain) if t.is_leaf]
    asked, moved = [t.requires_grad for t in leaves], []
    for leaf in leaves:  # vectors that do not learn are numbers, too
        leaf.requires_grad_(True)
    for token in range(count):
        for leaf in leaves:
            leaf.grad = None
        for layer in range(layers):
            backward_of([z[:, token] for z in prefix.of_layer(layer)])
        found = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
        moved.append(torch.cat([torch.zeros(0), *(g.flatten() for g in found)]) != 0)
    for leaf, before in zip(leaves, asked):
        leaf.grad = None
        leaf.requires_grad_(before)
    return [int((row & (sum(moved) == 1)).sum()) for row in moved]


def switched_off(prefix, layers):
    """Keys and values while the switch is off."""
    prefix.enabled = False
    try:
        return [taken(prefix.of_layer(i)) for i in range(layers)]
    finally:
        prefix.enabled = True


def backward_of(pair):
    """Where anything learns."""
    total = sum(z.square().sum() for z in pair)
    if total.requires_grad:
        total.backward()


def learned(prefix, layers):
    """Which share of all trained numbers a step of every layer's keys and values moves."""
    prefix.zero_grad()
    for layer in range(layers):
        backward_of(prefix.of_layer(layer))
    moved = [p.grad for p in prefix.parameters()]
    prefix.zero_grad()
    return sum(0 if g is None else int((g != 0).sum()) for g in moved) / max(numbers(prefix), 1)


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
    """cases: (tables, scalings, x, a, b): matmuls, FLOPs and the largest tensor of `added`."""
    found = []
    for tables, scalings, x, a, b in cases:
        rows = f([list(t) for t in tables], list(scalings))
        with Operations() as operations:
            rows.added(x, a, b)
        flops = counted_flops(lambda r=rows, x=x, a=a, b=b: r.added(x, a, b))
        found.append({"matmuls": operations.matmuls, "flops": flops, "largest": operations.largest})
    return found
