"""How fast accelerators take images: TPUs low and high, MLPerf Storage's GPUs, or one of your own."""

from dataclasses import dataclass, field, replace

from tpufeed.errors import OptionError
from tpufeed.profiling.flops import training_flops
from tpufeed.profiling.tpus import TPUS, Tpu, nearest

PROFILES_MODEL = "resnet50"  # what the rates of all of them are of

# MLPerf Storage's ResNet-50: a batch of 400 in 0.224 s and in 0.435 s.
_MLPERF_BATCH = 400
_GPUS = {"mlperf-h100": 1786.0, "mlperf-a100": 920.0}


@dataclass(frozen=True, slots=True)
class AcceleratorProfile:
    """How many images a second an accelerator trains on when it never waits.

    Attributes:
        name: for people.
        images_per_second: of all its chips.
        batch_size: that belongs to the profile, where one does.
        flops_per_sample: of training on one image, where that is known.
        tpu: that it is of.
    """

    name: str
    images_per_second: float
    batch_size: int | None = None
    flops_per_sample: float | None = field(default=None, compare=False)
    tpu: Tpu | None = field(default=None, compare=False)

    def training(self, model: str) -> "AcceleratorProfile":
        """The same TPU with another model, of which it computes as many FLOPs a second.

        Raises:
            OptionError: there is no such model, or this is no TPU.
        """
        flops = training_flops(model)
        if self.tpu is None or self.flops_per_sample is None:
            raise OptionError(f"{self.name} trains on ResNet-50 only; a model can be chosen for tpu-... profiles")
        rate = self.images_per_second * self.flops_per_sample / flops
        return replace(self, name=f"{self.name} {model}", images_per_second=rate, flops_per_sample=flops)


def profiles() -> dict[str, AcceleratorProfile]:
    """All that have a name. A TPU's ends in `-low` or `-high`; without either it is the high one, harder to feed."""
    found = {}
    for tpu in TPUS.values():
        for end, rate in (("", tpu.high), ("-low", tpu.low), ("-high", tpu.high)):
            name = f"tpu-{tpu.name}{end}"
            found[name] = AcceleratorProfile(name, float(rate), None, training_flops(PROFILES_MODEL), tpu)
    return found | {name: AcceleratorProfile(name, rate, _MLPERF_BATCH) for name, rate in _GPUS.items()}


def profile(name: str) -> AcceleratorProfile:
    """The profile of that name. Raises OptionError, which names the nearest."""
    known = profiles()
    return known[nearest(name, known, "accelerator profile")]


def custom_profile(step_ms: float, batch_size: int) -> AcceleratorProfile:
    """Of an accelerator that takes `step_ms` milliseconds for a batch. Raises OptionError where it cannot be one."""
    if not step_ms > 0 or step_ms == float("inf"):
        raise OptionError(f"a step takes more than 0 milliseconds, not {step_ms:g}")
    if batch_size < 1:
        raise OptionError(f"a batch has at least one image, not {batch_size}")
    return AcceleratorProfile(f"{step_ms:g}ms-step", 1e3 * batch_size / step_ms, batch_size)
