"""The schematics: true to their definitions, at every value, with words that can be read."""

from __future__ import annotations

import math
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from minitrain.alignment.advantages import gae
from minitrain.alignment.policy_loss import policy_loss
from minitrain.data.packing import pack
from minitrain.data.plain import suffix_array
from minitrain.data.preparation.deduplication.near import Bands, clusters
from minitrain.data.preparation.deduplication.words import jaccard
from minitrain.data.stream.mixture import tempered as tempered_of
from minitrain.finetuning.model import adapt, trainable_parameters
from minitrain.inference.sampling import next_token_probabilities
from minitrain.inference.speculation.length import speed_up
from minitrain.inference.speculation.plain import ngram_draft, tree_attention
from minitrain.lab import ideas
from minitrain.lab.drawing.colors import READABLE, contrast, ink_on
from minitrain.lab.drawing.figures import canvas
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.ideas.schematic import Schematic
from minitrain.lab.widgets import Choice, default_of
from minitrain.measure.predicted_memory import block_bytes_per_token
from minitrain.memory.paged_optimizer import PageTable
from minitrain.memory.placement import Layer, plan_peak, uniform_plan
from minitrain.model.config import ModelConfig, preset
from minitrain.model.transformer import build
from minitrain.planning.finetuning_memory import NF4_DOUBLE
from minitrain.quantization.formats.grids import FP4, NF4, normal_levels
from minitrain.quantization.formats.weight import pack_pairs, quantize_blocks

ALL = {name: getattr(ideas, name) for name in ideas.__all__}
MODULES = [import_module(f"minitrain.lab.ideas.{name}") for name in lab_names()]
e00, e01, e02, e02b, e02c, e02d, e02e, e02f, e02g, e03, e04, *others = MODULES
e05, e06, e07, e08, e09, e09b, e10, e11, e12, e13, e14, e15 = others


def values(choice: Choice) -> list:
    """All that a handle can be moved to."""
    if isinstance(choice, list):
        return choice
    return choice[0] if len(choice) == 2 else list(range(choice[0], choice[1] + 1))


def positions(schematic: Schematic, end: int) -> list[dict]:
    """The defaults, and each handle at its first or its last value."""
    start = {name: default_of(name, choice) for name, choice in schematic.choices.items()}
    found = [start]
    for name, choice in schematic.choices.items():
        position = start | {name: values(choice)[end]}
        found += [position] * (position not in found)
    return found


def cases(end: int, skip: int, *marks) -> list:
    return [
        pytest.param(schematic, position, marks=marks, id=f"{name}-{list(position.values())}")
        for name, schematic in ALL.items()
        for position in positions(schematic, end)[skip:]
    ]


CASES = [*cases(-1, 0), *cases(0, 1, pytest.mark.full)]


@pytest.mark.parametrize("schematic, position", CASES)
def test_all_words_can_be_read(schematic: Schematic, position: dict):
    """Inside the picture, none on another, each with a contrast of 4.5 to what is behind it."""
    with canvas(width=schematic.size[0], height=schematic.size[1]) as (fig, ax):
        fig.set_dpi(80)
        schematic.titled(ax, **position)
        texts = [t for t in fig.findobj(Text) if t.get_text() and t.get_visible()]
        fig.draw_without_rendering()
        fig.draw_without_rendering()  # the layout has settled
        fig.set_layout_engine("none")  # what is hidden keeps its place
        texts = [t for t in texts if ax.axison or t not in tick_labels(ax)]
        boxes = [(t, t.get_window_extent()) for t in texts]
        for text in texts:
            text.set_alpha(0)
        behind = pixels(fig)
    height, width, _ = behind.shape
    for text, place in boxes:
        words = text.get_text()
        assert place.x0 >= -1 and place.x1 <= width + 1, f"'{words}' leaves the picture"
        assert place.y0 >= -1 and place.y1 <= height + 1, f"'{words}' leaves the picture"
        under = behind[
            int(height - place.y1) : int(height - place.y0) + 1, int(place.x0) : int(place.x1) + 1
        ]
        color = np.median(under.reshape(-1, 3), axis=0) / 255
        assert contrast(text.get_color(), tuple(color)) >= READABLE, f"'{words}' is hard to read"
    for i, (one, a) in enumerate(boxes):
        for other, b in boxes[i + 1 :]:
            across = min(a.x1, b.x1) - max(a.x0, b.x0)
            down = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert across < 2 or down < 3, f"'{one.get_text()}' lies on '{other.get_text()}'"


