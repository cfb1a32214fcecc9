"""All prompts in one engine; the first answer is printed as it comes, the others in their turn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from minitrain.apps.generate.job import Job
from minitrain.apps.generate.model import Speaker, open_speaker
from minitrain.apps.train.setup import find_device
from minitrain.errors import InputError
from minitrain.inference.engine.answer import Output
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import Times
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.vocabulary import Vocabulary
from minitrain.model.hub.text import encode
from minitrain.words import plural, seconds_text

NEW_TOKENS, BLOCK = 128, 16
Place = tuple[int, int]  # a prompt's number, and a sample's


def tell(job: Job) -> None:
    """Prints the answers on stdout, and how long it took on stderr."""
    speaker = open_speaker(job.model, find_device(job.device))
    prompts = [tokens_of(speaker, prompt) for prompt in job.prompts]
    requests = [(tokens, parameters(job, speaker, len(tokens))) for tokens in prompts]
    blocks = sum(-(-(len(t) + p.max_new_tokens) // BLOCK) for t, p in requests) * job.samples
    engine = Engine(speaker.model, blocks, BLOCK, decode=speaker.tokenizer.decode)
    printer = Printer(job.prompts, job.samples)
    for number, (tokens, wanted) in enumerate(requests):
        for sample, id in enumerate(engine.add(tokens, wanted, n=job.samples)):
            printer.places[id] = number, sample
    for output in engine.stream():
        if output.error is not None:
            raise InputError(output.error)
        printer.take(output)
    printer.summary()


def tokens_of(speaker: Speaker, prompt: str | None) -> list[int]:
    tokens = list(speaker.begin) if prompt is None else encode(speaker.tokenizer, prompt)
    if not tokens:
        raise InputError("this model has no token that begins a text: give --prompt")
    return tokens


def parameters(job: Job, speaker: Speaker, prompt_length: int) -> SamplingParameters:
    """The engine refuses what was asked for and is too long; what was not asked for is fitted."""
    room = speaker.model.config.max_length - prompt_length
    new = job.new_tokens or max(1, min(NEW_TOKENS, room))
    ends = speaker.ends + Vocabulary(speaker.tokenizer).stop_tokens(job.parameters.stop)
    return replace(job.parameters, max_new_tokens=new, stop_tokens=ends)


class Printer:
    """Answers in the order in which they were asked for, whatever the order in which they come."""

    def __init__(self, prompts: Sequence[str | None], samples: int) -> None:
        self.kept = {  # what is not printed yet; the first is live
            (number, sample): prompt or ""
            for number, prompt in enumerate(prompts)
            for sample in range(samples)
        }
        self.places: dict[str, Place] = {}  # by id
        self.ended: dict[Place, Times] = {}

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
