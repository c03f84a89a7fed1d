"""The time of a training step: waits and computes, a TPU's own counters, and an accelerator to emulate one."""
