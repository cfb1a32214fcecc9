# a reader's own answers, from the notebook alone
import torch


class LossScaler:
    """The scale of the loss."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        """Divides every gradient by `scale`, in place; True if all of them, on
        all ranks, are finite."""
        found = torch.zeros(())  # tensors with an inf or nan
        for p in parameters:
            if p.grad is None:
                continue
            p.grad.div_(self.scale)
            found = found.to(p.grad.device) + (~p.grad.isfinite()).any()
        all_reduce(found)
        return found.item() == 0

    def update(self, finite: bool) -> None:
        """After each step, taken or skipped: the next scale."""
        if not finite:
            self.scale *= self.backoff
            self.finite_steps = 0
            return
        self.finite_steps += 1
        if self.finite_steps == self.interval:
            self.scale *= self.growth
            self.finite_steps = 0


class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        groups = self.param_groups
        self.weights = [p for group in groups for p in group["params"]]
        self.masters = []  # a float32 parameter for each weight
        for weight in self.weights:
            copy = weight.detach().clone().float()
            self.masters.append(copy.requires_grad_())
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """Gradients to the masters, one step, weights from masters."""
        for weight, master in zip(self.weights, self.masters):
            if weight.grad is None:
                master.grad = None
            else:
                master.grad = weight.grad.float()
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)
            master.grad = None  # of no use until the next step

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    """x float32 -> a new bfloat16 tensor: one of x's two neighbours."""
    bits = x.detach().view(torch.int32)
    noise = torch.randint(
        2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator
    )
    bits = bits + noise
    kept = bits & -(2**16)
    return kept.view(torch.float32).to(torch.bfloat16)


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    """The nearest number of `form` for each x, nan stays."""
    x = x.clamp(-form.largest, form.largest)
    # the exponent's bits alone are 2^e
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    power = power.clamp(min=2.0**form.smallest_exponent)
    size = power * 2.0**-form.mantissa_bits
    count = (x / size).round()
    return count * size


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    """What is left of x (R, K) in `form`, with one scale for each tile."""
    R, K = x.shape
    r, c = (R, K) if tile is None else tile
    padded = torch.nn.functional.pad(x.float(), (0, -K % c, 0, -R % r))
    tiles = padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))
    if amax is None:
        amax = tiles.abs().amax(dim=(1, 3))
    scale = amax / form.largest  # (R/r, K/c)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    scale = scale[:, None, :, None]
    left = round_to(tiles / scale, form) * scale
    return left.flatten(2, 3).flatten(0, 1)[:R, :K]


class AmaxHistory(torch.nn.Module):
    """Largest magnitudes of the last H steps."""

    def __init__(self, length: int, device="cpu"):
        super().__init__()
        past = torch.zeros(length, 3, device=device)  # (H, 3)
        self.register_buffer("past", past)
        self.seen = {}  # role -> largest since the last step

    def amax(self, role: int, now: torch.Tensor, record=True) -> torch.Tensor:
        """Notes `now` as seen; returns the magnitude to scale by."""
        if record:
            before = self.seen.get(role, now)
            self.seen[role] = torch.maximum(before, now)
        largest = self.past[:, role].max()
        return torch.where(largest > 0, largest, now)

    def take_seen(self) -> torch.Tensor:
        """(3,), -1 for what did not run. Ranks then take its maximum."""
        seen = [float(self.seen.get(role, -1.0)) for role in range(3)]
        self.seen = {}
        return torch.tensor(seen)

    def roll(self, seen: torch.Tensor) -> None:
        """seen (3,) becomes row 0 of each column that ran."""
        for role, value in enumerate(seen.tolist()):
            if value == -1:
                continue
            self.past[1:, role] = self.past[:-1, role].clone()
            self.past[0, role] = value