def tick_labels(ax) -> list[Text]:
    return [*ax.get_xticklabels(minor=False), *ax.get_yticklabels(), *ax.get_xticklabels(minor=True),
            *ax.get_yticklabels(minor=True), ax.xaxis.label, ax.yaxis.label]  # fmt: skip


def pixels(fig) -> np.ndarray:
    """(height, width, 3)"""
    page = FigureCanvasAgg(fig)
    page.draw()
    return np.asarray(page.buffer_rgba())[:, :, :3]


@pytest.mark.parametrize("name", ALL)
def test_the_words_follow_the_handles(name: str):
    schematic = ALL[name]
    start = {handle: default_of(handle, choice) for handle, choice in schematic.choices.items()}
    for handle, choice in schematic.choices.items():
        said = {schematic.alt(**(start | {handle: value})) for value in values(choice)}
        assert len(said) == len(values(choice)), f"{handle}: the same words at two positions"
    assert "1 ranks" not in schematic.alt(**start)
    assert schematic.alt(**start) in schematic.picture().text


@pytest.mark.parametrize("color", ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "white", "black"])
def test_ink_is_read_on_any_colour(color: str):
    assert contrast(ink_on(color), color) >= READABLE
    assert contrast(color, color) == 1 and math.isclose(contrast("white", "black"), 21)


def test_the_ring_sums_every_part_once():
    for step in range(2 * e00.RANKS - 1):
        for row in e00.parts(step):
            assert all(len(set(chunk)) == len(chunk) for chunk in row)
    middle, end = e00.parts(e00.RANKS - 1), e00.parts(2 * (e00.RANKS - 1))
    assert all(len(middle[rank][rank]) == e00.RANKS for rank in range(e00.RANKS))
    assert all(len(chunk) == e00.RANKS for row in end for chunk in row)


@pytest.mark.parametrize("order, blocks", [("contiguous", 15), ("zigzag", 9)])
def test_ring_attention_computes_every_block_below_the_diagonal_once(order: str, blocks: int):
    steps = range(e02e.RANKS)
    done = [pair for s in steps for r in steps for pair in e02e.work(s, r, order)]
    size = e02e.PIECES
    assert sorted(done) == [(q, k) for q in range(size) for k in range(q + 1)]
    assert f"{blocks} half-blocks in" in e02e.ring_attention.words(step=0, order=order)


