"""The schematics: true to their definitions, at every value, with words that can be read."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from minitrain.data.packing import pack
from minitrain.data.preparation.deduplication.bands import Bands
from minitrain.data.preparation.deduplication.clusters import clusters
from minitrain.data.preparation.deduplication.suffix_array import suffix_array
from minitrain.data.preparation.deduplication.words import jaccard
from minitrain.data.stream.mixture import tempered as tempered_of
from minitrain.finetuning.adapt import adapt, trainable_parameters
from minitrain.inference.sampling import next_token_probabilities
from minitrain.inference.speculation.formula import speed_up
from minitrain.inference.speculation.plain import ngram_draft, tree_attention
from minitrain.lab import ideas
from minitrain.lab.drawing.contrast import READABLE, contrast, ink_on
from minitrain.lab.drawing.figures import canvas
from minitrain.lab.ideas import (
    accepted,
    accumulated,
    activations,
    again,
    beside,
    bits,
    branches,
    chance,
    columns,
    context,
    cuts,
    document_masks,
    doubling,
    drafted,
    experts,
    filtered,
    five_collectives,
    formats,
    further,
    grids,
    intervals,
    lookup,
    merged,
    mesh,
    messages,
    moved,
    overlap,
    packed,
    pages,
    pareto,
    quantiles,
    recomputing,
    resharded,
    resumed,
    ring,
    roof,
    round_costs,
    rounded,
    s_curves,
    saved,
    scales,
    schedules,
    smallest,
    stages,
    straight,
    stream,
    suffixes,
    tempered,
    tiles,
    tree,
    unions,
    units,
    vocabulary,
    waiting,
    zero,
)
from minitrain.lab.ideas.adapter_pages import BATCHES, PAGES, TABLES, filled
from minitrain.lab.ideas.adapter_places import TOUCHED, D, F
from minitrain.lab.ideas.adapter_places import trained as trained_in_a_block
from minitrain.lab.ideas.batches import ANSWERS, continuous, static
from minitrain.lab.ideas.block_tables import MOMENTS, refs
from minitrain.lab.ideas.cache_steps import PROMPT, computed, total
from minitrain.lab.ideas.expert_exchange import stages as exchange_stages
from minitrain.lab.ideas.heads_for_tokens import holder
from minitrain.lab.ideas.kv_ranges import ranges, spoiled
from minitrain.lab.ideas.lengths import DELTA, ROW, length, turned
from minitrain.lab.ideas.low_rank import INS, OUTS
from minitrain.lab.ideas.low_rank import trained as trained_of_rank
from minitrain.lab.ideas.merging import WAYS, W, after
from minitrain.lab.ideas.prefix_columns import WORDS, read_in_all, readable
from minitrain.lab.ideas.ring_gradients import RANKS, parts
from minitrain.lab.ideas.schematic import Schematic
from minitrain.lab.ideas.token_cuts import LOGITS, RULES
from minitrain.lab.ideas.token_cuts import kept as kept_of_rule
from minitrain.lab.widgets import Choice, default_of
from minitrain.measure.predicted_memory import block_bytes_per_token
from minitrain.memory.paged_optimizer import PageTable
from minitrain.memory.placement import Layer, plan_peak, uniform_plan
from minitrain.model.config import ModelConfig, preset
from minitrain.model.transformer import build
from minitrain.planning.finetuning_memory import NF4_DOUBLE
from minitrain.quantization.formats.grids import FP4, NF4, normal_levels
from minitrain.quantization.formats.plain import pack_pairs, quantize_blocks

ALL = {name: getattr(ideas, name) for name in ideas.__all__}


def values(choice: Choice) -> list:
    """All that a handle can be moved to."""
    if isinstance(choice, list):
        return choice
    return choice[0] if len(choice) == 2 else list(range(choice[0], choice[1] + 1))


def positions(schematic: Schematic) -> list[dict]:
    """The defaults, and each handle at its ends, each position once."""
    start = {name: default_of(name, choice) for name, choice in schematic.choices.items()}
    found = [start]
    for name, choice in schematic.choices.items():
        ends = (start | {name: values(choice)[at]} for at in (0, -1))
        found += [position for position in ends if position not in found]
    return found


CASES = [
    pytest.param(schematic, position, id=f"{name}-{'-'.join(map(str, position.values()))}")
    for name, schematic in ALL.items()
    for position in positions(schematic)
]


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
        said = {schematic.say(**(start | {handle: value})) for value in values(choice)}
        assert len(said) == len(values(choice)), f"{handle}: the same words at two positions"
    assert "1 ranks" not in schematic.say(**start)
    assert schematic.say(**start) in schematic.picture().text


def test_a_handle_runs_from_small_to_large():
    for name, schematic in ALL.items():
        for handle, choice in schematic.choices.items():
            numbers = [v for v in values(choice) if isinstance(v, (int, float))]
            assert numbers == sorted(numbers), f"{name}: {handle}"


@pytest.mark.parametrize("color", ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "white", "black"])
def test_ink_is_read_on_any_colour(color: str):
    assert contrast(ink_on(color), color) >= READABLE
    assert contrast(color, color) == 1 and math.isclose(contrast("white", "black"), 21)


def test_the_ring_sums_every_part_once():
    for step in range(2 * ring.RANKS - 1):
        for row in ring.parts(step):
            assert all(len(set(chunk)) == len(chunk) for chunk in row)
    middle, end = ring.parts(ring.RANKS - 1), ring.parts(2 * (ring.RANKS - 1))
    assert all(len(middle[rank][rank]) == ring.RANKS for rank in range(ring.RANKS))
    assert all(len(chunk) == ring.RANKS for row in end for chunk in row)


@pytest.mark.parametrize("order, blocks", [("contiguous", 15), ("zigzag", 9)])
def test_ring_attention_computes_every_block_below_the_diagonal_once(order: str, blocks: int):
    steps = range(context.RANKS)
    done = [pair for s in steps for r in steps for pair in context.work(s, r, order)]
    size = context.PIECES
    assert sorted(done) == [(q, k) for q in range(size) for k in range(q + 1)]
    assert f"{blocks} half-blocks in" in context.say_ring_attention(0, order)


@pytest.mark.parametrize("load, computed", [("even", [6, 6]), ("uneven", [9, 3])])
def test_rows_reach_their_experts_and_come_home(load: str, computed: list[int]):
    own, arrived, sorted_rows, again, home = exchange_stages(load)
    assert home == own and again == arrived and [len(rows) for rows in arrived] == computed
    for rank, rows in enumerate(sorted_rows):
        assert sorted(rows) == sorted(arrived[rank]) and sorted(arrived[rank]) == arrived[rank]
        assert [row[2] for row in rows] == sorted(row[2] for row in rows)
        assert all(row[2] // 2 == rank for row in rows)


def test_each_rank_gets_as_many_heads_as_any_other():
    for cut in ("tokens", "heads"):
        held = [holder(piece, head, cut) for piece in range(4) for head in range(8)]
        assert all(held.count(rank) == 8 for rank in range(4))


def test_merged_answers_are_the_answer_wherever_the_keys_are_cut():
    total, answer = merged.attended(range(merged.KEYS))
    for cut in range(1, merged.KEYS):
        sets = [merged.attended(keys) for keys in (range(cut), range(cut, merged.KEYS))]
        assert math.isclose(sum(weight * mean for weight, mean in sets) / total, answer)


def test_a_gradient_gathers_every_part_but_the_owners_own():
    last = RANKS - 1
    for rank in range(last + 1):
        owner = (rank - last) % (last + 1)
        found = parts(rank, last)
        assert sorted([*found, owner]) == list(range(last + 1)) and found[-1] == rank


def test_formats_are_those_of_torch():
    kinds = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
    for form, dtype in zip(formats.FORMATS, kinds):
        info = torch.finfo(dtype)
        assert info.max == form.largest and info.smallest_normal == 2.0**form.smallest
        assert info.eps == 2.0**-form.mantissa


def test_a_unit_ahead_hides_its_gather_and_takes_its_place():
    alone, ahead = units.Pass(units.ON_DEMAND), units.Pass(units.AHEAD)
    assert math.isclose(alone.waits(), 9 * units.MESSAGE)  # six gathers and three reduces
    assert math.isclose(ahead.waits(), 5 * units.MESSAGE)  # the first gather of either way
    asked, freed = alone.memory[units.NAMED][0][0], alone.memory[units.NAMED][1][1]
    assert alone.moments["forward", units.NAMED] == (asked, freed)
    assert sorted(words for *_, words in alone.network) == sorted(w for *_, w in ahead.network)


def test_lines_of_the_first_axis_leave_the_node():
    for order in mesh.ORDERS:
        first, *others = order.split()
        assert f"{first}: 4 of 4 between nodes" in mesh.say_lines(order, first)
        assert all("all inside a node" in mesh.say_lines(order, axis) for axis in others)
    assert [mesh.holders(parameter) for parameter in mesh.PARAMETERS] == [4, 2, 4, 2]


def test_tiles_carry_what_a_softmax_needs():
    scores = torch.tensor(tiles.SCORES, dtype=torch.float64).flatten()
    top, total, _ = tiles.carried(tiles.TILES - 1)
    assert math.isclose(top + math.log(total), scores.logsumexp(0).item())


def test_the_grids_of_schedules_are_as_the_formulas_say():
    p = schedules.RANKS
    for m in range(1, 5):
        clock = schedules.timed(schedules.made("gpipe", p, m))
        assert clock.makespan == 3 * (m + p - 1) and clock.bubble(0) == 3 * (p - 1)
    idle = [schedules.timed(schedules.made("interleaved", 2, 4, v)).bubble(0) for v in (1, 2)]
    assert idle == [3, 1.5]
    assert "rank by rank, 3, 2, 1" in schedules.say_order("1f1b")
    assert "rank by rank, 5, 5, 5" in schedules.say_order("gpipe")


def test_every_layer_and_every_head_is_on_one_rank():
    assert all(stages.LAYERS % ranks == 0 for ranks in stages.pipeline_stages.choices["ranks"][0])
    counts = (stream.HEADS, stream.FEATURES, stream.TOKENS)
    assert all(count % stream.RANKS == 0 for count in counts)
    assert len(set(stream.stream("tensor"))) == 1 < len(set(stream.stream("sequence")))


def test_one_rank_has_the_word_and_the_others_do_not():
    for token in range(vocabulary.RANKS * vocabulary.ROWS):
        answers = vocabulary.answers(token)
        assert answers.count(None) == vocabulary.RANKS - 1
        assert answers[token // vocabulary.ROWS] == token % vocabulary.ROWS


def test_collectives_agree_with_each_other():
    scattered, summed = (five_collectives.states(k)[1] for k in ("reduce-scatter", "all-reduce"))
    assert scattered == five_collectives.diagonal(summed) and summed[0] == ["Σ0", "Σ1", "Σ2", "Σ3"]
    before, after = five_collectives.states("all-to-all")
    assert [list(row) for row in zip(*after)] == before


def test_a_message_waits_for_who_is_late_and_pays_its_latency():
    assert messages.waits(5) == (3, 0) and messages.waits(1) == (0, 1)
    one, eight = (sum(messages.microseconds(count, 256)) for count in (1, 8))
    assert math.isclose(eight - one, 7 * 30)


def test_accumulation_saves_all_messages_but_one():
    saved = accumulated.units(5, 5) - accumulated.units(5, 1)
    assert math.isclose(saved, 4 * accumulated.MESSAGE)


def test_doubling_sums_twice_as_many_parts_in_each_swap():
    for rank in range(8):
        assert [doubling.summed(rank, k)[1] - doubling.summed(rank, k)[0] + 1 for k in range(4)] == [1, 2, 4, 8]  # fmt: skip
        for swap in range(3):
            (first, last), (other, _) = doubling.summed(rank, swap), doubling.summed(rank ^ 2**swap, swap)  # fmt: skip
            assert first <= rank <= last and other not in range(first, last + 1)


def test_a_block_keeps_what_its_closed_form_says():
    config = preset("1M")
    for how in ("none", "selective", "full"):
        wide = {"none": 2 + config.heads, "selective": config.heads, "full": 0}[how]
        numbers = saved.kept_numbers(how) + wide
        assert 4 * numbers == block_bytes_per_token(config, recompute=how)


def test_rounding_by_chance_is_right_in_the_mean():
    for eighths in range(1, chance.EIGHTHS):
        ups = round(chance.DRAWS * chance.goes_up(eighths))
        assert f"chance {ups} of 16" in chance.say_rounding(eighths)
        assert ups / chance.DRAWS == eighths / chance.EIGHTHS


def test_an_outlier_spoils_its_own_tile_alone():
    assert [scales.sharing(tile) for tile in scales.TILES] == [63, 3, 7]


def test_numbers_beside_a_block_are_those_of_the_package():
    config = ModelConfig(64, D, layers=1, heads=4, kv_heads=2, ffn_size=F)
    names = dict(zip(TOUCHED, ("lora", "houlsby", "ia3", "bitfit", "p-tuning-v2")))
    for method, name in names.items():
        model = adapt(build(config), name)
        assert trained_in_a_block(method) == trainable_parameters(model)[0], method
    assert trained_of_rank(8) == 8 * (INS + OUTS)


def test_what_is_merged_beside_comes_back_whole():
    back = {way: after(way)[2] for way in WAYS}
    assert back["beside"] == list(W) and back["in place"] != list(W)
    assert 0 < sum(a == b for a, b in zip(back["in place"], W)) < len(W)


def test_a_row_is_turned_to_the_sum_and_as_long_as_its_magnitude():
    sums = [w + d for w, d in zip(ROW, DELTA)]
    for share in (0.5, 1.0, 2.0):
        x, y = turned(share)
        assert math.isclose(math.hypot(x, y), share * length(ROW))
        assert math.isclose(x * sums[1], y * sums[0])


def test_every_word_reads_the_whole_prefix():
    words = len(WORDS)
    for learned in range(1, 5):
        for row in range(words):
            seen = [readable(row, column, learned) for column in range(learned + words)]
            assert seen == [True] * (learned + row + 1) + [False] * (words - row - 1)
        assert read_in_all(learned) == words * learned + words * (words + 1) // 2


def test_a_page_belongs_to_the_adapter_whose_table_names_it():
    for name, table in TABLES.items():
        assert [PAGES[page] for page in table] == [f"{name}.{n}" for n in range(len(table))]
    for batch in BATCHES:
        assert len({len(table) for table in filled(batch)}) == 1
    assert PAGES[0] == "zeros"


def test_levels_are_those_of_the_formats_and_share_all_weights():
    assert quantiles.LEVELS["NF4"] == pytest.approx(NF4.levels, abs=1e-4)
    assert quantiles.LEVELS["FP4"] == pytest.approx(sorted(set(FP4.levels)), abs=1e-6)
    draws = torch.randn(100_000, generator=torch.Generator().manual_seed(0)) / quantiles.LARGEST
    for datatype, levels in quantiles.LEVELS.items():
        shares = quantiles.shares(datatype)
        assert sum(shares) == pytest.approx(1)
        middles = (torch.tensor(levels)[1:] + torch.tensor(levels)[:-1]) / 2
        counted = torch.bucketize(draws, middles).bincount(minlength=len(levels)) / len(draws)
        assert counted.tolist() == pytest.approx(shares, abs=0.01)


@pytest.mark.parametrize("outlier", ["no", "yes"])
@pytest.mark.parametrize("block", ["8", "4"])
def test_a_block_is_packed_as_the_package_packs_it(block: str, outlier: str):
    values, size = packed.weights(outlier), packed.BLOCKS[block]
    codes, scales = quantize_blocks(torch.tensor(values), normal_levels(4), size)
    assert packed.codes(values, size) == codes.tolist()
    assert packed.scales(values, size)[::size] == pytest.approx(scales.tolist())
    assert len(pack_pairs(codes)) == 4


def test_bits_are_those_of_the_closed_form():
    assert sum(bits.parts(64)["8-bit scales"]) == NF4_DOUBLE
    assert sum(bits.parts(64)["float32 scales"]) == 4.5
    assert again.held("made again") == pytest.approx(NF4_DOUBLE, abs=1e-3)


def test_an_adapter_of_less_than_half_a_step_is_rounded_away():
    for percent in range(0, 101, 5):
        near = percent if percent <= 50 else 100 - percent
        step = rounded.SHOWN[rounded.AT + 1] - rounded.SHOWN[rounded.AT]
        error = abs(rounded.rounded(percent) - rounded.merged(percent)) / step
        assert error == pytest.approx(near / 100)


@pytest.mark.parametrize("frames", [3, 4, 5])
def test_pages_come_and_go_as_in_the_page_table(frames: int):
    table = PageTable(frames, page_bytes=1)
    for moment in pages.moments(frames):
        before = table.faults
        table.touch(moment.page, 1)
        assert (table.faults > before) == moment.is_fault
        assert len(table.resident) == len(moment.resident)
    assert pages.faults_a_round(frames) == (0 if frames == pages.PAGES else pages.PAGES)


def test_a_zero_point_never_loses_zero_and_uses_all_codes():
    for width in (2, 3, 4, 5):
        one, other = grids.symmetric(width), grids.moved(width)
        assert 0 in one and 0 in other and len(other) == len(one) + 1 == 2**width
        assert grids.error(other) < grids.error(one)


def test_a_scale_moves_and_leaves_every_product():
    for alpha in (0.0, 0.25, 0.5, 1.0):
        activations, weights = moved.after(alpha)
        for x, w, own_x, own_w in zip(activations, weights, moved.ACTIVATIONS, moved.WEIGHTS):
            assert math.isclose(x * w, own_x * own_w)
    assert math.isclose(moved.spread(moved.after(1.0)[0]), 1.0)
    assert math.isclose(moved.spread(moved.after(0.0)[1]), 1.0)
    assert all(math.isclose(x, w) for x, w in zip(*moved.after(0.5)))


def test_gptqs_blocks_end_with_their_group():
    cuts = [start for start, _ in columns.spans()] + [columns.WIDTH]
    assert columns.spans() == list(pairwise(cuts)) and set(range(0, columns.WIDTH, columns.GROUP)) < set(cuts)  # fmt: skip
    assert max(stop - start for start, stop in columns.spans()) == columns.BLOCK
    for at in range(columns.WIDTH):
        states = [columns.state(place, at) for place in range(columns.WIDTH)]
        assert states.count("rounded") == at and states.count("being rounded") == 1
        assert "corrected now" not in states[columns.block_of(at)[1] :]


def test_the_gradient_passes_where_torchs_own_does():
    for width in (2, 3):
        m = straight.largest(width)
        x = torch.linspace(-straight.REACH, straight.REACH, 101, requires_grad=True)
        out = torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -m, m)
        out.sum().backward()
        assert [straight.gradient(v, width) for v in x.tolist()] == x.grad.tolist()
        assert [straight.rounded(v, width) for v in x.tolist()] == out.tolist()


def test_the_order_of_rules_changes_reasons_and_no_verdict():
    first, turned_round = (
        {page: filtered.reason(page, order) for page in filtered.PAGES}
        for order in ("as published", "turned round")
    )
    assert first != turned_round and first["prose"] == ""
    assert {page for page, why in first.items() if why} == {p for p, w in turned_round.items() if w}


def test_signatures_agree_only_where_the_smallest_is_shared():
    for k, pair in enumerate(
        zip(*(smallest.signature(p, 4) for p in (smallest.ONE, smallest.OTHER)))
    ):
        least = min(smallest.value(k, x) for x in {**smallest.ONE, **smallest.OTHER}.values())
        shared = [
            smallest.value(k, x) for x in smallest.ONE.values() if x in smallest.OTHER.values()
        ]
        assert (pair[0] == pair[1]) == (least in shared)
    assert smallest.similarity() == jaccard(set(smallest.ONE), set(smallest.OTHER))


def test_the_s_curve_is_the_packages():
    for rows in (1, 4, 32):
        split = Bands(s_curves.PLACES // rows, rows)
        assert math.isclose(s_curves.meets(0.4, rows), split.meeting_probability(0.4))
        assert math.isclose(s_curves.meets(s_curves.half(rows), rows), 0.5)


def test_unions_are_the_packages():
    for read in range(len(unions.PAIRS) + 1):
        parent = unions.parents(read)
        firsts = [unions.root(parent, page) for page in range(unions.COUNT)]
        pairs = np.array(unions.PAIRS[:read]).reshape(-1, 2)
        assert firsts == clusters(pairs, unions.COUNT).tolist()


def test_suffixes_are_sorted_when_all_are_decided():
    order = suffix_array([ord(sign) for sign in suffixes.WORD]).tolist()
    left = [suffixes.undecided(symbols) for symbols in (1, 2, 4, 8)]
    assert left == sorted(left, reverse=True) and left[-1] == 0 < left[0]
    assert [start for start, _ in suffixes.ordered(8)] == order


def test_shares_are_tempered_as_the_package_does():
    for name, temperature in tempered.TEMPERATURES.items():
        assert np.allclose(
            tempered.shares(name), tempered_of(list(tempered.SIZES.values()), temperature)
        )


def test_a_packed_row_is_the_packages():
    packed_row = pack([[1] * size for size in document_masks.SIZES], document_masks.LENGTH)
    assert packed_row.positions()[0].tolist() == document_masks.positions()
    assert (
        document_masks.wrong(document_masks.PACKED)
        == 0
        < document_masks.wrong(document_masks.CAUSAL)
    )


def test_each_row_is_dealt_out_once_before_the_stop_or_after():
    for ranks in (1, 2, 3):
        for steps in (1, 2):
            dealt, start = resumed.dealt(steps, ranks), resumed.consumed(steps)
            assert {rank for rank, _ in dealt[:start]} == set(range(resumed.BEFORE))
            assert {rank for rank, _ in dealt[start:]} == set(range(ranks))
            own = dict.fromkeys(dealt[start:], 0)
            for key in dealt[start:]:
                own[key] += 1
            assert max(own.values()) <= resumed.BATCH and sum(own.values()) == 12 - start


def test_recomputing_peaks_as_a_plan_does():
    layers = [Layer(recomputing.INPUT, recomputing.SAVED, 1)] * recomputing.LAYERS
    for keep, mode in ((recomputing.KEPT, "none"), (recomputing.AGAIN, "full")):
        peak = max(moment.held for moment in recomputing.moments(keep))
        assert peak == plan_peak(uniform_plan(recomputing.LAYERS, mode), layers)


def test_speculation_is_as_the_package_has_it():
    for like in accepted.LIKE:
        low, rest = accepted.kept(like), accepted.replaced(like)
        assert all(map(math.isclose, map(sum, zip(low, rest)), accepted.TARGET))
        assert math.isclose(sum(accepted.rejected(like)), sum(rest), abs_tol=1e-12)
    assert math.isclose(sum(accepted.kept("100%")), 1)
    for count in lookup.ENDS.values():
        want = ngram_draft(lookup.WORDS[:count], lookup.MOST, lookup.LONGEST)
        assert lookup.drafted(count) == want
    for g in range(9):
        cost = round_costs.DRAFT, 1 + round_costs.GROWTH * g
        want = speed_up(round_costs.ACCEPTANCE, g, *cost)
        assert math.isclose(round_costs.tokens(g) / round_costs.seconds(g), want)
    nodes = range(len(branches.NODES))
    seen, positions = tree_attention(branches.PARENTS, len(branches.TEXT))
    assert positions.tolist() == [branches.position(node) for node in nodes]
    for node in nodes:
        read = seen[node, len(branches.TEXT) :].nonzero()[:, 0].tolist()
        assert read == branches.way(node)
    assert [len(drafted.told(kept)) for kept in range(5)] == [1, 2, 3, 4, 5]
    said = [drafted.verdict(place, 2) for place in range(5)]
    assert said == ["keeps", "keeps", "rejects", "", ""]
    taught = [further.target_of(2, head) for head in range(4)]
    assert taught == [3, 4, 5, 6] and further.target_of(5, 1) is None


def test_the_rest_is_as_its_formula_says():
    assert [sum(zero.held(stage, 4)) for stage in range(4)] == [16, 4 + 3, 2 + 3.5, 4]
    assert [tree.rounds(n) for n in (1, 2, 3, 4, 5, 8)] == [0, 1, 2, 2, 3, 3]
    assert min((1, 2, 4, 8, 16), key=activations.peak) == 4 and activations.peak(0) == 16
    assert overlap.messages(8) == [(8, 8 + 0.6 + 8 * 0.7, 8)]
    assert overlap.messages(1)[1][0] == 1 + 0.6 + 0.7 and len(overlap.messages(2)) == 4
    assert sum(map(len, experts.kept(experts.NO_LIMIT))) == experts.PLACES
    assert max(map(len, experts.kept(1.0))) == 4
    assert roof.reachable(1e9) == roof.PEAK
    assert pareto.front()[0] == (3, 95) and (15, 41) not in pareto.front()


def test_only_the_flushed_way_is_never_torn():
    torn = {
        way: [words for words, kinds in cuts.outcomes(way) if "a torn one" in kinds]
        for way in cuts.WAYS
    }
    assert torn["flushed, then renamed"] == []
    assert torn["in place"] == ["write step-04"]
    assert torn["renamed, not flushed"] == ["rename .new"]
    assert cuts.outcomes("flushed, then renamed")[-1] == ("flush names", ["the new one"])


def test_a_save_beside_the_training_leaves_time_for_more_steps():
    assert beside.steps_done("beside") > beside.steps_done("waits")
    for way in ("waits", "beside"):
        for lane in ("training", "disk"):
            own = [span for span in beside.spans(way) if span[0] == lane]
            assert all(one[2] <= other[1] + 1e-9 for one, other in pairwise(own))


@pytest.mark.parametrize("old", [2, 3, 4])
@pytest.mark.parametrize("new", [1, 3, 6])
def test_every_element_is_read_once(old: int, new: int):
    read = [e for _, _, start, stop in resharded.pieces(old, new) for e in range(start, stop)]
    assert sorted(read) == list(range(resharded.ELEMENTS))


def test_time_is_trained_lost_saved_or_spent_on_a_restart():
    for interval in (4, 8, 16, 32):
        parts = ("train", "lost", "save", "restart")
        total = sum(intervals.minutes(interval, part) for part in parts)
        assert total == pytest.approx(intervals.END)
    assert intervals.minutes(4, "save") > intervals.minutes(32, "save")
    assert intervals.minutes(4, "lost") < intervals.minutes(32, "lost")


def test_nobody_waits_where_all_are_equally_fast():
    assert waiting.waited(1.0) == 0 and waiting.waited(1.5) == pytest.approx(3 / 14)


def test_cuts_leave_what_the_sampler_draws_from():
    for rule, (temperature, top_k, top_p) in RULES.items():
        logits = torch.tensor(LOGITS)
        want = next_token_probabilities(logits, temperature, top_k, top_p)
        assert torch.allclose(torch.tensor(kept_of_rule(rule)[1]), want, atol=1e-6)


def test_a_cache_computes_each_token_once():
    for steps in range(1, 8):
        every = [token for step in computed(steps, True) for token in step]
        assert every == list(range(PROMPT + steps - 1))
        naive = steps * PROMPT + steps * (steps - 1) // 2
        assert total(steps, False) == naive


def test_tables_name_blocks_that_hold_their_text():
    for moment in MOMENTS.values():
        for table in moment.tables.values():
            assert all(block in moment.content for block in table)
    assert refs("C is A's fork") == [3, 1, 0, 3, 0, 2]
    assert refs("C writes") == [3, 1, 1, 3, 0, 1]


def test_every_row_computes_every_text_of_its_own():
    for rows in (static(), continuous()):
        counts = {name: sum(row.count(name) for row in rows) for name in ANSWERS}
        assert counts == ANSWERS
    assert len(continuous()[0]) == max(8, math.ceil(sum(ANSWERS.values()) / 3))


def test_ranges_by_the_channel_hold_no_stranger():
    assert ranges("channel") == 16 and spoiled("channel") == 0
    assert ranges("token") == spoiled("token") == 8
