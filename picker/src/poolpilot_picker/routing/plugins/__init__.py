"""Filters, scorers and pickers, one file per family; each lists its types in `TYPES`, the registry gathers them."""
