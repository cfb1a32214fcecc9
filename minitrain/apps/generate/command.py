"""`python -m minitrain generate --model MODEL --prompt "…"`: what a model says, as it says it."""

from __future__ import annotations

from typing import Annotated

import typer

from minitrain.apps.generate.job import Job
from minitrain.apps.kinds import DEVICE, SEED, Kind, Option, real, whole
from minitrain.apps.models import MODEL, MODEL_HELP
from minitrain.inference.parameters import SamplingParameters

INTERRUPTED = 130


def read_text(text: str) -> str:
    """Not empty, and such that it can be encoded."""
    if not text.encode():  # a lone surrogate raises ValueError
        raise ValueError
    return text


TEXT = Kind("TEXT", "a text that is not empty", read_text)


def generate(
    model: Annotated[str, Option(MODEL, MODEL_HELP)],
    prompt: Annotated[
        list[str] | None, Option(TEXT, "what it goes on from; several are told in turn", many=True)
    ] = None,
    new_tokens: Annotated[
        int | None, Option(whole(1, 10**6), "tokens to tell, at most", "128")
    ] = None,
    samples: Annotated[int, Option(whole(1, 1000), "answers to each prompt")] = 1,
    temperature: Annotated[float, Option(real(0, 100), "0 is always the likeliest token")] = 0.8,
    top_k: Annotated[
        int | None, Option(whole(1, 10**9), "draw from the k likeliest", "all")
    ] = None,
    top_p: Annotated[
        float | None, Option(real(1e-9, 1), "draw from the fewest that have p together", "all")
    ] = None,
    min_p: Annotated[
        float | None, Option(real(1e-9, 1), "draw from those with p times the likeliest's", "all")
    ] = None,
    repetition_penalty: Annotated[
        float, Option(real(0.01, 100), "over 1: what was said becomes less likely")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, Option(TEXT, "the answer ends before this text", many=True)
    ] = None,
    seed: Annotated[int, Option(SEED, "the same one tells the same")] = 0,
    device: Annotated[
        str | None, Option(DEVICE, "cpu, cuda, mps or xpu", "cuda if there is one")
    ] = None,
) -> None:
    """Generate text from a model; it appears as it is told, and Ctrl-C ends it."""
    parameters = SamplingParameters(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=tuple(stop or ()),
        seed=seed,
    )
    try:
        tell(Job(model, prompt or [None], parameters, new_tokens, samples, device))
    except KeyboardInterrupt:
        print()
        raise typer.Exit(INTERRUPTED) from None


def tell(job: Job) -> None:
    from minitrain.apps.generate.run import tell

    tell(job)
