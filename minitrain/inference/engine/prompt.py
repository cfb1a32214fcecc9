"""Validates a prompt before anything is computed for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from minitrain.errors import InputError
from minitrain.inference.parameters import as_whole
from minitrain.model.config import ModelConfig


def as_tokens(prompt: Sequence[int]) -> list[int]:
    """A list, an array or a tensor (T,) of token numbers; InputError for all else, as for a text,
    whose digits would be numbers too."""
    try:
        ordered = not isinstance(prompt, (str, bytes, Mapping, Set))
        tokens = list(map(as_whole, prompt)) if ordered else None
    except TypeError:  # no collection
        tokens = None
    if tokens is None or None in tokens:
        raise InputError(
            f"a prompt is {prompt!r:.40}: give a list of token numbers, tokenizer.encode(text)"
        )
    return tokens


def check_readable(prompt: list[int], max_new_tokens: int, config: ModelConfig) -> None:
    """InputError for tokens that the model does not have, and texts longer than it was made for."""
    if not prompt:
        raise InputError("the prompt is empty and one token is needed: begin with bos")
    vocabulary, longest = config.vocab_size, config.max_length
    if odd := [token for token in prompt if not 0 <= token < vocabulary]:
        raise InputError(
            f"token {odd[0]} is none of the model's 0 to {vocabulary - 1}: encode the prompt with "
            "the model's own tokenizer"
        )
    if len(prompt) + max_new_tokens > longest:
        raise InputError(
            f"a prompt of {len(prompt)} tokens and an answer of up to {max_new_tokens} are longer "
            f"than the {longest} tokens that the model can read: shorten one of them"
        )
