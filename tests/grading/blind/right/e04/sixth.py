# a reader's own answers, from the notebook alone
import torch
import torch.nn.functional as F


class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        found = None
        for p in parameters:
            if found is None:
                found = torch.zeros(1, device=p.device)
            if p.grad is None:
                continue
            p.grad.div_(self.scale)
            bad = ~p.grad.isfinite().all()
            found += bad.to(found.device)
        if found is None:
            found = torch.zeros(1)
        # every rank takes part, whether it found something or not
        all_reduce(found)
        return bool((found == 0).all())

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale *= self.backoff
            self.finite_steps = 0
            return
        self.finite_steps += 1
        if self.finite_steps >= self.interval:
            self.scale *= self.growth
            self.finite_steps = 0


class MasterWeights:
    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        groups = self.param_groups
        self.weights = [p for group in groups for p in group["params"]]
        self.masters = []
        for weight in self.weights:
            copy = weight.detach().to(torch.float32, copy=True)
            self.masters.append(torch.nn.Parameter(copy))
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for weight, master in zip(self.weights, self.masters):
            master.grad = None
            if weight.grad is not None:
                master.grad = weight.grad.to(torch.float32, copy=True)
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    bits = x.detach().view(torch.int32)
    noise = torch.randint(
        2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator
    )
    carried = (bits + noise) & -(2**16)
    rounded = carried.view(torch.float32)
    # inf and any nan, whatever stands in its last bits, as they are
    rounded = torch.where(x.isfinite(), rounded, x.detach())
    return rounded.to(torch.bfloat16)


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    x = x.clamp(-form.largest, form.largest)
    # only the exponent's bits: the power of two at or below |x|
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    power = power.clamp(min=2.0**form.smallest_exponent)
    step = power * 2.0**-form.mantissa_bits
    return (x / step).round() * step


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    r, c = (R, K) if tile is None else tile
    padded = F.pad(x.float(), (0, -K % c, 0, -R % r))
    tiles = padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))
    if amax is None:
        amax = tiles.abs().amax(dim=(1, 3))
    scale = amax.float() / form.largest
    scale = torch.where(scale == 0, 1.0, scale)
    scale = scale[:, None, :, None]
    kept = round_to(tiles / scale, form) * scale
    return kept.flatten(2, 3).flatten(0, 1)[:R, :K].contiguous()


class AmaxHistory(torch.nn.Module):
    def __init__(self, length: int, device="cpu"):
        super().__init__()
        past = torch.zeros(length, 3, device=device)
        self.register_buffer("past", past)
        self.seen = {}

    def amax(self, role: int, now: torch.Tensor, record=True) -> torch.Tensor:
        now = now.detach().clone()
        if record:
            before = self.seen.get(role, now)
            self.seen[role] = torch.maximum(before, now)
        past = self.past[:, role].max()
        return torch.where(past > 0, past, now)

    def take_seen(self) -> torch.Tensor:
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        for role in range(3):
            if seen[role] < 0:
                continue
            self.past[1:, role] = self.past[:-1, role].clone()
            self.past[0, role] = seen[role]
