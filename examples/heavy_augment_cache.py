"""An augmentation that no host can do live, warmed into a cache: albumentations before and after.

    pip install '.[torch]' albumentations
    tpufeed shard photos flowers --splits train=0.8,val=0.2
    python examples/heavy_augment_cache.py --data flowers --cache flowers-heavy --epochs 8

Feeds an EMULATED TPU v3-8 with the augmentation done live, warms a cache of four variants, feeds it from there, and
then trains a small model from the cache. The same command again finds the cache as it is.
"""

import argparse
import itertools
import os
import sys
import threading
from functools import partial

import numpy as np

import tpufeed
from tpufeed.images import CenterCrop, Custom, HorizontalFlip, RandomResizedCrop, Resize

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # or each process asks the network for a newer version

_LOCAL = threading.local()


def augment(image, rng):
    """What `Custom` calls: uint8 pixels and a Generator in, uint8 pixels of the same shape out.

    All randomness comes from `rng`, which follows from seed, sample and variant. So any number of threads and workers
    makes the same cache, and one that was interrupted goes on with the same bytes. A pipeline that draws from a
    generator of its own gives each worker other pixels: warming finds that out on the first samples, and refuses.
    """
    if not hasattr(_LOCAL, "pipeline"):  # one a thread, as seeding changes it
        _LOCAL.pipeline = make_pipeline()
    _LOCAL.pipeline.set_random_seed(int(rng.integers(2**32)))
    return np.ascontiguousarray(_LOCAL.pipeline(image=image)["image"])


def make_pipeline():
    """As in many a Kaggle notebook."""
    import albumentations  # takes a second, which processes that only read the cache do not spend

    return albumentations.Compose(
        [
            albumentations.ElasticTransform(alpha=60, sigma=8, p=0.8),
            albumentations.GridDistortion(distort_limit=0.2, p=0.5),
            albumentations.CLAHE(p=0.5),
            albumentations.ISONoise(p=0.5),
            albumentations.MedianBlur(blur_limit=5, p=0.3),
        ]
    )


def make_ops(size):
    """Cropped first, as an op after it has fewer pixels to work on. Raise the version when `augment` changes."""
    return [RandomResizedCrop(size=size), HorizontalFlip(), Custom("heavy_augment_cache:augment", version="1")]


def feed(options, what, url, ops=None):
    """How well `url` keeps a TPU fed that is not there: it takes batches at the rate of a real one, and waits."""
    from tpufeed.measure.accelerator import EmulatedAccelerator
    from tpufeed.measure.tpu import profile

    accelerator = EmulatedAccelerator(profile("tpu-v3-8"), options.batch_size)
    with tpufeed.Loader(url, batch_size=options.batch_size, ops=ops, seed=options.seed) as loader:
        report = accelerator.run(loader, seconds=options.seconds)
    rate, idle = report.images_per_second, report.idle_percent
    known = "too few batches to tell" if rate is None else f"{rate:,.0f} images/s, idle {idle:.1f} %"
    print(f"{report.device}, {what}: {known}", flush=True)


def warm(options):
    """The cache. Epoch e reads variant e mod 4, so that training sees each photo in four ways, at the price of one."""
    warmup = partial(tpufeed.cache.warmup, ops=make_ops(options.size), variants=options.variants, seed=options.seed)
    warmup(options.data, options.cache, workers=options.workers)
    records = tpufeed.open_dataset(options.cache).split("train").records
    print(f"{options.cache}: {records} photos in {options.variants} variants", flush=True)


def train(options):
    """A small convolutional net, from the cache."""
    import torch

    torch.manual_seed(options.seed)
    with tpufeed.Loader(options.cache, "train", batch_size=options.batch_size, seed=options.seed).to_torch() as host:
        loader = tpufeed.device_loader(host)  # to the accelerator, if there is one
        model = make_model(torch, len(tpufeed.open_dataset(options.data).manifest.class_names)).to(loader.device)
        optimizer = torch.optim.SGD(model.parameters(), options.learning_rate, momentum=0.9, nesterov=True)
        for epoch in range(options.epochs):
            clock, losses = tpufeed.StepClock(), []
            for images, labels in clock(loader):
                scores = model(tpufeed.to_device_float(images, dtype=torch.float32))
                loss = torch.nn.functional.cross_entropy(scores, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())  # waits for the device, so that the clock tells waiting from computing
            report = clock.report()
            known = report.images_per_second is not None
            told = f"{report.images_per_second:,.0f} images/s, idle {report.idle_percent:.1f} %" if known else "n/a"
            print(f"epoch {epoch}: loss {np.mean(losses):.4f}, {told}", flush=True)
    evaluate(options, model.eval(), loader.device)


def evaluate(options, model, device):
    """Held-out photos as they are: they come from the dataset, as in the cache all splits are augmented."""
    import torch

    ops = [Resize(options.size), CenterCrop(options.size)]
    right = seen = 0
    given = {"batch_size": options.batch_size, "ops": ops, "shuffle": False, "remainder": "pad"}
    with tpufeed.Loader(options.data, "val", **given).to_torch() as host, torch.no_grad():
        for images, labels, mask in tpufeed.device_loader(host, device):
            found = model(tpufeed.to_device_float(images, dtype=torch.float32)).argmax(1)
            right += ((found == labels) & mask).sum().item()
            seen += mask.sum().item()
    print(f"accuracy, held out: {right / seen:.3f} of {seen}")


def make_model(torch, classes):
    """Convolutions, each of which halves height and width, and a dense layer."""
    layers, widths = [], (3, 16, 32, 64)
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Conv2d(before, after, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
    pooled = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    return torch.nn.Sequential(*layers, *pooled, torch.nn.Linear(widths[-1], classes))


def parse(arguments):
    """The options as a namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a dataset with labels, and splits train and val")
    parser.add_argument("--cache", required=True, help="where the cache goes, or lies")
    parser.add_argument("--variants", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="pixels a side")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seconds", type=float, default=8.0, help="of feeding, before and after")
    parser.add_argument("--workers", type=int, help="processes that warm the cache; default: one a core")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main(options):
    """Before, warming, after, and training."""
    feed(options, "augmented live", options.data, make_ops(options.size))
    warm(options)
    feed(options, "from the cache", options.cache)
    train(options)


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
