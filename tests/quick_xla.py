"""Flags of XLA for tests: their steps run a few times each, and to compile them well takes longer than that."""

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
