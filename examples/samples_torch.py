"""torch: a mask for each image (`--task mask`, a small U-Net), or two views of each (`--task views`, SimCLR).

    scripts/make_scenes.py scenes
    tpufeed shard scenes/scenes.jsonl scenes-tfrecord --image-column mask=mask_path:mask --splits train=0.8,val=0.2
    python examples/samples_torch.py --data scenes-tfrecord --task mask
    python examples/samples_torch.py --data scenes-tfrecord --task views

The mask takes the same random crop and flip as its image, by nearest neighbour. Views are (batch, 2, height, width, 3):
two crops of one decoded image. On a TPU put `to_xla` in the place of `to_torch`.
"""

import argparse

import torch
from torch import nn

import tpufeed
from tpufeed.images import ColorJitter, HorizontalFlip, RandomResizedCrop, Resize

SIZE, WIDTH, CLASSES, TEMPERATURE = 64, 16, 4, 0.2


def parse(arguments=None):
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="dataset of scenes, see above")
    parser.add_argument("--task", choices=("mask", "views"), default="mask")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    return parser.parse_args(arguments)


def block(inputs, outputs, stride=1):
    """A convolution with its normalisation."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """Two halvings down, two doublings up, each with what the way down has kept."""

    def __init__(self):
        super().__init__()
        self.first, self.second = block(3, WIDTH), block(WIDTH, 2 * WIDTH, 2)
        self.third = nn.Sequential(block(2 * WIDTH, 4 * WIDTH, 2), block(4 * WIDTH, 2 * WIDTH))
        self.up, self.last = block(4 * WIDTH, WIDTH), block(2 * WIDTH, WIDTH)
        self.out = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, images):
        first = self.first(images)
        second = self.second(first)
        up = self.up(torch.cat([second, nn.functional.interpolate(self.third(second), scale_factor=2)], 1))
        return self.out(self.last(torch.cat([first, nn.functional.interpolate(up, scale_factor=2)], 1)))


def pixels(images):
    """Normalised floats, channels first."""
    return tpufeed.to_device_float(images, dtype=torch.float32)


def train_masks(args):
    """Return the mean intersection over union of the kinds of shapes on the split val."""
    columns, model = ["image", "mask"], UNet()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    ops = [RandomResizedCrop(SIZE, scale=(0.6, 1.0)), HorizontalFlip()]
    train = tpufeed.Loader(args.data, "train", batch_size=args.batch_size, columns=columns, ops=ops).to_torch()
    val = tpufeed.Loader(
        args.data, "val", batch_size=args.batch_size, columns=columns, ops=[Resize((SIZE, SIZE))], shuffle=False
    ).to_torch()
    with train, val:
        for epoch in range(args.epochs):
            model.train()
            for images, masks in train:
                loss = nn.functional.cross_entropy(model(pixels(images)), masks.long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.eval()
            both, either = torch.zeros(CLASSES), torch.zeros(CLASSES)
            with torch.no_grad():
                for images, masks in val:
                    found = model(pixels(images)).argmax(1)
                    for kind in range(CLASSES):
                        both[kind] += ((found == kind) & (masks == kind)).sum()
                        either[kind] += ((found == kind) | (masks == kind)).sum()
            measure = float((both / either.clamp(min=1))[1:].mean())
            print(
                f"epoch {epoch + 1}: loss {loss.item():.3f}, intersection over union of val {measure:.3f}", flush=True
            )
    return measure


def train_views(args):
    """Return how often an image's second view is nearer to its first than those of all others of a batch."""
    model = nn.Sequential(
        block(3, WIDTH, 2), block(WIDTH, 2 * WIDTH, 2), block(2 * WIDTH, 4 * WIDTH, 2), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(64 * WIDTH, 64),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    crop = [RandomResizedCrop(SIZE, scale=(0.5, 1.0)), HorizontalFlip(), ColorJitter(brightness=0.3, contrast=0.3)]
    with tpufeed.Loader(
        args.data, "train", batch_size=args.batch_size, columns=["image"], views=[(crop, 2)]
    ).to_torch() as train:
        for epoch in range(args.epochs):
            nearest = count = 0
            for images in train:
                batch = len(images)
                embedded = nn.functional.normalize(model(pixels(images.flatten(0, 1))))
                logits = embedded @ embedded.T / TEMPERATURE
                logits.fill_diagonal_(-torch.inf)  # NT-Xent, https://arxiv.org/abs/2002.05709
                partner = torch.arange(2 * batch) ^ 1
                loss = nn.functional.cross_entropy(logits, partner)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                nearest, count = nearest + int((logits.argmax(1) == partner).sum()), count + 2 * batch
            print(
                f"epoch {epoch + 1}: loss {loss.item():.3f}, nearest is the partner {nearest / count:.3f}", flush=True
            )
    return nearest / count


def main(args):
    """Train, print a line an epoch, and return the last measure."""
    torch.manual_seed(0)
    return {"mask": train_masks, "views": train_views}[args.task](args)


if __name__ == "__main__":
    main(parse())
