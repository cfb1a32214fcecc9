"""A server whose requests speculate tells what it tells without, and counts what was kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from minitrain.apps.serve.command import ServeOptions, open_served
from minitrain.inference.engine.engine import Engine
from minitrain.inference.speculation.draft_model import DraftModel
from minitrain.inference.speculation.serving import EngineDrafts
from minitrain.model.hub.load import save_pretrained

from .serving import serving

PROMPTS = ["Once upon a time", "Once upon a", "The cat", "A"]
ASKED = {"model": "small", "max_tokens": 16, "temperature": 0}


def told(running) -> list[str]:
    create = running.client.completions.create
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda prompt: create(prompt=prompt, **ASKED), PROMPTS)
        return [answer.choices[0].text for answer in answers]


def test_clients_see_the_same_text_and_metrics_what_was_kept(given):
    with serving(given) as plain:
        wanted = told(plain)
        assert plain.metric("spec_decode_num_draft_tokens_total") == 0
    drafts = EngineDrafts(DraftModel(given.model, rows=4), 3)
    with serving(given, proposer=drafts) as running:
        assert told(running) == wanted
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
