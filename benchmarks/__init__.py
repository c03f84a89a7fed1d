"""Measurements behind the figures of README.md and docs/; `python benchmarks/run.py run` lists them."""
