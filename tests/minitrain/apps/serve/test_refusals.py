"""What cannot be served is one sentence, in OpenAI's body, and leaves nothing behind."""

from __future__ import annotations

import httpx
import openai
import pytest

from minitrain.apps.serve.schemas import UnsupportedInChats, UnsupportedInMessages

from .serving import serving

FINE = {"model": "small", "prompt": "Once", "max_tokens": 4}
CHAT = {"model": "small", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}


def post(running, body, path="completions", **more):
    if isinstance(body, dict):
        return httpx.post(f"{running.url}/v1/{path}", json=body, timeout=30, **more)
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{running.url}/v1/{path}", content=body, headers=headers, timeout=30)


def refused(reply, status, words, param=None):
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert words in error["message"], error
    if param is not None:
        assert error["param"].startswith(param), error
    assert "Traceback" not in reply.text


NOT_JSON = (b"", b"{", b"nonsense", b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 10_000)


def test_what_is_no_object_of_json(running):
    for body in NOT_JSON:
        refused(post(running, body), 400, "not JSON")
    for body in (b"[]", b"5", b"null", b'"text"'):
        refused(post(running, body), 400, "object")


WRONG = {
    "max_tokens": ["4", 0, 1.5, True],
    "temperature": [-1, "hot"],
    "top_p": [0, 1.1],
    "top_k": [-2],
    "n": [0, 10**6],
    "seed": [2**63],
    "model": [5],
    "logprobs": [21],
    "stream": ["yes"],
    "stream_options": [{"usage": True}],
    "max_token": [5],
}
WRONG_IN_CHATS = {
    "messages": [[], "hello", [{"role": "king", "content": "a"}], [{"role": "user"}]],
    "top_logprobs": [-1],
}


def test_a_field_of_another_type_or_range_is_named(running):
    for field, values in WRONG.items():
        for value in values:
            refused(post(running, FINE | {field: value}), 400, field, field)
    for field, values in WRONG_IN_CHATS.items():
        for value in values:
            reply = post(running, CHAT | {field: value}, "chat/completions")
            refused(reply, 400, field, field)


PROMPTS = "Input should be a string, a list of strings, a list of tokens, or a list of lists"


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("content", [{"type": "image_url"}], "content.0.type is wrong: Input should be 'text'"),
        ("content", [{"type": "text", "text": "a"}, 5], "content.1 is wrong: Input should be an "),
        ("content", 5, "content is wrong: Input should be a string or a list of text parts"),
        ("content", None, "content is missing"),
        ("prompt", [True], f"prompt is wrong: {PROMPTS}"),
        ("prompt", ["a", 5], "prompt.1 is wrong: Input should be a valid string"),
        ("prompt", [-1], "prompt.0 is wrong: Input should be greater than or equal to 0"),
        ("prompt", [[5], ["a"]], "prompt.1.0 is wrong: Input should be a valid integer"),
        ("stop", ["a", ""], "stop.1 is wrong: String should have at least 1 character"),
        ("stop", ["a"] * 17, "stop is wrong: List should have at most 16 items"),
        ("stop", 5, "stop is wrong: Input should be a string or a list of strings"),
        ("<stop", 5, "<stop is not a parameter that this server knows"),
    ],
)
def test_of_a_union_the_member_that_is_meant_is_named(running, field, value, words):
    if field == "content":
        body, path = CHAT | {"messages": [{"role": "user", "content": value}]}, "chat/completions"
        return refused(post(running, body, path), 400, f"messages.0.{words}", "messages.0.content")
    return refused(post(running, FINE | {field: value}), 400, words, field)


LACKED = {"best_of": 3, "echo": True, "suffix": "the end", "logit_bias": {"5": 1}}
NEVER = {"another": "value"}  # of none of them is this a neutral one


