"""Adapters, each asked for as a model of its own, in the same batches as the model without any."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace

import openai
import pytest
import torch

from minitrain.apps.serve.command import open_bank
from minitrain.errors import InputError
from minitrain.finetuning.merging import merge_and_unload
from minitrain.finetuning.model import adapt
from minitrain.finetuning.peft_files import save_adapter
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters

from .serving import serving

PROMPT = list(range(5, 25))


@pytest.fixture(scope="module")
def adapted(given, tmp_path_factory):
    """A model in double precision, folders of two adapters, and what each alone would tell."""
    base, folders = deepcopy(given.model).double(), {}
    told = {"small": tells(base)}
    for seed, name in enumerate(("french", "sql")):
        model = adapt(deepcopy(base), "lora", rank=3 + seed, seed=seed)
        torch.manual_seed(seed)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(std=0.3)
        folders[name] = tmp_path_factory.mktemp(name)
        save_adapter(model, folders[name])
        told[name] = tells(merge_and_unload(model))
    return replace(given, model=base), list(folders.items()), told


def tells(model) -> list[int]:
    return Engine(model, 32).generate([PROMPT], SamplingParameters(16))[0].tokens


def test_each_name_answers_as_its_own_model_in_one_batch(adapted):
    small, folders, told = adapted
    bank = open_bank(small.model, folders, "small")
    assert len({tuple(tokens) for tokens in told.values()}) == 3
    with serving(small, bank=bank, adapters=tuple(name for name, _ in folders)) as running:
        assert [model.id for model in running.client.models.list()] == ["small", "french", "sql"]

        def asks(name: str):
            return running.client.completions.create(
                model=name, prompt=PROMPT, max_tokens=16, temperature=0
            )

        with ThreadPoolExecutor(6) as pool:
            names = list(told) * 2
            answers = list(pool.map(asks, names))
        decode = small.language().decode
        for name, answer in zip(names, answers):
            assert answer.model == name
            assert decode(PROMPT + told[name]).endswith(answer.choices[0].text)
        texts = {answer.choices[0].text for answer in answers}
        assert len(texts) == 3
        with pytest.raises(openai.NotFoundError, match="ask for 'small' or 'french' or 'sql'"):
            asks("klingon")


@pytest.mark.parametrize("names", [("small",), ("a", "a")])
def test_two_models_of_one_name_are_refused(adapted, names):
    small, folders, _ = adapted
    with pytest.raises(InputError, match="would be two models"):
        open_bank(small.model, [(name, folders[0][1]) for name in names], "small")
