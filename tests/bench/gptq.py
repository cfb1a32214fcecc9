"""GPTQ against llm-compressor's: same model, same calibration data, same grid.

stories15M, or random weights of its shape if it was not fetched, in formats that both have: all 2^b
codes, symmetric (compressed-tensors' "int"), a scale per row or group, fitted to the largest weight
(their memoryless_minmax) or by a clip search (`-mse`, their memoryless_mse, which stops at 0.81 of
the range and weighs all columns equally; ours stops at 0.21, and weighs errors by their cost in the
outputs). Both use static act-order, damp by 1% of the diagonal's mean, and compute in float32 or
more. The text is sampled from the model at temperature 1: 96 rows calibrate, 48 others evaluate, by
one function for both. Compared are the seconds of rounding all 42 matrices (without loading and
saving) and the perplexity afterwards.

For the same input both produce the same codes, except with -mse. Inputs differ from the first
block's o on: ours uses the outputs of rounded q, k and v, theirs of the float ones (with which ours
has 0.1 to 0.6% more perplexity, stories15M at 4 bits a row). And rounding is chaotic: a different
summation order flips a code, and all later ones compensate. So each repeat splits the rows anew,
and the ratio's spread shows this effect.

llm-compressor is in the environment that `make bench-gptq` makes; without it there are no cases.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from minitrain.bench.case import OURS, PEER, Case
from minitrain.bench.elsewhere import Elsewhere, version_there
from minitrain.bench.inference import trained
from minitrain.bench.serving import BLOCK
from minitrain.data.loader import Batch, Loader
from minitrain.data.packing import IGNORED, Packed
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.measure.clock import Comparison, Timing, alternating, seconds_of
from minitrain.model.config import ModelConfig
from minitrain.model.hub.load import hub_name
from minitrain.model.transformer import Transformer, build
from minitrain.quantization.formats.names import named
from minitrain.quantization.formats.tiling import Groups
from minitrain.quantization.methods.method import METHODS
from minitrain.quantization.model import quantize_model
from minitrain.training.loop import evaluate

FORMATS = (
    *("int4f-row", "int3f-row", "int4f-g96", "int3f-g96"),
    *("int4f-row-mse", "int3f-row-mse"),
)
CALIBRATION, JUDGED, LENGTH = 96, 48, 192
BEGIN = 1  # llama2.c's token before a story
SECONDS_REASON = (
    "ours computes in float64 and runs a block's forward up to each of its four stages, the peer "
    "in float32 and once"
)
PERPLEXITY_REASON = (
    "of one input both make the same codes; from there on they see other inputs, and on other rows "
    "either is ahead (see the spread)"
)
Result = tuple[float, float]  # seconds, perplexity
Contender = Callable[[str, Tensor, Tensor], Result]  # format, rows to calibrate and to evaluate


def llm_compressor_version() -> str | None:
    return version_there("gptq", "llmcompressor")


def cases(
    repeats: int = 3,
    shape: ModelConfig | None = None,
    formats: Sequence[str] = FORMATS,
    rows: tuple[int, int, int] = (CALIBRATION, JUDGED, LENGTH),
) -> list[Case]:
    """`rows`: numbers to calibrate and to evaluate, and tokens per row."""
    if llm_compressor_version() is None:
        return []
    contest = Contest(trained() if shape is None else build(shape), rows, repeats)
    peer, found = f"GPTQModifier of llm-compressor {llm_compressor_version()}", []
    for name in formats:
        title = f"GPTQ {name}, act-order"
        for unit, place, why in (
            ("seconds", 0, SECONDS_REASON),
            ("perplexity", 1, PERPLEXITY_REASON),
        ):
            found.append(Case(title, peer, partial(contest.comparison, name, place), why, unit))
    return found


@dataclass(eq=False)
class Contest:
    """Ours and theirs on one model. They alternate, on different rows in each repeat, and run once
    per format, however many costs are read."""

    model: Transformer
    rows: tuple[int, int, int]
    repeats: int
    runs: dict[str, dict[str, list[Result]]] = field(default_factory=dict)

    def comparison(self, name: str, place: int) -> Comparison:
        if name not in self.runs:
            self.runs[name] = self.run(name)
        costs = {who: tuple(r[place] for r in found) for who, found in self.runs[name].items()}
        return Comparison({who: Timing(each) for who, each in costs.items()})

    def run(self, name: str) -> dict[str, list[Result]]:
        contenders: dict[str, Contender] = {OURS: self.ours, PEER: self.theirs}
        found: dict[str, list[Result]] = {who: [] for who in contenders}
        for repeat in range(self.repeats):
            text = self.parted(repeat)
            for who in alternating(contenders, repeat):
                found[who].append(contenders[who](name, *text))
        return found

    def ours(self, name: str, calibration: Tensor, judged: Tensor) -> Result:
        model = copy.deepcopy(self.model)
        method, batches = METHODS["gptq-act-order"], as_batches(calibration)
        seconds = seconds_of(partial(quantize_model, model, named(name), method, batches))
        return seconds, perplexity(model, judged)

    def theirs(self, name: str, calibration: Tensor, judged: Tensor) -> Result:
        form, folder = named(name), self.peer.folder
        text, out = folder / "text.safetensors", folder / "rounded.safetensors"
        save_file({"tokens": calibration}, text)
        told = self.peer.ask(
            {
                "bits": form.grid.bits,
                "group": form.tiling.size if isinstance(form.tiling, Groups) else None,
                "mse": form.clip,
                "calibration": str(text),
                "out": str(out),
            }
        )
        model, weights = copy.deepcopy(self.model), load_file(out)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                parameter.copy_(weights[hub_name(path)])
        return told["seconds"], perplexity(model, judged)

    def parted(self, repeat: int) -> tuple[Tensor, Tensor]:
        """Token ids (N, T) to calibrate, and to evaluate."""
        order = torch.randperm(len(self.text), generator=torch.Generator().manual_seed(repeat))
        return self.text[order[: self.rows[0]]], self.text[order[self.rows[0] :]]

    @cached_property
    def text(self) -> Tensor:
        calibration, judged, length = self.rows
        return own_text(self.model, calibration + judged, length)

    @cached_property
    def peer(self) -> Elsewhere:
        return Elsewhere("gptq", "gptq_worker.py", self.model)


def perplexity(model: Transformer, rows: Tensor) -> float:
    return math.exp(evaluate(model, as_batches(rows)))


def own_text(model: Transformer, rows: int, length: int) -> Tensor:
    """Tokens that the model generates unprompted, (rows, length)."""
    engine = Engine(model, rows * -(-length // BLOCK), BLOCK, max_running=rows)
    draws = [SamplingParameters(length - 1, temperature=1.0, seed=row) for row in range(rows)]
    answers = engine.generate([[BEGIN]] * rows, draws)
    return torch.tensor([[BEGIN, *answer.tokens] for answer in answers])


def as_batches(rows: Tensor) -> list[Batch]:
    """Batches of rows (N, T), one sequence each, with all tokens but the first as targets."""
    targets = torch.cat([rows[:, 1:], rows.new_full((len(rows), 1), IGNORED)], dim=1)
    return list(Loader(Packed(rows, targets, torch.zeros_like(rows)), 16, shuffle=False))
