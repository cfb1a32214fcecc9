"""What OpenAI's own client is told is what the engine tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from minitrain.apps.serve.schemas import AskedChat
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters

from .serving import serving

PROMPT = "Once upon a time"
WARM = SamplingParameters(max_new_tokens=20, temperature=1.5, top_k=50, top_p=0.9, seed=3)
ASKED = {
    "model": "small",
    "max_tokens": 20,
    "temperature": 1.5,
    "top_p": 0.9,
    "seed": 3,
    "extra_body": {"top_k": 50},
}


def engine_says(running, tokens, *parameters):
    language = running.served.language
    engine = Engine(running.served.loop.engine.runner.model, 128, 16, decode=language.decode)
    return engine.generate([tokens] * len(parameters), list(parameters))


def test_whole_equals_streamed_equals_the_engine(running):
    language = running.served.language
    (said,) = engine_says(running, language.encode(PROMPT), WARM)
    whole = running.client.completions.create(prompt=PROMPT, **ASKED)
    chunks = list(
        running.client.completions.create(
            prompt=PROMPT, stream=True, stream_options={"include_usage": True}, **ASKED
        )
    )
    streamed = "".join(chunk.choices[0].text for chunk in chunks[:-1])
    assert whole.choices[0].text == streamed == said.text != ""
    assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "length"
    assert len(chunks) > 5 and chunks[-1].choices == []
    details = {"prompt_tokens_details"}  # the second one's prompt is known by then
    assert chunks[-1].usage.model_dump(exclude=details) == whole.usage.model_dump(exclude=details)
    assert whole.usage.prompt_tokens == len(language.encode(PROMPT))
    assert whole.usage.completion_tokens == 20


def test_n_answers_are_those_of_the_following_seeds(running):
    tokens = running.served.language.encode(PROMPT)
    said = engine_says(running, tokens, *(replace(WARM, seed=3 + place) for place in range(3)))
    best = {"n": 3, "best_of": 3}  # all of them are the best of so many
    whole = running.client.completions.create(prompt=PROMPT, **best, **ASKED)
    texts = ["", "", ""]
    for chunk in running.client.completions.create(prompt=PROMPT, n=3, stream=True, **ASKED):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [choice.text for choice in whole.choices] == texts == [one.text for one in said]
    assert len(set(texts)) == 3
    assert whole.usage.prompt_tokens == len(tokens) and whole.usage.completion_tokens == 60


def test_what_was_known_of_a_prompt_is_in_the_usage(running):
    """In whole blocks of 16, and never the last token; of several answers to it, once."""
    tokens = [5 + place % 250 for place in range(49)]
    create = running.client.completions.create
    asked = {**ASKED, "prompt": tokens, "max_tokens": 2}
    first, again = create(**asked).usage, create(**asked).usage
    assert first.prompt_tokens_details.cached_tokens == 0
    assert again.prompt_tokens_details.cached_tokens == 48 and again.prompt_tokens == 49
    shorter = create(**{**asked, "prompt": tokens[:48]}).usage
    assert shorter.prompt_tokens_details.cached_tokens == 32
    several = list(create(**asked, n=3, stream=True, stream_options={"include_usage": True}))
    assert several[-1].usage.prompt_tokens_details.cached_tokens == 48


def test_several_prompts_as_texts_and_as_tokens(running):
    encode = running.served.language.encode
    texts = ["Once upon", "The big dog"]
    create = running.client.completions.create
    alone = [create(prompt=encode(text), **ASKED).choices[0].text for text in texts]
    for prompt in (texts, [encode(text) for text in texts]):
        assert [c.text for c in create(prompt=prompt, **ASKED).choices] == alone


def test_a_chat_is_its_template_completed(running):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    ]
    tokens = running.served.language.tokenizer.encode(
        "system: Be brief.\nuser: Hello\nassistant:", add_special_tokens=False
    ).ids
    (said,) = engine_says(running, tokens, WARM)
    chats = running.client.chat.completions
    whole = chats.create(messages=messages, **ASKED)
    chunks = list(chats.create(messages=messages, stream=True, **ASKED))
    assert chunks[0].choices[0].delta.role == "assistant"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert whole.choices[0].message.content == streamed == said.text


NEUTRAL = {
    "audio": [None],
    "function_call": ["none", "auto"],
    "functions": [[]],
    "logit_bias": [{}, None],
    "logprobs": [False, None],
    "max_completion_tokens": [None, 20],
    "metadata": [None, {}],
    "modalities": [["text"], None],
    "moderation": [None],
    "n": [1, None],
    "parallel_tool_calls": [True, False],
    "prediction": [None],
    "prompt_cache_key": ["a", None],
    "prompt_cache_options": [None, {"mode": "implicit", "ttl": "30m"}],
    "prompt_cache_retention": ["in_memory", None],
    "reasoning_effort": [None],
    "response_format": [{"type": "text"}],
    "safety_identifier": ["a", None],
    "service_tier": ["auto", "default", None],
    "stop": [None, []],
    "store": [False, None],
    "stream": [False, None],
    "stream_options": [None],
    "tool_choice": ["none", "auto"],
    "tools": [[]],
    "top_logprobs": [None, 0],
    "user": ["a"],
    "verbosity": ["medium", None],
    "web_search_options": [None],
}


def test_a_value_that_changes_nothing_is_taken(running):
    """Of every parameter that OpenAI's client documents."""
    create = running.client.chat.completions.create
    asked = {**ASKED, "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}
    said = create(**asked).choices[0].message
    sampling = {"temperature", "top_p", "seed", "frequency_penalty", "presence_penalty"}
    documented = CompletionCreateParamsBase.__annotations__.keys() | {"stream"}
    assert documented - sampling - {"model", "messages", "max_tokens"} == set(NEUTRAL)
    for name, values in NEUTRAL.items():
        for value in values:
            body = {**asked["extra_body"], name: value}  # a null is sent so, too
            assert create(**{**asked, "extra_body": body}).choices[0].message == said, name


def parts_of(message) -> dict:
    """A dump whose content is a list of parts, with fields that hold nothing."""
    content = [{"type": "text", "text": message.content}]
    return {**message.model_dump(), "annotations": [], "tool_calls": [], "content": content}


@pytest.mark.parametrize(
    "kept",
    [
        lambda message: message,
        lambda message: message.model_dump(exclude_unset=True),
        lambda message: {"role": "assistant", "content": message.content, "parsed": None},
        parts_of,
    ],
)
def test_turns_of_openais_client(running, kept):
    """Each answer goes back as the client holds it, and is read as what was said."""
    messages, plain = [], ""
    for turn in range(4):
        messages += [{"role": "user", "content": f"{turn}"}]
        plain += f"user: {turn}\n"
        create = running.client.chat.completions.create
        told = create(messages=messages, **{**ASKED, "max_tokens": 4})
        encode = running.served.language.tokenizer.encode
        tokens = encode(f"{plain}assistant:", add_special_tokens=False).ids
        assert told.usage.prompt_tokens == len(tokens)
        messages += [kept(told.choices[0].message)]
        plain += f"assistant: {told.choices[0].message.content}\n"


def test_nothing_said_is_an_empty_message(running):
    """As OpenAI's `content: null`; a name goes to the template."""
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "a", "name": "Rosa"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
    ]
    asked = AskedChat.model_validate({"model": "small", "messages": messages})
    assert [message.plain for message in asked.messages] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a", "name": "Rosa"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "bc"},
    ]
    assert running.client.chat.completions.create(messages=messages, **ASKED).choices


