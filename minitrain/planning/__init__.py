"""On paper, before the money is spent: scaling laws."""
