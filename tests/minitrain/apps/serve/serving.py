"""A real server on a port of this machine, in a thread, with a random model and a real tokenizer."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import httpx
import torch
from openai import OpenAI

from minitrain.apps.language import Language
from minitrain.apps.listening import listen
from minitrain.apps.serve.app import DrainingServer, Served
from minitrain.apps.serve.loop import EngineLoop
from minitrain.apps.serve.metrics import Metrics
from minitrain.data.corpus import make_corpus
from minitrain.data.tokenizer import END, train_tokenizer
from minitrain.finetuning.many import AdapterBank
from minitrain.inference.engine.engine import Engine
from minitrain.inference.speculation.serving import EngineDrafts, SpeculativeEngine
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build

VOCABULARY, LONGEST = 300, 512
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True)
class Small:
    model: Transformer
    files: dict[str, bytes]
    end: int

    def language(self, ends: tuple[int, ...] = (), template: str | None = TEMPLATE) -> Language:
        config = {} if template is None else {"chat_template": template}
        files = self.files | {"tokenizer_config.json": json.dumps(config).encode()}
        return Language.of(files, (self.end,), ends)


def small() -> Small:
    tokenizer = train_tokenizer(make_corpus(12_000, 0).documents, VOCABULARY)
    torch.manual_seed(0)
    model = build(
        ModelConfig(VOCABULARY, 32, layers=2, heads=4, kv_heads=2, ffn_size=64, max_length=LONGEST)
    )
    files = {"tokenizer.json": tokenizer.backend.to_str().encode()}
    return Small(model, files, tokenizer.backend.token_to_id(END))


@dataclass(frozen=True)
class Running:
    url: str
    served: Served
    server: DrainingServer
    thread: threading.Thread

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    @property
    def client(self) -> OpenAI:
        key = self.served.api_key or "none"
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30)

    def metric(self, name: str) -> float:
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith(f"minitrain:{name} "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")


@contextlib.contextmanager
def serving(
    given: Small,
    language: Language | None = None,
    num_blocks: int = 128,
    grace: float = 5.0,
    max_requests: int = 64,
    bank: AdapterBank | None = None,
    proposer: EngineDrafts | None = None,
    **more,
) -> Iterator[Running]:
    language = language or given.language()
    make = Engine if proposer is None else partial(SpeculativeEngine, proposer=proposer)
    engine = make(given.model, num_blocks, 16, decode=language.decode, adapters=bank)
    loop = EngineLoop(engine, Metrics(), max_requests)
    served = Served("small", language, loop, **more)
    server = DrainingServer(served, grace)
    listening = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield Running(url, served, server, thread)
    finally:
        server.should_exit = True
        loop.drain(0.0)
        thread.join(20)
        assert not thread.is_alive() and not loop.thread.is_alive()


@contextlib.contextmanager
def slowed(running: Running, seconds: float) -> Iterator[None]:
    """Each step takes so much longer: what is to happen in the middle of an answer does."""
    engine = running.served.loop.engine
    step = engine.step

    def slowly():
        time.sleep(seconds)
        return step()

    engine.step = slowly
    yield
    engine.step = step


def wait_until(true: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