def test_a_chat_without_a_length_goes_to_the_end_of_what_fits(running):
    asked = {k: v for k, v in ASKED.items() if k != "max_tokens"}
    whole = running.client.chat.completions.create(
        messages=[{"role": "user", "content": "a " * 225}], **asked
    )
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.total_tokens == running.served.loop.engine.config.max_length


def test_log_probabilities_are_the_models(running):
    tokens = running.served.language.encode(PROMPT)
    (said,) = engine_says(running, tokens, replace(WARM, log_probabilities=2))
    choice = running.client.completions.create(prompt=PROMPT, logprobs=2, **ASKED).choices[0]
    assert choice.logprobs.token_logprobs == [one.log_probability for one in said.drawn]
    pieces = choice.logprobs.tokens
    assert "".join(pieces) == choice.text == said.text and len(pieces) == 20
    assert choice.logprobs.text_offset == [len("".join(pieces[:n])) for n in range(20)]
    for one, log in zip(choice.logprobs.top_logprobs, choice.logprobs.token_logprobs):
        assert 2 <= len(one) <= 3 and log in one.values()  # the token's own, and the 2 likeliest
    chat = running.client.chat.completions.create(
        messages=[{"role": "user", "content": "a"}], logprobs=True, top_logprobs=3, **ASKED
    ).choices[0]
    assert len(chat.logprobs.content) == 20
    for one in chat.logprobs.content:
        values = [likely.logprob for likely in one.top_logprobs]
        assert len(values) == 3 and values == sorted(values, reverse=True)
        assert one.logprob <= values[0] <= 0
    content = chat.message.content
    assert "".join(one.token for one in chat.logprobs.content) == content
    data = bytes(byte for one in chat.logprobs.content for byte in one.bytes)
    assert data.decode(errors="replace") == content


def test_stop_strings_and_end_tokens(running, given):
    free = running.client.completions.create(prompt=PROMPT, **ASKED).choices[0].text
    stop = free[6:9]
    cut = running.client.completions.create(prompt=PROMPT, stop=[stop, "§"], **ASKED).choices[0]
    assert cut.text == free[: free.index(stop)] and cut.finish_reason == "stop"
    (said,) = engine_says(running, running.served.language.encode(PROMPT), WARM)
    with serving(given, given.language(ends=(said.tokens[5],))) as ending:
        told = ending.client.completions.create(prompt=PROMPT, **ASKED)
        assert told.choices[0].finish_reason == "stop"
        assert told.usage.completion_tokens == said.tokens.index(said.tokens[5])
        body = {**ASKED["extra_body"], "ignore_eos": True}
        on = ending.client.completions.create(prompt=PROMPT, **{**ASKED, "extra_body": body})
        assert on.choices[0].text == said.text


def test_without_a_seed_answers_differ(running):
    asked = {k: v for k, v in ASKED.items() if k != "seed"}
    create = running.client.completions.create
    assert len({create(prompt=PROMPT, **asked).choices[0].text for _ in range(3)}) == 3


def test_models_and_metrics(running):
    listed = list(running.client.models.list())
    assert [model.id for model in listed] == ["small"]
    assert running.client.models.retrieve("small") == listed[0]
    before = running.metric("generation_tokens_total")
    running.client.completions.create(prompt=PROMPT, **ASKED)
    assert running.metric("generation_tokens_total") == before + 20
    assert running.metric("kv_cache_usage_perc") == 0
    assert running.metric('request_success_total{finished_reason="length"}') >= 1
    assert running.metric("time_to_first_token_seconds_count") >= 1
