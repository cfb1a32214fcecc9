"""Linear layers whose weight is held in few bits."""
