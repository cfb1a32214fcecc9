"""What is learned are the tokens that inference meets, of vocabularies of every kind."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer

from minitrain.apps.finetune.jsonl import Chat, Example
from minitrain.apps.finetune.text import Encoder, rows_of
from minitrain.apps.language import Language
from minitrain.data.corpus import make_corpus
from minitrain.errors import InputError
from minitrain.model.hub.text import TextFiles, fast_tokenizer

from ..serve.templates import CHATML, TEMPLATES

BEGIN, END, TURN = "<s>", "</s>", "<|im_end|>"
PARTS = st.sampled_from([*"ab c\n\t<>|é😀日한!", " dog", " chien", "\u0301"])
TEXTS = st.lists(PARTS, max_size=12).map("".join)
SAID = TEXTS.filter(str.strip)


def byte_level() -> Tokenizer:
    """As GPT-2's and Qwen's: it begins a text with nothing; offsets leave spaces out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, initial_alphabet=alphabet)


def sentence_piece(scheme: bool) -> Tokenizer:
    """As Llama 2's, in its old and its new form: ▁ before a text, bytes for rare characters."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if scheme:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer = trained(tokenizer, bytes_too=True)
    begin = (BEGIN, tokenizer.token_to_id(BEGIN))
    tokenizer.post_processor = processors.TemplateProcessing(f"{BEGIN} $A", None, [begin])
    return tokenizer


def trained(tokenizer: Tokenizer, bytes_too: bool = False, **more) -> Tokenizer:
    known = ["<unk>", BEGIN, END, TURN]
    known += [f"<0x{byte:02X}>" for byte in range(256)] if bytes_too else []
    trainer = BpeTrainer(
        vocab_size=700, special_tokens=known, show_progress=False, max_token_length=8, **more
    )
    words = [" ".join(text.split()[:60]) for text in make_corpus(30_000).documents]
    tokenizer.train_from_iterator([*words, "a dog chien b dog chien"] * 3, trainer)
    return tokenizer


def ended(tokenizer: Tokenizer) -> Tokenizer:
    """One that ends each text, too."""
    pair = [(name, tokenizer.token_to_id(name)) for name in (BEGIN, END)]
    tokenizer.post_processor = processors.TemplateProcessing(f"{BEGIN} $A {END}", None, pair)
    return tokenizer


def padded(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(4)
    return tokenizer


TOKENIZERS = {
    "byte level": byte_level(),
    "prepended": sentence_piece(False),
    "metaspace": sentence_piece(True),
}


def files_of(tokenizer: Tokenizer, template: str | None = None) -> TextFiles:
    """config.json names a begin token in any case, as Qwen's does."""
    settings = {"bos_token": BEGIN, "eos_token": END, "unk_token": "<unk>"}
    if template is not None:
        settings["chat_template"] = template
    ids = (tokenizer.token_to_id(BEGIN), (tokenizer.token_to_id(END),))
    return TextFiles(fast_tokenizer(tokenizer.to_str(), settings), *ids)


def transformers_of(files: TextFiles, folder: Path) -> AutoTokenizer:
    for name, content in files.tokenizer.items():
        (folder / name).write_bytes(content)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_an_example_is_encoded_as_one_text(kind):
    files = files_of(TOKENIZERS[kind])
    encoder, language = Encoder(files), Language.of(files.tokenizer)

    @settings(max_examples=150, deadline=None)
    @given(prompt=TEXTS, completion=SAID)
    def holds(prompt, completion):
        tokens, learned = encoder.encoded(Example(prompt, completion))
        assert tokens == language.encode(prompt + completion)
        first = learned.index(1)
        assert all(learned[first:]), "all that follows is learned"
        if first and tokens[: len(language.encode(prompt))] == language.encode(prompt):
            assert first == len(language.encode(prompt)), "no token of the prompt is"

    holds()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_row_begins_as_a_prompt_does(kind):
    """Only a text that is learned whole has the end token before it, to predict its first by."""
    tokenizer = TOKENIZERS[kind]
    files = files_of(tokenizer)
    encoder, language = Encoder(files), Language.of(files.tokenizer)
    examples = [Example("a dog", " Rosa has a dog."), Example("Who", "?"), Example("", "a")]
    for length in (64, 14):  # each whole in the one row, or cut
        rows = rows_of(examples, encoder, length)
        of_one = [rows.documents == place for place in range(3)]
        for example, own in zip(examples, of_one):
            tokens = language.encode(example.prompt + example.completion)
            before = (
                [] if tokens[0] == tokenizer.token_to_id(BEGIN) or example.prompt else [encoder.end]
            )
            assert rows.tokens[own].tolist() == [*before, *tokens]
            told = [t for t in rows.targets[own].tolist() if t >= 0]
            count = sum(encoder.encoded(example)[1])
            assert told == [*tokens[len(tokens) - count :], encoder.end]


