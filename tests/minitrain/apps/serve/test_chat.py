"""A rendered conversation equals transformers', character for character; an error is a sentence."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from minitrain.apps.chat import ChatTemplate
from minitrain.errors import InputError

from .templates import TEMPLATES

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
PROPERTIES = {"b": {"type": "string", "description": "Get <b> & 'é'"}, "a": {"type": "integer"}}
GET = {"name": "get", "parameters": {"type": "object", "properties": PROPERTIES}}
CALL = {"type": "function", "function": {"name": "get", "arguments": {"b": "é<>", "a": 1}}}
USER = {"role": "user", "content": " Hi é <b> "}
HELLO = {"role": "assistant", "content": "Hello 😀"}
CONVERSATIONS = [
    [USER],
    [{"role": "system", "content": "Be brief.\n"}, USER, HELLO, USER],
    [USER, {**HELLO, "refusal": None, "tool_calls": None}, USER, {**HELLO, "content": " Rosa \n"}],
    [USER, {**HELLO, "thinking": "hm"}, USER, {**HELLO, "reasoning": "oh"}],
    [USER, {**HELLO, "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "1"}],
    [{**USER, "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}],
    [HELLO],
]
GIVEN = [
    {},
    {"tools": [{"type": "function", "function": GET}]},
    {"documents": [{"title": "T", "text": "x"}], "enable_thinking": False},
]


@pytest.fixture(scope="module")
def theirs(given):
    backend = Tokenizer.from_str(given.files["tokenizer.json"].decode())
    return PreTrainedTokenizerFast(tokenizer_object=backend, **TOKENS)


def rendered(template, messages, answer=True, given=None):
    try:
        return template.render(messages, answer, given)
    except InputError as error:
        assert "chat template refuses these messages: " in str(error) and "\n" not in str(error)
        return None


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_template_is_rendered_as_transformers_does(theirs, name):
    template, texts = ChatTemplate(TEMPLATES[name], TOKENS), set()
    for messages in CONVERSATIONS:
        for given in GIVEN:
            for answer in (True, False):
                try:
                    asked = {"add_generation_prompt": answer, "tokenize": False, **given}
                    want = theirs.apply_chat_template(
                        messages, chat_template=TEMPLATES[name], **asked
                    )
                except Exception:
                    want = None
                assert rendered(template, messages, answer, given) == want
                texts.add(want)
    assert len(texts) > 3


SNIPPETS = [
    "{% if tools is none %}0{% endif %}{% if documents is not none %}1{% endif %}",
    "{{ tools is defined }}{{ documents is defined }}{{ unk_token }}{{ sep_token is defined }}",
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ {'b': 1, 'a': 2} | tojson }}",
    "{{ messages[0] | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}",
    "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.role }}{% break %}{% endfor %}",
    "{% generation %}a{{ messages[0].content }}{% endgeneration %}b",
    "{{ dict(a=1) }}{{ messages[0].items() | list }}{{ messages[0].get('name', 'x') }}",
    "{% macro say(m) %}[{{ m.content }}]{% endmacro %}{{ say(messages[0]) }}{{ '<&>' | e }}",
]


@pytest.mark.parametrize("source", SNIPPETS)
def test_the_names_a_template_may_use_are_those_of_transformers(theirs, source):
    want = theirs.apply_chat_template([USER], tokenize=False, chat_template=source)
    assert ChatTemplate(source, TOKENS).render([USER], answer=False) == want != ""


@pytest.mark.parametrize(
    "source, words",
    [
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('only\nusers') }}", "only users"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ nobody() }}", "'nobody' is undefined"),
        ("{{ messages[0].content | what }}", "No filter named 'what'"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os }}", "unsafe"),
        ("{% include 'another' %}", "no loader"),
        ("{{ range(10 ** 9) | list }}", "OverflowError: Range too big"),
        ({"rag": "a", "agent": "b"}, "there are rag, agent, and none is called default"),
    ],
)
def test_a_template_that_fails_is_one_sentence(source, words):
    with pytest.raises(InputError, match="chat template refuses these messages: ") as caught:
        ChatTemplate(source, {}).render([USER])
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_of_several_templates_that_for_tools_is_taken():
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    config = json.dumps({"chat_template": named}).encode()
    template = ChatTemplate.of({"tokenizer_config.json": config})
    assert template.render([USER]) == "plain"
    assert template.render([USER], given={"tools": GIVEN[1]["tools"]}) == "tools"


@pytest.mark.parametrize("new", [True, False])
def test_special_tokens_are_transformers(given, tmp_path, new):
    """The map counts only beside an older configuration; added ones have names of their own."""
    eos = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": True}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": eos}
    config |= {"add_bos_token": True, "pad_token": None, "unk_token": "<unk>"}
    config |= {"boi_token": "<i>", "extra_special_tokens": {"image": "<im>"}}
    config |= {"added_tokens_decoder": {}} if new else {}
    files = {
        "tokenizer.json": given.files["tokenizer.json"],
        "tokenizer_config.json": json.dumps(config).encode(),
        "special_tokens_map.json": json.dumps({"unk_token": "<other>"}).encode(),
        "chat_template.jinja": b"{{ bos_token }}{{ eos_token }}{{ pad_token }}",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    template = ChatTemplate.of(files)
    assert template.special_tokens == theirs.special_tokens_map
    assert template.render([USER]) == "<s></s>"


@pytest.mark.parametrize(
    "name, content",
    [
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[1]"),
        ("special_tokens_map.json", b"\xff"),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, content):
    with pytest.raises(InputError, match=f"the tokenizer's {name} is "):
        ChatTemplate.of({name: content})


def test_a_model_without_a_template():
    assert ChatTemplate.of({}) is None
    assert ChatTemplate.of({"tokenizer_config.json": b'{"chat_template": null}'}) is None