def test_what_openai_has_and_this_server_has_not_is_named(running):
    for field, value in LACKED.items():
        refused(post(running, FINE | {field: value}), 400, f"{field} is not supported", field)
    for field in UnsupportedInChats.model_fields.keys() - {"parallel_tool_calls"}:
        reply = post(running, CHAT | {field: NEVER}, "chat/completions")
        refused(reply, 400, f"{field} is not supported by this server: leave it out", field)
    for field, value in {"tool_choice": "required", "store": True, "verbosity": "low"}.items():
        reply = post(running, CHAT | {field: value}, "chat/completions")
        refused(reply, 400, f"{field} is not supported by this server", field)
    for field in UnsupportedInMessages.model_fields:
        message = {"role": "assistant", "content": "a", field: NEVER}
        reply = post(running, CHAT | {"messages": [message]}, "chat/completions")
        place = f"messages.0.{field}"
        refused(reply, 400, f"{place} is not supported", place)


def test_what_is_no_number(running):
    for value in (b"NaN", b"Infinity", b"1e999"):
        body = b'{"model": "small", "prompt": "a", "temperature": ' + value + b"}"
        refused(post(running, body), 400, "temperature", "temperature")


def test_what_this_model_cannot_do(running):
    refused(post(running, {"model": "small"}), 400, "prompt is missing", "prompt")
    reply = post(running, CHAT | {"top_logprobs": 3}, "chat/completions")
    refused(reply, 400, "top_logprobs is wrong: Input should come with logprobs", "top_logprobs")
    refused(post(running, FINE | {"prompt": "a " * 2000}), 400, "longer than the 512")
    refused(post(running, FINE | {"max_tokens": 10**6}), 400, "longer than the 512")
    refused(post(running, FINE | {"prompt": [299, 300]}), 400, "token 300 is none of the model's")
    refused(post(running, FINE | {"n": 65}), 400, "65 answers are requested at once")


def test_one_prompt_of_several_that_cannot_be_served_stops_all(running):
    refused(post(running, FINE | {"prompt": [[5], [6], [300]]}), 400, "token 300")
    assert running.metric("num_requests_waiting") == running.metric("kv_cache_blocks_used") == 0
    assert post(running, FINE).status_code == 200


def test_more_than_the_pool_can_ever_hold(given):
    with serving(given, num_blocks=4) as few:
        refused(post(few, FINE | {"max_tokens": 100}), 400, "the pool has 4")
        told = post(few, {k: v for k, v in CHAT.items() if k != "max_tokens"}, "chat/completions")
        assert told.status_code == 200  # what was not asked for is fitted


def test_an_unknown_model_and_address(running):
    with pytest.raises(openai.NotFoundError) as caught:
        running.client.completions.create(model="large", prompt="a")
    assert caught.value.code == "model_not_found" and "'small'" in str(caught.value)
    with pytest.raises(openai.NotFoundError, match="ask for 'small'"):
        running.client.models.retrieve("large")
    refused(httpx.get(f"{running.url}/v1/nothing"), 404, "GET /v1/nothing is not served")
    refused(httpx.get(f"{running.url}/v1/completions"), 405, "not served")


def test_a_model_without_a_template_does_not_chat(given):
    with serving(given, given.language(template=None)) as mute:
        refused(post(mute, CHAT, "chat/completions"), 400, "no chat template", "messages")
        assert post(mute, FINE).status_code == 200


def test_a_template_that_fails_is_a_400_and_the_model_still_completes(given):
    with serving(given, given.language(template="{{ raise_exception('user first') }}")) as one:
        refused(post(one, CHAT, "chat/completions"), 400, "user first", "messages")
        assert post(one, FINE).status_code == 200


def test_a_body_that_is_too_large_or_of_another_kind(given):
    with serving(given, body_bytes=1000) as one:
        refused(post(one, FINE | {"prompt": "a" * 2000}), 413, "larger than 1000 B")
        parts = (b"[" * 600 for _ in range(3))  # its length is not told
        refused(post(one, parts), 413, "larger than")
        refused(httpx.post(f"{one.url}/v1/completions", data=FINE), 415, "application/json")


def test_a_key(given):
    with serving(given, api_key="só-secret") as locked:
        key = {"Authorization": "Bearer wrong"}
        refused(post(locked, FINE), 401, "key")
        refused(post(locked, FINE, headers=key), 401, "key")
        refused(post(locked, CHAT, "chat/completions"), 401, "key")
        refused(httpx.get(f"{locked.url}/v1/models"), 401, "key")
        good = {"Authorization": "Bearer só-secret".encode()}
        assert post(locked, FINE, headers=good).status_code == 200
        assert httpx.get(f"{locked.url}/health").status_code == 200
