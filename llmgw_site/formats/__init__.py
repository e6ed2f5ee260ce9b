"""How dates are written, by language: the same everywhere."""
