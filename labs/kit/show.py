"""Figures, tables and numbers of a lab in one style: `from minitrain.lab import show`.

Figures: lines, bars, timeline, draw_schedule, draw_load, draw_mesh, canvas + figure.
Tables: table.
Text: bytes_text, seconds_text, count_text.  Each call displays at once and returns None.
"""

from minitrain.lab.drawing.charts import bars, timeline
from minitrain.lab.drawing.colors import COLORS
from minitrain.lab.drawing.expert_load import draw_load
from minitrain.lab.drawing.figures import MARKERS, STYLE, canvas, figure, lines, picture
from minitrain.lab.drawing.mesh import draw_mesh
from minitrain.lab.drawing.schedule import draw_schedule
from minitrain.lab.drawing.tables import table
from minitrain.words import bytes_text, count_text, seconds_text
