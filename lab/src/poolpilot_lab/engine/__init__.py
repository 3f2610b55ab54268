"""A step-level model of a continuous-batching engine, and the stand-in vLLM server built on it."""
