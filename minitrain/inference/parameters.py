"""What a request may ask for: how its tokens are drawn, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.errors import InputError


@dataclass(frozen=True)
class SamplingParameters:
    """Temperature 0 is greedy: always the likeliest token, whatever the cuts say.

    The logits pass, in this order: penalties, temperature, top-k, top-p, min-p.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None  # the k likeliest
    top_p: float | None = None  # of those, the fewest whose probabilities reach p
    min_p: float | None = None  # and of those, none below min_p times the likeliest's probability
    repetition_penalty: float = 1.0  # over 1: what was in prompt or answer becomes less likely
    presence_penalty: float = 0.0  # off the logits of what was in the answer,
    frequency_penalty: float = 0.0  # and off them once for each time that it was
    stop: tuple[str, ...] = ()  # the answer ends before the first of these strings
    stop_tokens: tuple[int, ...] = ()  # and before these tokens
    log_probabilities: int | None = None  # how many of the likeliest; 0: the drawn token's alone
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        self._check("max_new_tokens", self.max_new_tokens >= 1, "a whole number, 1 or more")
        self._check("temperature", self.temperature >= 0, "0 (the likeliest) to about 1.5")
        self._check("top_k", self.top_k is None or self.top_k >= 1, "1 or more, or None for all")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            fits = value is None or 0 < value <= 1
            self._check(name, fits, "above 0 and at most 1, or None for no cut")
        self._check("repetition_penalty", self.repetition_penalty > 0, "above 0; 1 is none")
        for name in ("presence_penalty", "frequency_penalty"):
            self._check(name, -2 <= getattr(self, name) <= 2, "from -2 to 2")
        self._check("stop", all(self.stop), "strings that are not empty")
        wanted = self.log_probabilities
        self._check("log_probabilities", wanted is None or wanted >= 0, "0 or more, or None")

    def _check(self, name: str, fits: bool, allowed: str) -> None:
        if not fits:
            raise InputError(f"{name} is {getattr(self, name)!r}; it must be {allowed}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)
