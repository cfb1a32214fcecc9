"""A request handed from one engine to another in this process: all it needs, and nothing less."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.inference.disaggregated.roles import Handover, adopt
from minitrain.inference.disaggregated.transfer import take
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

CONFIG = ModelConfig(61, 32, 2, heads=4, kv_heads=2, ffn_size=40, max_length=256)
GREEDY = SamplingParameters(12)
DRAWN = SamplingParameters(12, temperature=1.5, top_p=0.95, seed=3)
PROMPT = [(7 * place) % 58 + 3 for place in range(11)]  # two pages of 4 and three tokens
OTHER = [5, 9, 4, 8, 3]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build(CONFIG, dtype=torch.float64)


def engine(model, num_blocks: int = 40) -> Engine:
    return Engine(model, num_blocks, block_size=4, max_running=6)


def handed(model, prompt=PROMPT, parameters=GREEDY) -> Handover:
    """Read in an engine whose pages lie elsewhere."""
    first = engine(model)
    first.add(OTHER, GREEDY)
    first.step()
    id = first.add(prompt, parameters)
    (output,) = [output for output in first.step() if output.id == id]
    request = first.requests[id]
    pages = take(first.runner.cache, request.table.blocks)
    state = None if parameters.greedy else request.generator.get_state()
    given = Handover(7, tuple(prompt), parameters, [(0, pages)], output.drawn.token, state)
    first.cancel(id)
    first.add([60] * 40, GREEDY)
    first.step()  # the pages are written over, and what is sent is not
    return given


def goes_on(second: Engine, given: Handover) -> list[int]:
    assert adopt(second, given)
    return [given.token, *(out.drawn.token for out in second.stream() if out.id == "7")]


def alone(model, parameters, prompt=PROMPT) -> list[int]:
    return engine(model).generate([prompt], parameters)[0].tokens


@pytest.mark.parametrize("parameters", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("length", [1, 3, 4, 11, 12, 13])
def test_it_goes_on_as_if_it_had_never_moved(model, parameters, length):
    second = engine(model)
    second.add(OTHER, GREEDY)
    second.step()
    given = handed(model, PROMPT[:1] * (length - 11) + PROMPT[:length], parameters)
    assert goes_on(second, given) == alone(model, parameters, given.prompt)
    assert second.scheduler.blocks.used == 0


LOST = {
    "the last page": lambda given, pages: {"pieces": [(0, pages[:, :, :, :-1])]},
    "the pages' order": lambda given, pages: {"pieces": [(0, pages.flip(3))]},
    "which are keys": lambda given, pages: {"pieces": [(0, pages.flip(0))]},
    "where they begin": lambda given, pages: {"pieces": [(1, pages[:, :, :, :-1])]},
    "the token": lambda given, pages: {"token": 3 + given.token % 50},
    "the generator's state": lambda given, pages: {"state": None},
}


@pytest.mark.parametrize("lost", LOST)
def test_whatever_is_lost_on_the_way_is_seen(model, lost):
    parameters = DRAWN if "state" in lost else GREEDY
    given = handed(model, parameters=parameters)
    wrong = replace(given, **LOST[lost](given, given.pieces[0][1]))
    assert goes_on(engine(model), wrong) != alone(model, parameters)


def test_a_known_prefix_is_not_written_over(model):
    """The second request's pages of the common beginning may be anything: they are not used."""
    second = engine(model)
    adopt(second, handed(model))
    second.step()
    given = handed(model, PROMPT[:8] + OTHER)
    given.number, pages = 8, given.pieces[0][1]
    pages[:, :, :, :2] = torch.nan
    given.pieces = [(0, pages[:, :, :, :1]), (1, pages[:, :, :, 1:])]  # over the prefix's end
    assert adopt(second, given)
    tables = [second.requests[id].table.blocks for id in ("7", "8")]
    assert tables[0][:2] == tables[1][:2] and tables[0][2] != tables[1][2]
    told = {"7": [], "8": []}
    for output in second.stream():
        told[output.id].append(output.drawn.token)
    assert told["8"] == alone(model, GREEDY, given.prompt)[1:]
    assert told["7"] == alone(model, GREEDY)[2:]


def test_a_full_engine_takes_nobody_in(model):
    second = engine(model, num_blocks=6)
    second.add([5] * 16, SamplingParameters(8))
    second.step()
    given = handed(model)
    assert not adopt(second, given) and list(second.requests) == ["request-0"]
    while second.busy:
        second.step()
    assert goes_on(second, given) == alone(model, GREEDY)


@pytest.mark.parametrize("known", [False, True])
def test_of_a_window_only_what_is_read_goes_over(known):
    """The prompt's first pages were given back before anything was sent. Where the second engine
    knows the prefix already, it is shared; where not, nothing of this text is to be found."""
    windowed = build(replace(CONFIG, window=5), dtype=torch.float64)
    first, second = engine(windowed), engine(windowed)
    if known:
        second.generate([PROMPT[:9]], SamplingParameters(1))
    id = first.add(PROMPT, GREEDY)
    (output,) = first.step()
    table = first.requests[id].table
    assert table.gone == 1
    pages = take(first.runner.cache, table.blocks[table.gone :])
    given = Handover(7, tuple(PROMPT), GREEDY, [(table.gone, pages)], output.drawn.token)
    assert goes_on(second, given) == alone(windowed, GREEDY)
    assert second.scheduler.blocks.used == 0
    again = second.generate([[*PROMPT, output.drawn.token]], SamplingParameters(11))[0]
    assert again.tokens == alone(windowed, GREEDY)[1:]
