"""Cards, tables and figures of a lab."""
