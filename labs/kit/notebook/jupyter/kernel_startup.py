# Run by each kernel of `make lab` before its first cell; a plain `python` runs it, too.
import sys

if "IPython" in sys.modules:
    from minitrain.lab.notebook import slips

    slips.install()
    del slips
del sys
