"""Cores, limits and NUMA nodes of a host, and child processes. Nothing about tasks or batches."""
