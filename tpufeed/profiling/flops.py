"""Model FLOPs utilisation (MFU): of what a TPU could compute at its peak, how much went into the model."""

from dataclasses import dataclass
from typing import Any

from tpufeed.errors import OptionError
from tpufeed.profiling.tpus import Tpu, nearest

# A training step is a forward pass and a backward one of twice its cost; a multiply-add is two operations.
_TRAINING_FLOPS = 3 * 2


@dataclass(frozen=True, slots=True)
class Model:
    """What one image costs.

    Attributes:
        name: as torchvision writes it.
        giga_multiply_adds: of a forward pass, in 10^9.
        side_px: of the images that this is for.
    """

    name: str
    giga_multiply_adds: float
    side_px: int = 224

    @property
    def training_flops(self) -> float:
        """Of an image, forward and backward."""
        return self.giga_multiply_adds * 1e9 * _TRAINING_FLOPS


# Multiply-adds as torchvision publishes them with its weights ("GFLOPS" in its tables), but ResNet-50's 4.089 as 4.1,
# so that its 24.6e9 is the figure that the TPUs' rates in tpus.py are reckoned with; mobilenet_v1 and xception, which
# torchvision does not have, as TensorFlow's profiler counts Keras' models.
MODELS = {
    model.name: model
    for model in (
        Model("alexnet", 0.714),
        Model("convnext_tiny", 4.456),
        Model("convnext_small", 8.684),
        Model("convnext_base", 15.355),
        Model("convnext_large", 34.361),
        Model("densenet121", 2.834),
        Model("densenet161", 7.728),
        Model("densenet169", 3.36),
        Model("densenet201", 4.291),
        Model("efficientnet_b0", 0.386),
        Model("efficientnet_b1", 0.687, 240),
        Model("efficientnet_b2", 1.088, 288),
        Model("efficientnet_b3", 1.827, 300),
        Model("efficientnet_b4", 4.394, 380),
        Model("efficientnet_b5", 10.266, 456),
        Model("efficientnet_b6", 19.068, 528),
        Model("efficientnet_b7", 37.746, 600),
        Model("efficientnet_v2_s", 8.366, 384),
        Model("efficientnet_v2_m", 24.582, 480),
        Model("efficientnet_v2_l", 56.08, 480),
        Model("googlenet", 1.498),
        Model("inception_v3", 5.713, 299),
        Model("mobilenet_v1", 0.574),
        Model("mobilenet_v2", 0.301),
        Model("mobilenet_v3_small", 0.057),
        Model("mobilenet_v3_large", 0.217),
        Model("resnet18", 1.814),
        Model("resnet34", 3.664),
        Model("resnet50", 4.1),
        Model("resnet101", 7.801),
        Model("resnet152", 11.514),
        Model("resnext50_32x4d", 4.23),
        Model("resnext101_32x8d", 16.414),
        Model("swin_t", 4.491),
        Model("swin_s", 8.741),
        Model("swin_b", 15.431),
        Model("vgg16", 15.47),
        Model("vgg19", 19.632),
        Model("vit_b_16", 17.564),
        Model("vit_b_32", 4.409),
        Model("vit_l_16", 61.555),
        Model("vit_l_32", 15.378),
        Model("vit_h_14", 167.295),
        Model("wide_resnet50_2", 11.398),
        Model("wide_resnet101_2", 22.753),
        Model("xception", 8.387, 299),
    )
}


def find_model(name: str) -> Model:
    """The model of that name; ResNet-50, efficientnet-b0 and ViT-B/16 will do.

    Raises:
        OptionError: there is none; names the nearest, and the way out.
    """
    plain = {_plain(known): known for known in MODELS}
    known = plain.get(_plain(name), name)
    try:
        return MODELS[nearest(known, MODELS, "model")]
    except OptionError as error:
        raise OptionError(
            f"{error}. For any other, give --flops-per-sample: the FLOPs of training on one image, forward and backward"
        ) from None


def training_flops(name: str, side_px: int | None = None) -> float:
    """FLOPs of training on one image: 24.6e9 for resnet50.

    Args:
        name: see `find_model`.
        side_px: of square images of another size than the model's usual one. The cost is taken to grow with their
            area: nearly so for convolutions, while a vision transformer's attention grows somewhat faster.
    """
    model = find_model(name)
    if side_px is None:
        return model.training_flops
    if side_px < 1:
        raise OptionError(f"the side of an image is at least one pixel, not {side_px}")
    return model.training_flops * (side_px / model.side_px) ** 2


def mfu_percent(
    images_per_second: float | None, flops_per_sample: float | None, tpu: Tpu | None, chips: int | None = None
) -> float | None:
    """Images a second x FLOPs of an image / (peak x chips), in percent; None where one of them is not known.

    Args:
        images_per_second: of all `chips` together.
        flops_per_sample: of training on one image.
        tpu: whose peak, in bf16.
        chips: that were at work; by default all of the TPU's host.
    """
    if images_per_second is None or flops_per_sample is None or tpu is None:
        return None
    at_work = tpu.chips if chips is None else chips
    if at_work < 1 or flops_per_sample <= 0:
        raise OptionError(f"chips and FLOPs of a sample are positive, not {at_work} and {flops_per_sample}")
    return 100 * images_per_second * flops_per_sample / (tpu.peak_tflops * 1e12 * at_work)


def compiled_flops(compiled: Any) -> float | None:
    """FLOPs of one call, by XLA's own cost analysis of what it compiled.

    JAX gives it: `jax.jit(step).lower(*arguments).compile()` is what is wanted here. For one device's part of a
    program that is sharded; the body of a loop (`scan`, `while_loop`) counts once. torch_xla has no way to ask, nor has
    TensorFlow: use `training_flops` there.

    Args:
        compiled: a `jax.stages.Compiled`, or anything with such a `cost_analysis()`.

    Returns:
        None where there is no such analysis.
    """
    analyse = getattr(compiled, "cost_analysis", None)
    if analyse is None:
        return None
    try:
        costs = analyse()
    except Exception:  # noqa: BLE001  # backends that cannot raise what they like
        return None
    if isinstance(costs, list | tuple):  # before JAX 0.5
        costs = costs[0] if costs else None
    flops = costs.get("flops") if isinstance(costs, dict) else None
    return float(flops) if flops is not None and flops > 0 else None


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
