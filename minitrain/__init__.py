"""minitrain: every technique of efficient and scaled training, from scratch, small enough to read.

Legend of shapes: `B batch  T tokens  D width  H heads  V vocabulary  E experts  N ranks`; a
dimension that is sharded over ranks is written `D/N`.

One folder a chapter, one file a technique; a folder imports only from the floors below it:
measure · model, data · training · parallel · finetuning, quantization, inference, reliability,
planning · lab · bench · commands.
"""

__version__ = "0.1.0"
