"""What a lab shows, in one style: `from minitrain.lab import show`, then `show.lines(…)`.

Figures: lines, bars, timeline, draw_schedule, draw_load, draw_mesh, canvas + figure.
Cards: table, card.
Text: bytes_text, seconds_text, count_text.  Each call displays at once and returns None.
"""

from minitrain.lab.cards import bytes_text, card, count_text, seconds_text, table
from minitrain.lab.charts import bars, timeline
from minitrain.lab.figures import COLORS, MARKERS, STYLE, canvas, figure, lines, picture
from minitrain.lab.load_chart import draw_load
from minitrain.lab.mesh_chart import draw_mesh
from minitrain.lab.schedule_chart import draw_schedule

__all__ = [
    "COLORS",
    "MARKERS",
    "STYLE",
    "bars",
    "bytes_text",
    "canvas",
    "card",
    "count_text",
    "draw_load",
    "draw_mesh",
    "draw_schedule",
    "figure",
    "lines",
    "picture",
    "seconds_text",
    "table",
    "timeline",
]