@pytest.mark.parametrize("load, computed", [("even", [6, 6]), ("uneven", [9, 3])])
def test_rows_reach_their_experts_and_come_home(load: str, computed: list[int]):
    own, arrived, sorted_rows, again, home = e02d.stages(load)
    assert home == own and again == arrived and [len(rows) for rows in arrived] == computed
    for rank, rows in enumerate(sorted_rows):
        assert sorted(rows) == sorted(arrived[rank]) and sorted(arrived[rank]) == arrived[rank]
        assert [row[2] for row in rows] == sorted(row[2] for row in rows)
        assert all(row[2] // 2 == rank for row in rows)


def test_merged_answers_are_the_answer_wherever_the_keys_are_cut():
    total, answer = e02e.attended(range(e02e.KEYS))
    for cut in range(1, e02e.KEYS):
        sets = [e02e.attended(keys) for keys in (range(cut), range(cut, e02e.KEYS))]
        assert math.isclose(sum(weight * mean for weight, mean in sets) / total, answer)


def test_a_gradient_gathers_every_part_but_the_owners_own():
    last = e02e.RANKS - 1
    for rank in range(last + 1):
        owner = (rank - last) % (last + 1)
        found = e02e.parts(rank, last)
        assert sorted([*found, owner]) == list(range(last + 1)) and found[-1] == rank


def test_what_waits_is_sent_later_and_masks_cancel():
    sent = 0
    for step in range(1, 7):
        before, drawn, kept = e02g.fed_back(step)
        sent += sum(drawn)
        assert sent + sum(kept) == step * sum(e02g.GRADIENT)
        waits = [g + e for g, e, s in zip(e02g.GRADIENT, before, drawn) if not s]
        assert max(waits) <= min(s for s in drawn if s)
    assert sum(map(e02g.sends, range(3))) % e02g.MODULUS == sum(e02g.VALUES) % e02g.MODULUS
    assert [age for worker, *_, age in e02g.pushes("no")][1:4] == [2, 2, 2]


def test_formats_are_those_of_torch():
    kinds = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
    for form, dtype in zip(e04.FORMATS, kinds):
        info = torch.finfo(dtype)
        assert info.max == form.largest and info.smallest_normal == 2.0**form.smallest
        assert info.eps == 2.0**-form.mantissa


def test_a_unit_ahead_hides_its_gather_and_takes_its_place():
    alone, ahead = e03.Pass(e03.ON_DEMAND), e03.Pass(e03.AHEAD)
    assert math.isclose(alone.waits(), 9 * e03.MESSAGE)  # six gathers and three reduces
    assert math.isclose(ahead.waits(), 5 * e03.MESSAGE)  # the first gather of either way
    asked, freed = alone.memory[e03.NAMED][0][0], alone.memory[e03.NAMED][1][1]
    assert alone.moments["forward", e03.NAMED] == (asked, freed)
    assert sorted(words for *_, words in alone.network) == sorted(w for *_, w in ahead.network)


def test_tiles_carry_what_a_softmax_needs():
    scores = torch.tensor(e05.SCORES, dtype=torch.float64).flatten()
    top, total, _ = e05.carried(e05.TILES - 1)
    assert math.isclose(top + math.log(total), scores.logsumexp(0).item())


def test_the_grids_of_schedules_are_as_the_formulas_say():
    p = e02c.RANKS
    for m in range(1, 5):
        clock = e02c.timed(e02c.made("gpipe", p, m))
        assert clock.makespan == 3 * (m + p - 1) and clock.bubble(0) == 3 * (p - 1)
    idle = [e02c.timed(e02c.made("interleaved", 2, 4, v)).bubble(0) for v in (1, 2)]
    assert idle == [3, 1.5]
    assert "rank by rank, 3, 2, 1" in e02c.pipeline_order.words(order="1f1b")
    assert "rank by rank, 5, 5, 5" in e02c.pipeline_order.words(order="gpipe")


def test_a_block_keeps_what_its_closed_form_says():
    config = preset("1M")
    for how in ("none", "selective", "full"):
        wide = {"none": 2 + config.heads, "selective": config.heads, "full": 0}[how]
        numbers = e05.kept_numbers(how) + wide
        assert 4 * numbers == block_bytes_per_token(config, recompute=how)


def test_numbers_beside_a_block_are_those_of_the_package():
    config = ModelConfig(64, e06.D, layers=1, heads=4, kv_heads=2, ffn_size=e06.F)
    names = dict(zip(e06.TOUCHED, ("lora", "houlsby", "ia3", "bitfit", "p-tuning-v2")))
    for method, name in names.items():
        model = adapt(build(config), name)
        assert e06.adapter_trained(method) == trainable_parameters(model)[0], method
    assert e06.low_rank_trained(8) == 8 * (e06.INS + e06.OUTS)


def test_levels_are_those_of_the_formats_and_share_all_weights():
    assert e07.LEVELS["NF4"] == pytest.approx(NF4.levels, abs=1e-4)
    assert e07.LEVELS["FP4"] == pytest.approx(sorted(set(FP4.levels)), abs=1e-6)
    draws = torch.randn(100_000, generator=torch.Generator().manual_seed(0)) / e07.LARGEST
    for datatype, levels in e07.LEVELS.items():
        shares = e07.shares(datatype)
        assert sum(shares) == pytest.approx(1)
        middles = (torch.tensor(levels)[1:] + torch.tensor(levels)[:-1]) / 2
        counted = torch.bucketize(draws, middles).bincount(minlength=len(levels)) / len(draws)
        assert counted.tolist() == pytest.approx(shares, abs=0.01)


@pytest.mark.parametrize("outlier", ["no", "yes"])
@pytest.mark.parametrize("block", ["8", "4"])
def test_a_block_is_packed_as_the_package_packs_it(block: str, outlier: str):
    values, size = e07.weights(outlier), e07.BLOCKS[block]
    codes, scales = quantize_blocks(torch.tensor(values), normal_levels(4), size)
    assert e07.codes(values, size) == codes.tolist()
    assert e07.scales(values, size)[::size] == pytest.approx(scales.tolist())
    assert len(pack_pairs(codes)) == 4


def test_bits_are_those_of_the_closed_form():
    assert sum(e07.parts(64)["8-bit scales"]) == NF4_DOUBLE
    assert sum(e07.parts(64)["float32 scales"]) == 4.5
    assert e07.held("made again") == pytest.approx(NF4_DOUBLE, abs=1e-3)


@pytest.mark.parametrize("frames", [3, 4, 5])
def test_pages_come_and_go_as_in_the_page_table(frames: int):
    table = PageTable(frames, page_bytes=1)
    for moment in e07.moments(frames):
        before = table.faults
        table.touch(moment.page, 1)
        assert (table.faults > before) == moment.is_fault
        assert len(table.resident) == len(moment.resident)
    assert e07.faults_a_round(frames) == (0 if frames == e07.PAGES else e07.PAGES)


def test_a_zero_point_never_loses_zero_and_uses_all_codes():
    for width in (2, 3, 4, 5):
        one, other = e08.symmetric(width), e08.moved(width)
        assert 0 in one and 0 in other and len(other) == len(one) + 1 == 2**width
        assert e08.error(other) < e08.error(one)


def test_a_scale_moves_and_leaves_every_product():
    for alpha in (0.0, 0.25, 0.5, 1.0):
        activations, weights = e08.after(alpha)
        for x, w, own_x, own_w in zip(activations, weights, e08.ACTIVATIONS, e08.COLUMN_WEIGHTS):
            assert math.isclose(x * w, own_x * own_w)
    assert math.isclose(e08.spread(e08.after(1.0)[0]), 1.0)
    assert math.isclose(e08.spread(e08.after(0.0)[1]), 1.0)
    assert all(math.isclose(x, w) for x, w in zip(*e08.after(0.5)))


def test_gptqs_blocks_end_with_their_group():
    cuts = [start for start, _ in e08.spans()] + [e08.WIDTH]
    assert e08.spans() == list(pairwise(cuts)) and set(range(0, e08.WIDTH, e08.GROUP)) < set(cuts)  # fmt: skip
    assert max(stop - start for start, stop in e08.spans()) == e08.BLOCK
    for at in range(e08.WIDTH):
        states = [e08.state(place, at) for place in range(e08.WIDTH)]
        assert states.count("rounded") == at and states.count("being rounded") == 1
        assert "corrected now" not in states[e08.block_of(at)[1] :]


def test_the_gradient_passes_where_torchs_own_does():
    for width in (2, 3):
        m = e08.largest(width)
        x = torch.linspace(-e08.REACH, e08.REACH, 101, requires_grad=True)
        out = torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -m, m)
        out.sum().backward()
        assert [e08.gradient(v, width) for v in x.tolist()] == x.grad.tolist()
        assert [e08.rounded(v, width) for v in x.tolist()] == out.tolist()


