"""Processes and cores of a host: what they may use, and child processes. Nothing about tasks or batches."""
