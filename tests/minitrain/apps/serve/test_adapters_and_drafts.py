"""Adapters, each a model of its own in the batches of the model without any; and speculation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace

import openai
import pytest
import torch

from minitrain.apps.serve.command import ServeOptions, open_bank, open_served
from minitrain.errors import InputError
from minitrain.finetuning.merging import merge_and_unload
from minitrain.finetuning.model import adapt
from minitrain.finetuning.peft_files import save_adapter
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.draft_model import DraftModel
from minitrain.inference.speculation.serving import EngineDrafts
from minitrain.model.hub.load import save_pretrained

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


# --- speculation ---

TEXTS = ["Once upon a time", "Once upon a", "The cat", "A"]
GREEDY = {"model": "small", "max_tokens": 16, "temperature": 0}


def texts_of(running) -> list[str]:
    create = running.client.completions.create
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda prompt: create(prompt=prompt, **GREEDY), TEXTS)
        return [answer.choices[0].text for answer in answers]


def test_clients_see_the_same_text_and_metrics_what_was_kept(given):
    with serving(given) as plain:
        wanted = texts_of(plain)
        assert plain.metric("spec_decode_num_draft_tokens_total") == 0
    drafts = EngineDrafts(DraftModel(given.model, rows=4), 3)
    with serving(given, proposer=drafts) as running:
        assert texts_of(running) == wanted
        drafted, kept = (
            running.metric(f"spec_decode_num_{which}_tokens_total")
            for which in ("draft", "accepted")
        )
        assert 0.8 * drafted < kept <= drafted and kept > 20
    assert not drafts.unshown


def test_the_command_hands_its_draft_on(given, tmp_path):
    save_pretrained(given.model, tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(given.files["tokenizer.json"])
    plain = ServeOptions(str(tmp_path), max_running=4, max_requests=64, device="cpu")
    served = open_served(replace(plain, draft="layers-1", draft_length=3, drawn_drafts=True))
    drafts = served.loop.engine.proposer
    assert isinstance(drafts.proposer, DraftModel) and len(drafts.proposer.read) == 4
    assert drafts.drawn and drafts.length.next("any") == 3
    assert type(open_served(plain).loop.engine) is Engine
