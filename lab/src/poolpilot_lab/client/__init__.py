"""The load client: many concurrent streamed answers at little cost, timed where the bytes arrive."""
