"""What a lab shows: cards, tables, figures."""
