"""Tables of TPUs and models (peak FLOP/s, training rates, FLOPs per image), MFU, and the counters of libtpu.

MFU, model FLOPs utilisation, is the share of a TPU's peak FLOP/s that the model uses.
"""

import difflib
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, TypeAlias

from tpufeed.errors import OptionError
from tpufeed.options import above, checked

Flops: TypeAlias = Annotated[float, above(0, 1e18)]  # to train on one image
# A training step is a forward pass and a backward pass, which costs twice as much. A multiply-add is two operations.
_TRAINING_FLOPS = 3 * 2
_RATES_MODEL = "resnet50"  # all rates of TPUs and profiles are for this model
# MLPerf Storage's ResNet-50 trains on a batch of 400 in 0.224 s (H100) and in 0.435 s (A100).
_MLPERF_BATCH = 400
_COUNTER_THREAD, _COUNTER_SECONDS = "tpufeed-counters", 2.0
_GPUS = {"mlperf-h100": 1786.0, "mlperf-a100": 920.0}


@dataclass(frozen=True, slots=True)
class Tpu:
    """The TPU of one host.

    Attributes:
        name: Google's name without "tpu-": v5e-8.
        devices: number of devices that a framework sees: TensorCores of v2, v3 and v7x, chips of other generations.
        peak_tflops: bf16 TFLOP/s per chip, as published by Google.
        bandwidth_gbps: GB/s of HBM per chip, as published by Google.
        low: images per second of ResNet-50 training on all chips together.
        high: the same figure for well tuned training.
    """

    name: str
    chips: int
    devices: int
    peak_tflops: float
    bandwidth_gbps: float
    low: float
    high: float


# `low` and `high` scale two published runs on v3 by peak FLOP/s: 1.05 M img/s on 1024 chips (Ying et al. 2018), 480 k
# img/s on 256 chips (MLPerf's reference code). They are 20.5 % and 37.5 % of the peak. Larger MXUs are harder to fill,
# so `high` is an upper bound for v6e and v7x.
TPUS = {
    tpu.name: tpu
    for tpu in (
        Tpu("v2-8", 4, 8, 45, 700, 1_500, 2_744),
        Tpu("v3-8", 4, 8, 123, 900, 4_100, 7_500),
        Tpu("v4-8", 4, 4, 275, 1_200, 9_167, 16_768),
        Tpu("v5e-8", 8, 8, 197, 819, 13_133, 24_024),
        Tpu("v5p-8", 4, 4, 459, 2_765, 15_300, 27_988),
        Tpu("v6e-8", 8, 8, 918, 1_638, 61_200, 111_951),
        Tpu("v7x-4", 4, 8, 2307, 7_380, 76_900, 140_671),
    )
}

