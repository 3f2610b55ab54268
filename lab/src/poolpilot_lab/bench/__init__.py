"""Benchmarks: `poolpilot bench cost` against other pickers, and single parts of ours, each a module to run."""
