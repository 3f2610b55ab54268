"""Benchmarks of single parts of the picker, each a module to run: `python -m poolpilot_lab.bench.pick`."""
