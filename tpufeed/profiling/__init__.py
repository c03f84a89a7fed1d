"""Where a training step's time goes: waits and computes, a TPU's own counters, and an accelerator to emulate one."""