# Name: 10^9 multiply-adds of a forward pass on an image of the model's usual size. torchvision publishes them with its
# weights ("GFLOPS"). ResNet-50's 4.089 is rounded to 4.1: the rates of the TPUs above use 24.6e9 FLOPs per image.
# mobilenet_v1 and xception, which torchvision lacks, were counted by TensorFlow's profiler on the models of Keras.
MODELS = {
    "alexnet": 0.714, "convnext_tiny": 4.456, "convnext_small": 8.684, "convnext_base": 15.355,
    "convnext_large": 34.361, "densenet121": 2.834, "densenet161": 7.728, "densenet169": 3.36, "densenet201": 4.291,
    "efficientnet_b0": 0.386, "efficientnet_b1": 0.687, "efficientnet_b2": 1.088, "efficientnet_b3": 1.827,
    "efficientnet_b4": 4.394, "efficientnet_b5": 10.266, "efficientnet_b6": 19.068, "efficientnet_b7": 37.746,
    "efficientnet_v2_s": 8.366, "efficientnet_v2_m": 24.582, "efficientnet_v2_l": 56.08, "googlenet": 1.498,
    "inception_v3": 5.713, "mobilenet_v1": 0.574, "mobilenet_v2": 0.301, "mobilenet_v3_small": 0.057,
    "mobilenet_v3_large": 0.217, "resnet18": 1.814, "resnet34": 3.664, "resnet50": 4.1, "resnet101": 7.801,
    "resnet152": 11.514, "resnext50_32x4d": 4.23, "resnext101_32x8d": 16.414, "swin_t": 4.491, "swin_s": 8.741,
    "swin_b": 15.431, "vgg16": 15.47, "vgg19": 19.632, "vit_b_16": 17.564, "vit_b_32": 4.409, "vit_l_16": 61.555,
    "vit_l_32": 15.378, "vit_h_14": 167.295, "wide_resnet50_2": 11.398, "wide_resnet101_2": 22.753, "xception": 8.387,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AcceleratorProfile:
    """The rate at which an accelerator trains when it never waits.

    Attributes:
        images_per_second: rate of all its chips together.
        batch_size: the batch size that the profile is defined for, if any.
        flops_per_sample: FLOPs to train on one image, if known.
    """

    name: str
    images_per_second: float
    batch_size: int | None = None
    flops_per_sample: float | None = None
    tpu: Tpu | None = None

    def training(self, model: str) -> "AcceleratorProfile":
        """Return the profile of the same TPU that trains another model at the same FLOP/s.

        Raises OptionError if there is no such model, or if this is not the profile of a TPU.
        """
        flops = training_flops(model)
        if self.tpu is None or self.flops_per_sample is None:
            raise OptionError(f"{self.name} only trains ResNet-50; a model can be chosen for tpu-... profiles")
        rate = self.images_per_second * self.flops_per_sample / flops
        return replace(self, name=f"{self.name} {model}", images_per_second=rate, flops_per_sample=flops)


def profiles() -> dict[str, AcceleratorProfile]:
    """Return all profiles by name. A TPU has `-low` and `-high` profiles. Without an ending it has the high rate."""
    found = {name: AcceleratorProfile(name, rate, _MLPERF_BATCH) for name, rate in _GPUS.items()}
    for tpu in TPUS.values():
        for end, rate in (("", tpu.high), ("-low", tpu.low), ("-high", tpu.high)):
            name = f"tpu-{tpu.name}{end}"
            found[name] = AcceleratorProfile(name, float(rate), None, training_flops(_RATES_MODEL), tpu)
    return found


def profile(name: str) -> AcceleratorProfile:
    """Return the profile of that name. Raises OptionError, which names the nearest."""
    known = profiles()
    return known[nearest(name, known, "accelerator profile")]


def find_tpu(name: str) -> Tpu:
    """Return the TPU of that name, with or without "tpu-". Raises OptionError, which names the nearest."""
    return TPUS[nearest(name.removeprefix("tpu-"), TPUS, "TPU")]


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Return `name` if it is one of `known`. Raises OptionError, which names the nearest."""
    names = list(known)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
    raise OptionError(f"there is no {what} {name!r}; did you mean {near}? All: {', '.join(names)}")


def find_model(name: str) -> str:
    """Return the model's name in `MODELS`. Accept spellings like ResNet-50, efficientnet-b0 and ViT-B/16.

    Raises OptionError, which names the nearest model and the option `--flops-per-sample`.
    """

    def plain(text: str) -> str:
        return "".join(letter for letter in text.lower() if letter.isalnum())

    known = {plain(model): model for model in MODELS}.get(plain(name), name)
    try:
        return nearest(known, MODELS, "model")
    except OptionError as error:
        raise OptionError(
            f"{error}. For another model, give --flops-per-sample: the FLOPs to train on one image, forward and "
            "backward"
        ) from None


def training_flops(name: str) -> float:
    """Return the FLOPs to train a model on one image of its usual size, forward and backward: 24.6e9 for resnet50."""
    return MODELS[find_model(name)] * 1e9 * _TRAINING_FLOPS


@checked()
def mfu_percent(images_per_second: float | None, flops_per_sample: Flops | None, tpu: Tpu | None) -> float | None:
    """Return images per second x FLOPs per image / (bf16 peak x chips), in percent, or None if one of them is unknown.

    The rate is that of all chips of the host together.
    """
    if images_per_second is None or flops_per_sample is None or tpu is None:
        return None
    return 100 * images_per_second * flops_per_sample / (tpu.peak_tflops * 1e12 * tpu.chips)


class TpuCounters(NamedTuple):
    """Readings of a TPU's counters. None means that libtpu does not report the counter.

    Attributes:
        mxu_percent: utilisation of the matrix units, averaged over the cores.
        duty_cycle_percent: share of the time in which the TPU ran a program, averaged over the chips. It can be 100 %
            while the matrix units are at 13 %.
    """

    mxu_percent: float | None = None
    duty_cycle_percent: float | None = None


def read_counters() -> TpuCounters:
    """Read the counters of libtpu, which cover about the last second: read them while the training loop runs.

    They only exist in the process that uses the TPU, if its libtpu has the monitoring SDK. What is no percentage, or
    does not come within two seconds, is None.
    """

    def mean(name: str) -> float | None:
        # Releases of libtpu fail in different ways, and a missing counter must not stop a training run.
        try:
            from libtpu import sdk

            monitoring: Any = getattr(sdk, "tpumonitoring", None) or sdk.monitoring  # the older name
            answer = monitoring.get_metric(name).data()
            values = [] if isinstance(answer, str) else [float(str(value).rstrip(" %")) for value in answer]
        except Exception:  # noqa: BLE001  # see above
            return None
        known = [value for value in values if math.isfinite(value)]
        return sum(known) / len(known) if known and min(known) >= 0 and max(known) <= 100 else None

    def read() -> None:
        for name in ("tensorcore_util", "duty_cycle_pct"):
            found.append(mean(name))

    found = list[float | None]()
    # A thread that hangs in libtpu cannot be ended: a second one would only hang as well.
    if not any(thread.name == _COUNTER_THREAD for thread in threading.enumerate()):
        reader = threading.Thread(target=read, name=_COUNTER_THREAD, daemon=True)
        reader.start()
        reader.join(_COUNTER_SECONDS)
    return TpuCounters(*found[:2])
