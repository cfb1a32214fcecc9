# right: the summed loss from log_softmax and gather, the global norm and the clipping written out, the schedule with cos² of half the angle.
import math

import torch


class Step:
    def __init__(self, model, optimizer, clip):
        self.model, self.optimizer, self.clip = model, optimizer, clip

    def summed_loss(self, batch):
        logits = self.model(batch.tokens, batch.documents, batch.positions)
        counted = batch.targets != -100
        chosen = batch.targets.clamp(min=0).unsqueeze(-1)
        log_probability = logits.log_softmax(dim=-1).gather(-1, chosen).squeeze(-1)
        return -log_probability[counted].sum()

    @torch.no_grad()
    def clip_gradients(self):
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = math.hypot(*(float(g.norm()) for g in gradients))
        if norm > self.clip:
            for gradient in gradients:
                gradient.mul_(self.clip / norm)

    def run(self, microbatches):
        total = 0
        for batch in microbatches:
            total += int(batch.targets.ne(-100).sum())
        for batch in microbatches:
            (self.summed_loss(batch) / total).backward()
        self.clip_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()


def train_step(model, optimizer, microbatches: list, clip: float = 1.0) -> None:
    Step(model, optimizer, clip).run(microbatches)


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step >= total:
        return floor
    if step < warmup:
        return peak * (step + 1) / warmup
    left = (total - step) / (total - warmup)  # from 1 down to 0
    return floor + (peak - floor) * math.sin(math.pi / 2 * left) ** 2
