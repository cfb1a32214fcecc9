"""`python -m minitrain generate --model MODEL --prompt "…"`: streams generated text.

All prompts run in one engine; the first answer is streamed, the others follow in order.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minitrain.apps.kinds import DEVICE, SEED, Kind, real, whole
from minitrain.apps.models import MODEL, MODEL_HELP
from minitrain.apps.options import Option
from minitrain.errors import InputError
from minitrain.inference.parameters import SamplingParameters
from minitrain.words import plural, seconds_text

if TYPE_CHECKING:
    from minitrain.apps.language import Language
    from minitrain.inference.engine.answer import Output
    from minitrain.inference.engine.request import Times

INTERRUPTED = 130
NEW_TOKENS, BLOCK = 128, 16
Place = tuple[int, int]  # the indices of a prompt and of a sample


def read_text(text: str) -> str:
    if not text.encode():  # a lone surrogate raises ValueError
        raise ValueError
    return text


TEXT = Kind("TEXT", "a text that is not empty", read_text)


@dataclass(frozen=True)
class SamplingOptions:
    """The options that become `SamplingParameters`."""

    temperature: Annotated[
        float, Option(real(0, 100), "Temperature; 0 always takes the likeliest token.")
    ] = 0.8
    top_k: Annotated[
        int | None, Option(whole(1, 10**9), "Sample from the k likeliest tokens.", "all")
    ] = None
    top_p: Annotated[
        float | None,
        Option(real(1e-9, 1), "Sample from the fewest tokens of total probability p.", "all"),
    ] = None
    min_p: Annotated[
        float | None,
        Option(real(1e-9, 1), "Sample from tokens of at least p times the highest.", "all"),
    ] = None
    repetition_penalty: Annotated[
        float, Option(real(0.01, 100), "Above 1, repeated tokens become less likely.")
    ] = 1.0
    stop: Annotated[
        list[str] | None, Option(TEXT, "End the answer before this text.", many=True)
    ] = None
    seed: Annotated[int, Option(SEED, "The same seed generates the same text.")] = 0


def generate(
    model: Annotated[str, Option(MODEL, MODEL_HELP)],
    prompt: Annotated[
        list[str] | None,
        Option(TEXT, "The text to continue; may be repeated.", "an empty text", many=True),
    ] = None,
    new_tokens: Annotated[
        int | None, Option(whole(1, 10**6), "Most tokens to generate.", f"{NEW_TOKENS}")
    ] = None,
    samples: Annotated[int, Option(whole(1, 1000), "Answers to each prompt.")] = 1,
    device: Annotated[
        str | None, Option(DEVICE, "One of cpu, cuda, mps and xpu.", "cuda if there is one")
    ] = None,
    **sampling: Any,
) -> None:
    """Generate text from a model. It is printed as it is generated; Ctrl-C ends it.

    minitrain generate --model stories15M --prompt "Once upon a time"
    minitrain generate --model runs/1M-corpus --temperature 0 --new-tokens 40
    """
    stops = tuple(sampling.pop("stop") or ())
    parameters = SamplingParameters(**sampling, stop=stops)
    try:
        answer(model, device, prompt or [None], parameters, new_tokens, samples)
    except KeyboardInterrupt:
        print()
        raise typer.Exit(INTERRUPTED) from None


def answer(
    model: str,
    device: str | None,
    prompts: Sequence[str | None],
    parameters: SamplingParameters,
    new_tokens: int | None,
    samples: int,
) -> None:
    """Prints the answers on stdout, and their time on stderr."""
    from minitrain.apps.language import open_with_language
    from minitrain.inference.engine.engine import Engine

    net, language = open_with_language(model, device)
    ends = language.ends + language.vocabulary.stop_tokens(parameters.stop)
    requests = []
    for prompt in prompts:
        tokens = prompt_tokens(language, prompt)
        room = net.config.max_length - len(tokens)  # the engine refuses a longer requested length
        longest = new_tokens or max(1, min(NEW_TOKENS, room))
        requests.append((tokens, replace(parameters, max_new_tokens=longest, stop_tokens=ends)))
    blocks = sum(-(-(len(t) + p.max_new_tokens) // BLOCK) for t, p in requests) * samples
    engine = Engine(net, blocks, BLOCK, decode=language.tokenizer.decode)
    printer = Printer()
    for number, (tokens, wanted) in enumerate(requests):
        for sample, id in enumerate(engine.add(tokens, wanted, n=samples)):
            printer.add(id, (number, sample), prompts[number] or "")
    for output in engine.stream():
        if output.error is not None:
            raise InputError(output.error)
        printer.take(output)
    printer.summary()


def prompt_tokens(language: Language, prompt: str | None) -> list[int]:
    """`prompt` None: only the token that begins a sequence."""
    tokens = list(language.begin) if prompt is None else language.encode(prompt)
    if not tokens:
        raise InputError("this model has no token that begins a text: give --prompt")
    return tokens


@dataclass
class Printer:
    """Prints answers in the order of their prompts, whichever finishes first."""

    kept: dict[Place, str] = field(default_factory=dict)  # not printed yet; the first is live
    places: dict[str, Place] = field(default_factory=dict)  # by the request's id
    ended: dict[Place, Times] = field(default_factory=dict)

    def add(self, id: str, place: Place, prompt: str) -> None:
        self.places[id], self.kept[place] = place, prompt

    def take(self, output: Output) -> None:
        place = self.places[output.id]
        self.kept[place] += output.text
        if output.times is not None:
            self.ended[place] = output.times
        while self.kept:
            first = next(iter(self.kept))
            print(self.kept[first], end="", flush=True)
            self.kept[first] = ""
            if first not in self.ended:
                break
            del self.kept[first]
            print(end="\n\n" if self.kept else "\n", flush=True)

    def summary(self) -> None:
        times = list(self.ended.values())
        tokens = sum(len(one.tokens) for one in times)
        seconds = max(one.ended for one in times) - min(one.arrived for one in times)
        rate = f"{tokens / seconds:.3g} a second"
        print(f"{plural(tokens, 'token')} in {seconds_text(seconds)}, {rate}", file=sys.stderr)
