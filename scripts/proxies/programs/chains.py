"""Chains of device ops by name, and the images that they get."""

from tpufeed.images import (
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    VerticalFlip,
)
from tpufeed.images.protocols import Op

SIDE, OUT = 256, 224
TPUS, ONE, IMAGES = ("v5e-8", "v4-8", "v5p-8", "v6e-8"), "v5e-8", 128
# All of RandAugment's but its shears, its rotation and equalize, which a device refuses.
TRANSFORMS = (
    *("identity", "translate_x", "translate_y", "brightness", "color", "contrast", "sharpness", "posterize"),
    *("solarize", "autocontrast"),
)
CROP: tuple[Op, ...] = (RandomResizedCrop(OUT), HorizontalFlip())
JITTER = ColorJitter(0.4, 0.4, 0.4, 0.1)
CHAINS: dict[str, tuple[Op, ...]] = {
    "crop and flip": CROP,
    "crop, flip and jitter": (*CROP, JITTER),
    "RandAugment": (RandAugment(transforms=TRANSFORMS),),
    "RandomResizedCrop": CROP[:1],
    "RandomCrop": (RandomCrop(OUT),),
    "CenterCrop": (CenterCrop(OUT),),
    "HorizontalFlip": CROP[1:],
    "VerticalFlip": (VerticalFlip(),),
    "ColorJitter": (JITTER,),
    "Grayscale": (Grayscale(0.1),),
    "GaussianBlur": (GaussianBlur(0.5),),
    "RandomErasing": (RandomErasing(),),
}
# Those that are also compiled for more images, and in torch_xla and TensorFlow.
USUAL = ("crop and flip", "crop, flip and jitter", "RandAugment")
