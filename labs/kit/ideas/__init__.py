"""A picture of each idea of the course, before any measurement: `from minitrain.lab import ideas`.

    ideas.ring_reduce_scatter()        shows it, with sliders in a live kernel

A file draws one lab's pictures, in the lab's order; all are computed from definitions, nothing is
measured. A picture is a `Schematic`: its drawing function, its alt text, which follows the sliders,
and the sliders' values.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrain.lab.ideas.schematic import Schematic

LABS = {
    "e00_ranks_and_collectives": (
        "send_and_recv message_cost collectives tree_broadcast ring_reduce_scatter ring_all_gather "
        "recursive_doubling"
    ),
    "e01_baseline": (
        "turning grouped_heads model_matrices step_passes unequal_microbatches step_lifetimes "
        "roofline"
    ),
    "e02_data_parallel": "replicas buckets accumulation",
    "e02b_tensor_parallel": "column_cut row_cut layer_stream vocabulary_cut",
    "e02c_pipeline_parallel": (
        "pipeline_stages pipeline_microbatches pipeline_order pipeline_chunks"
    ),
    "e02d_expert_parallel": "router expert_exchange",
    "e02e_context_parallel": "merged_attention ring_attention ring_gradients heads_for_tokens",
    "e02f_four_dimensions": "mesh_lines counted_once",
    "e02g_slow_networks": "sent_and_kept thin_matrices outer_rounds stale_pushes pair_masks",
    "e03_zero": "zero_stages unit_lifetimes",
    "e04_mixed_precision": "number_lines rounding block_scales",
    "e05_activation_memory": "recomputation block_tensors checkpoints attention_tiles",
    "e06_lora": "low_rank merging lengths adapter_places prefix_columns adapter_pages",
    "e07_qlora": "quantile_levels packed_block scale_bits made_again rounded_away page_table",
    "e08_quantization": "integer_grids outlier_columns moved_scale column_loop straight_through",
    "e09_inference": "token_cuts cache_steps block_tables batches kv_ranges",
    "e09b_speculative_decoding": (
        "speculative_round kept_mass found_again round_cost draft_tree further_heads"
    ),
    "e10_cost": "kept_tensors pareto_front",
    "e11_data_pipeline": (
        "first_rule smallest_values s_curve union_of_pairs sorted_suffixes tempered_shares "
        "document_mask resumed_stream"
    ),
    "e12_reliability": "power_cuts saving_beside resharding waiting_ranks checkpoint_intervals",
    "e13_alignment": "tilted_policy clipped_loss credit",
    "e14_architectures": "growing_cache three_forms layer_pattern",
    "e15_capstone": "byte_stairs pipeline_bound swap_or_wait",
}
_FILE_OF = {name: file for file, names in LABS.items() for name in names.split()}
__all__ = sorted(_FILE_OF)


def __getattr__(name: str) -> Schematic:
    """Imports a lab's file when its first picture is shown."""
    if name not in _FILE_OF:
        raise AttributeError(f"module 'minitrain.lab.ideas' has no picture '{name}'")
    return getattr(import_module(f"minitrain.lab.ideas.{_FILE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
