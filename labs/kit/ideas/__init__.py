"""A picture of each idea of the course, before any measurement: `from minitrain.lab import ideas`.

    ideas.ring_reduce_scatter()        shows it, with its handles where they can live

Each file draws one idea; all of it is computed from the definitions, nothing is measured. A
picture is a `Schematic`: what paints it, what says it in words (its alt text, which follows the
handles), and which values can be tried.
"""

from minitrain.lab.ideas.accepted import kept_mass
from minitrain.lab.ideas.accumulated import accumulation
from minitrain.lab.ideas.activations import checkpoints
from minitrain.lab.ideas.adapter_pages import adapter_pages
from minitrain.lab.ideas.adapter_places import adapter_places
from minitrain.lab.ideas.again import made_again
from minitrain.lab.ideas.batches import batches
from minitrain.lab.ideas.beside import saving_beside
from minitrain.lab.ideas.bits import scale_bits
from minitrain.lab.ideas.block_tables import block_tables
from minitrain.lab.ideas.branches import draft_tree
from minitrain.lab.ideas.cache_steps import cache_steps
from minitrain.lab.ideas.chance import rounding
from minitrain.lab.ideas.columns import column_loop
from minitrain.lab.ideas.context import ring_attention
from minitrain.lab.ideas.cuts import power_cuts
from minitrain.lab.ideas.data_parallel import replicas
from minitrain.lab.ideas.document_masks import document_mask
from minitrain.lab.ideas.doubling import recursive_doubling
from minitrain.lab.ideas.drafted import speculative_round
from minitrain.lab.ideas.expert_exchange import expert_exchange
from minitrain.lab.ideas.experts import router
from minitrain.lab.ideas.filtered import first_rule
from minitrain.lab.ideas.five_collectives import collectives
from minitrain.lab.ideas.formats import number_lines
from minitrain.lab.ideas.further import further_heads
from minitrain.lab.ideas.grids import integer_grids
from minitrain.lab.ideas.heads import grouped_heads
from minitrain.lab.ideas.heads_for_tokens import heads_for_tokens
from minitrain.lab.ideas.intervals import checkpoint_intervals
from minitrain.lab.ideas.kept import kept_tensors
from minitrain.lab.ideas.kv_ranges import kv_ranges
from minitrain.lab.ideas.lengths import lengths
from minitrain.lab.ideas.lifetimes import step_lifetimes
from minitrain.lab.ideas.lookup import found_again
from minitrain.lab.ideas.low_rank import low_rank
from minitrain.lab.ideas.matmul_cuts import column_cut, row_cut
from minitrain.lab.ideas.matrices import model_matrices
from minitrain.lab.ideas.merged import merged_attention
from minitrain.lab.ideas.merging import merging
from minitrain.lab.ideas.mesh import counted_once, mesh_lines
from minitrain.lab.ideas.messages import message_cost, send_and_recv
from minitrain.lab.ideas.microbatches import unequal_microbatches
from minitrain.lab.ideas.moved import moved_scale
from minitrain.lab.ideas.outlier_columns import outlier_columns
from minitrain.lab.ideas.overlap import buckets
from minitrain.lab.ideas.packed import packed_block
from minitrain.lab.ideas.pages import page_table
from minitrain.lab.ideas.pareto import pareto_front
from minitrain.lab.ideas.passes import step_passes
from minitrain.lab.ideas.prefix_columns import prefix_columns
from minitrain.lab.ideas.quantiles import quantile_levels
from minitrain.lab.ideas.recomputing import recomputation
from minitrain.lab.ideas.resharded import resharding
from minitrain.lab.ideas.resumed import resumed_stream
from minitrain.lab.ideas.ring import ring_all_gather, ring_reduce_scatter
from minitrain.lab.ideas.ring_gradients import ring_gradients
from minitrain.lab.ideas.roof import roofline
from minitrain.lab.ideas.round_costs import round_cost
from minitrain.lab.ideas.rounded import rounded_away
from minitrain.lab.ideas.s_curves import s_curve
from minitrain.lab.ideas.saved import block_tensors
from minitrain.lab.ideas.scales import block_scales
from minitrain.lab.ideas.schedules import (
    pipeline_chunks,
    pipeline_microbatches,
    pipeline_order,
)
from minitrain.lab.ideas.smallest import smallest_values
from minitrain.lab.ideas.stages import pipeline_stages
from minitrain.lab.ideas.straight import straight_through
from minitrain.lab.ideas.stream import layer_stream
from minitrain.lab.ideas.suffixes import sorted_suffixes
from minitrain.lab.ideas.tempered import tempered_shares
from minitrain.lab.ideas.tiles import attention_tiles
from minitrain.lab.ideas.token_cuts import token_cuts
from minitrain.lab.ideas.tree import tree_broadcast
from minitrain.lab.ideas.turning import turning
from minitrain.lab.ideas.unions import union_of_pairs
from minitrain.lab.ideas.units import unit_lifetimes
from minitrain.lab.ideas.vocabulary import vocabulary_cut
from minitrain.lab.ideas.waiting import waiting_ranks
from minitrain.lab.ideas.zero import zero_stages

__all__ = [
    "accumulation",
    "adapter_pages",
    "adapter_places",
    "attention_tiles",
    "batches",
    "block_scales",
    "block_tables",
    "block_tensors",
    "buckets",
    "cache_steps",
    "checkpoint_intervals",
    "checkpoints",
    "collectives",
    "column_cut",
    "column_loop",
    "counted_once",
    "document_mask",
    "draft_tree",
    "expert_exchange",
    "first_rule",
    "found_again",
    "further_heads",
    "grouped_heads",
    "heads_for_tokens",
    "integer_grids",
    "kept_mass",
    "kept_tensors",
    "kv_ranges",
    "layer_stream",
    "lengths",
    "low_rank",
    "made_again",
    "merged_attention",
    "merging",
    "mesh_lines",
    "message_cost",
    "model_matrices",
    "moved_scale",
    "number_lines",
    "outlier_columns",
    "packed_block",
    "page_table",
    "pareto_front",
    "pipeline_chunks",
    "pipeline_microbatches",
    "pipeline_order",
    "pipeline_stages",
    "power_cuts",
    "prefix_columns",
    "quantile_levels",
    "recomputation",
    "recursive_doubling",
    "replicas",
    "resharding",
    "resumed_stream",
    "ring_all_gather",
    "ring_attention",
    "ring_gradients",
    "ring_reduce_scatter",
    "roofline",
    "round_cost",
    "rounded_away",
    "rounding",
    "router",
    "row_cut",
    "s_curve",
    "saving_beside",
    "scale_bits",
    "send_and_recv",
    "smallest_values",
    "sorted_suffixes",
    "speculative_round",
    "step_lifetimes",
    "step_passes",
    "straight_through",
    "tempered_shares",
    "token_cuts",
    "tree_broadcast",
    "turning",
    "unequal_microbatches",
    "union_of_pairs",
    "unit_lifetimes",
    "vocabulary_cut",
    "waiting_ranks",
    "zero_stages",
]
