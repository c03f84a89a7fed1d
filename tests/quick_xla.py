"""Flags of XLA for tests: their steps run a few times each, and to compile them well takes longer than that."""

COMPILE_ONCE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # with JAX_COMPILATION_CACHE_DIR
# At level 0 a step with convolutions takes twenty times as long as at 1, which compiles as fast.
# Fusions that MLIR emits take twice as long to compile.
QUICK = (
    "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)