def test_signatures_agree_only_where_the_smallest_is_shared():
    for k, pair in enumerate(zip(*(e11.signature(p, 4) for p in (e11.ONE, e11.OTHER)))):
        least = min(e11.value(k, x) for x in {**e11.ONE, **e11.OTHER}.values())
        shared = [e11.value(k, x) for x in e11.ONE.values() if x in e11.OTHER.values()]
        assert (pair[0] == pair[1]) == (least in shared)
    assert e11.similarity() == jaccard(set(e11.ONE), set(e11.OTHER))


def test_the_s_curve_is_the_packages():
    for rows in (1, 4, 32):
        split = Bands(e11.PLACES // rows, rows)
        assert math.isclose(e11.meets(0.4, rows), split.meeting_probability(0.4))
        assert math.isclose(e11.meets(e11.half(rows), rows), 0.5)


def test_unions_are_the_packages():
    for read in range(len(e11.PAIRS) + 1):
        parent = e11.parents(read)
        firsts = [e11.root(parent, page) for page in range(e11.COUNT)]
        pairs = np.array(e11.PAIRS[:read]).reshape(-1, 2)
        assert firsts == clusters(pairs, e11.COUNT).tolist()


def test_suffixes_are_sorted_when_all_are_decided():
    order = suffix_array(np.frombuffer(e11.WORD.encode(), np.uint8)).tolist()
    left = [e11.undecided(symbols) for symbols in (1, 2, 4, 8)]
    assert left == sorted(left, reverse=True) and left[-1] == 0 < left[0]
    assert [start for start, _ in e11.ordered(8)] == order


def test_shares_are_tempered_as_the_package_does():
    for name, temperature in e11.TEMPERATURES.items():
        assert np.allclose(e11.shares(name), tempered_of(list(e11.SOURCES.values()), temperature))


def test_a_packed_row_is_the_packages():
    packed_row = pack([[1] * size for size in e11.DOCUMENTS], e11.LENGTH)
    assert packed_row.positions()[0].tolist() == e11.positions()
    assert e11.wrong(e11.PACKED) == 0 < e11.wrong(e11.CAUSAL)


def test_each_row_is_dealt_out_once_before_the_stop_or_after():
    for ranks in (1, 2, 3):
        for steps in (1, 2):
            dealt, start = e11.dealt(steps, ranks), e11.consumed(steps)
            assert {rank for rank, _ in dealt[:start]} == set(range(e11.BEFORE))
            assert {rank for rank, _ in dealt[start:]} == set(range(ranks))
            own = dict.fromkeys(dealt[start:], 0)
            for key in dealt[start:]:
                own[key] += 1
            assert max(own.values()) <= e11.BATCH and sum(own.values()) == 12 - start


def test_recomputing_peaks_as_a_plan_does():
    layers = [Layer(e05.INPUT, e05.SAVED, 1)] * e05.LAYERS
    for keep, mode in ((e05.KEPT, "none"), (e05.AGAIN, "full")):
        peak = max(moment.held for moment in e05.moments(keep))
        assert peak == plan_peak(uniform_plan(e05.LAYERS, mode), layers)


def test_speculation_is_as_the_package_has_it():
    for like in e09b.LIKE:
        low, rest = e09b.kept(like), e09b.replaced(like)
        assert all(map(math.isclose, map(sum, zip(low, rest)), e09b.TARGET))
        assert math.isclose(sum(e09b.rejected(like)), sum(rest), abs_tol=1e-12)
    assert math.isclose(sum(e09b.kept("100%")), 1)
    for count in e09b.ENDS.values():
        want = ngram_draft(e09b.STORY[:count], e09b.MOST, e09b.LONGEST)
        assert e09b.drafted(count) == want
    for g in range(9):
        cost = e09b.DRAFT, 1 + e09b.GROWTH * g
        want = speed_up(e09b.ACCEPTANCE, g, *cost)
        assert math.isclose(e09b.tokens(g) / e09b.seconds(g), want)
    nodes = range(len(e09b.NODES))
    seen, positions = tree_attention(e09b.PARENTS, len(e09b.TEXT))
    assert positions.tolist() == [e09b.position(node) for node in nodes]
    for node in nodes:
        read = seen[node, len(e09b.TEXT) :].nonzero()[:, 0].tolist()
        assert read == e09b.way(node)
    assert [len(e09b.told(kept)) for kept in range(5)] == [1, 2, 3, 4, 5]
    said = [e09b.verdict(place, 2) for place in range(5)]
    assert said == ["keeps", "keeps", "rejects", "", ""]
    taught = [e09b.target_of(2, head) for head in range(4)]
    assert taught == [3, 4, 5, 6] and e09b.target_of(5, 1) is None


def test_alignments_pictures_are_the_packages_formulas():
    reference, rewards = torch.tensor(list(e13.ANSWERS.values())).T
    for beta in (0.25, 1, 8):
        want = (reference.log() + rewards / beta).softmax(0)
        assert torch.allclose(torch.tensor(e13.tilted(beta)), want, atol=1e-6)
    for dual, bound in (("off", None), ("c = 3", 3.0)):
        for a in (1, -1):
            ratio = torch.linspace(0.1, 4, 40)
            one = torch.full_like(ratio, a)
            want = policy_loss(ratio.log(), torch.zeros(40), one, e13.CLIP, dual_clip=bound)
            found = [e13.loss(r, a, dual) for r in ratio.tolist()]
            assert torch.allclose(torch.tensor(found), want, atol=1e-5)
    deltas, mask = torch.tensor([e13.DELTAS]), torch.tensor([[1, 1, 1, 0, 1, 1]])
    for lam in (0, 0.8, 1):
        want = gae(deltas, torch.zeros(1, 6), mask, 1.0, lam)[0][0]
        found = [e13.advantage(lam, token) for token in range(6)]
        assert torch.allclose(torch.tensor(found), want, atol=1e-6)


def test_the_rest_is_as_its_formula_says():
    assert [sum(e03.held(stage, 4)) for stage in range(4)] == [16, 4 + 3, 2 + 3.5, 4]
    assert [e00.rounds(n) for n in (1, 2, 3, 4, 5, 8)] == [0, 1, 2, 2, 3, 3]
    assert min((1, 2, 4, 8, 16), key=e05.peak) == 4 and e05.peak(0) == 16
    assert e02.messages(8) == [(8, 8 + 0.6 + 8 * 0.7, 8)]
    assert e02.messages(1)[1][0] == 1 + 0.6 + 0.7 and len(e02.messages(2)) == 4
    assert sum(map(len, e02d.kept(e02d.NO_LIMIT))) == e02d.PLACES
    assert max(map(len, e02d.kept(1.0))) == 4
    assert e01.reachable(1e9) == e01.PEAK
    assert e10.front()[0] == (3, 95) and (15, 41) not in e10.front()


def test_only_the_flushed_way_is_never_torn():
    torn = {
        way: [words for words, kinds in e12.outcomes(way) if "a torn one" in kinds]
        for way in e12.WAYS
    }
    assert torn["flushed, then renamed"] == []
    assert torn["in place"] == ["write step-04"]
    assert torn["renamed, not flushed"] == ["rename .new"]
    assert e12.outcomes("flushed, then renamed")[-1] == ("flush names", ["the new one"])


@pytest.mark.parametrize("old", [2, 3, 4])
@pytest.mark.parametrize("new", [1, 3, 6])
def test_every_element_is_read_once(old: int, new: int):
    read = [e for _, _, start, stop in e12.pieces(old, new) for e in range(start, stop)]
    assert sorted(read) == list(range(e12.ELEMENTS))


def test_cuts_leave_what_the_sampler_draws_from():
    for rule, (temperature, top_k, top_p) in e09.RULES.items():
        logits = torch.tensor(e09.LOGITS)
        want = next_token_probabilities(logits, temperature, top_k, top_p)
        assert torch.allclose(torch.tensor(e09.kept(rule)[1]), want, atol=1e-6)


def test_a_cache_computes_each_token_once():
    for steps in range(1, 8):
        every = [token for step in e09.computed(steps, True) for token in step]
        assert every == list(range(e09.PROMPT + steps - 1))
        naive = steps * e09.PROMPT + steps * (steps - 1) // 2
        assert e09.total(steps, False) == naive


def test_tables_name_blocks_that_hold_their_text():
    for moment in e09.MOMENTS.values():
        for table in moment.tables.values():
            assert all(block in moment.content for block in table)
    assert e09.refs("C is A's fork") == [3, 1, 0, 3, 0, 2]
    assert e09.refs("C writes") == [3, 1, 1, 3, 0, 1]


def test_every_row_computes_every_text_of_its_own():
    for rows in (e09.static(), e09.continuous()):
        counts = {name: sum(row.count(name) for row in rows) for name in e09.ANSWERS}
        assert counts == e09.ANSWERS
    assert len(e09.continuous()[0]) == max(8, math.ceil(sum(e09.ANSWERS.values()) / 3))


def test_the_forms_compute_each_pair_of_a_chunk_and_the_pattern_its_share():
    assert [e14.pairs_of(form) for form in e14.FORMS] == [0, 20, 36]
    assert e14.pairs_of("chunked", size=8) == e14.pairs_of("parallel")
    for pattern in e14.PATTERNS:
        assert f"{pattern.count('A')}/8 is left" in e14.layer_pattern.alt(pattern=pattern)
