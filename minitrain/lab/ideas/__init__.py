"""A picture of each idea of the course, before any measurement: `from minitrain.lab import ideas`.

    ideas.ring_reduce_scatter()        shows it, with its handles where they can live

Each file draws one idea; all of it is computed from the definitions, nothing is measured. A
picture is a `Schematic`: what paints it, what says it in words (its alt text, which follows the
handles), and which values can be tried.
"""

from minitrain.lab.ideas.activations import checkpoints
from minitrain.lab.ideas.chance import rounding
from minitrain.lab.ideas.context import ring_attention
from minitrain.lab.ideas.experts import router
from minitrain.lab.ideas.formats import number_lines
from minitrain.lab.ideas.heads import grouped_heads
from minitrain.lab.ideas.matmul_cuts import column_cut, row_cut
from minitrain.lab.ideas.overlap import buckets
from minitrain.lab.ideas.pareto import pareto_front
from minitrain.lab.ideas.recomputing import recomputation
from minitrain.lab.ideas.ring import ring_all_gather, ring_reduce_scatter
from minitrain.lab.ideas.roof import roofline
from minitrain.lab.ideas.saved import block_tensors
from minitrain.lab.ideas.scales import block_scales
from minitrain.lab.ideas.tiles import attention_tiles
from minitrain.lab.ideas.tree import tree_broadcast
from minitrain.lab.ideas.zero import zero_stages

__all__ = [
    "attention_tiles",
    "block_scales",
    "block_tensors",
    "buckets",
    "checkpoints",
    "column_cut",
    "grouped_heads",
    "number_lines",
    "pareto_front",
    "recomputation",
    "ring_all_gather",
    "ring_attention",
    "ring_reduce_scatter",
    "roofline",
    "rounding",
    "router",
    "row_cut",
    "tree_broadcast",
    "zero_stages",
]