def test_what_a_tokenizer_puts_after_a_text_is_packings():
    encoder = Encoder(files_of(ended(sentence_piece(False))))
    rows = rows_of([Example("a", " dog")], encoder, 16)
    assert rows.targets[0].tolist().count(encoder.end) == 1
    assert encoder.end not in rows.tokens[0][rows.targets[0] >= 0]


def test_padding_and_truncation_do_not_matter():
    example = Example("a dog " * 9, " chien" * 9)
    bare, saved = (Encoder(files_of(make())) for make in (byte_level, lambda: padded(byte_level())))
    assert bare.encoded(example) == saved.encoded(example)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("template", ["headers_marked", "chatml_marked"])
def test_a_marked_chat_is_masked_as_transformers_does(kind, template, tmp_path):
    files = files_of(TOKENIZERS[kind], TEMPLATES[template])
    theirs, encoder = transformers_of(files, tmp_path), Encoder(files)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.tuples(TEXTS, SAID), min_size=1, max_size=3))
    def holds(said):
        roles = ("user", "assistant")
        messages = [{"role": r, "content": c} for turn in said for r, c in zip(roles, turn)]
        want = theirs.apply_chat_template(messages, return_assistant_tokens_mask=True)
        mask = want["assistant_masks"]
        for place, spans in enumerate(itertools.pairwise(want.encodings[0].offsets), 1):
            if mask[place - 1] and spans[0] == spans[1]:  # they mark the first byte of a character
                mask[place] = 1
        tokens, learned = encoder.encoded(Chat(tuple(messages)))
        assert (tokens, learned) == (want["input_ids"], mask)

    holds()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_an_unmarked_chat_is_learned_from_where_the_assistant_is_asked(kind):
    """The same as a marked one whose marks lie there; the prompt is what the server encodes."""
    marked = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<|im_end|>\n{% endgeneration %}"
        "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    one, other = (Encoder(files_of(TOKENIZERS[kind], text)) for text in (CHATML, marked))
    language = Language.of(files_of(TOKENIZERS[kind], CHATML).tokenizer)
    rng = random.Random(0)
    for _ in range(20):
        words = ["".join(rng.choices([*"ab é😀日", " dog", "\n"], k=9)) for _ in range(4)]
        roles = ("user", "assistant") * 2
        chat = Chat(tuple({"role": r, "content": f"-{c}-"} for r, c in zip(roles, words)))
        tokens, learned = one.encoded(chat)
        assert (tokens, learned) == other.encoded(chat)
        prompt = language.encode_chat(chat.messages[:3])
        assert tokens[: len(prompt)] == prompt and all(learned[len(prompt) :])


def test_a_template_that_forgets_earlier_turns_is_refused():
    """As those of models that think do, which leave thoughts out once another turn follows."""
    encoder = Encoder(files_of(TOKENIZERS["byte level"], "{{ messages[-1].content }}"))
    roles = ("user", "assistant", "user", "assistant")
    with pytest.raises(InputError, match="writes a turn differently"):
        encoder.encoded(Chat(tuple({"role": role, "content": role} for role in roles)))


def test_tools_reach_the_template():
    template = "{{ tools | tojson }}{{ more }}{% for m in messages %}<{{ m.content }}>{% endfor %}"
    encoder = Encoder(files_of(TOKENIZERS["byte level"], template))
    messages = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    tokens, learned = encoder.encoded(Chat(messages, {"tools": [{"a": 1}], "more": "c"}))
    assert encoder.backend.decode(tokens) == '[{"a": 1}]c<a><b>'
    assert encoder.backend.decode([t for t, flag in zip(tokens, learned) if flag]) == "<b>"


def test_a_broken_template_matters_to_chats_alone():
    files = files_of(TOKENIZERS["byte level"], "{% if %}")
    encoder = Encoder(files)
    assert encoder.encoded(Example("a", "b"))
    with pytest.raises(InputError, match="chat template refuses"):
        encoder.encoded(Chat(({"role": "assistant", "content": "b"},)))
    assert json.loads(files.tokenizer["tokenizer_config.json"])["chat_template"] == "{% if %}"
