"""A competition, from its csv files to a submission: five folds, a model for each, and test-time augmentation.

The datasets are those of docs/kaggle.md, folds and forms are as in docs/views.md.
"""

import csv
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import tpufeed
from tpufeed.images import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize

FOLDS, EPOCHS = 5, 4
form = [Resize(36), CenterCrop(32)]
forms = [form, [*form, HorizontalFlip(1.0)], [Resize(32), CenterCrop(32)]]
leaves, test = tpufeed.open_dataset("leaves-train"), tpufeed.open_dataset("leaves-test")


def train(dataset):
    layers = [torch.nn.Conv2d(3, 16, 5, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, len(dataset.class_names)))
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    ops = [RandomResizedCrop(32), HorizontalFlip()]
    with tpufeed.Loader(dataset, "train", batch_size=8, ops=ops).to_torch() as loader:
        for _ in range(EPOCHS):
            for images, labels in loader:
                loss = cross_entropy(model(tpufeed.to_device_float(images, dtype=torch.float32)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model


def predict(model, dataset, column, ops):
    """Yield a column's value and the likelihoods of each sample."""
    options = {"batch_size": 8, "columns": ["image", column], "shuffle": False, "remainder": "pad", "ops": ops}
    with tpufeed.Loader(dataset, "train", **options) as loader, torch.no_grad():
        for images, values, mask in loader:
            floats = tpufeed.to_device_float(torch.from_numpy(images[mask]), dtype=torch.float32)
            yield from zip(values[mask], model(floats).softmax(1).numpy(), strict=True)


torch.manual_seed(0)
right, likely = 0, {}
for number in range(FOLDS):
    fold = (number, FOLDS)
    model = train(leaves.select(without_fold=fold, stratify=True))
    held_out = leaves.select(fold=fold, stratify=True)
    right += sum(label == guess.argmax() for label, guess in predict(model, held_out, "label", form))
    for ops in forms:
        for name, guess in predict(model, test, "filename", ops):
            image_id = Path(name).stem
            likely[image_id] = likely.get(image_id, 0) + guess
print(f"{right} of {leaves.split('train').records} right")

with (
    Path("leaves/sample_submission.csv").open(newline="") as sample,
    Path("submission.csv").open("w", newline="") as file,
):
    rows = csv.writer(file)
    rows.writerow(["image_id", "label"])
    for row in csv.DictReader(sample):
        rows.writerow([row["image_id"], leaves.class_names[np.argmax(likely[row["image_id"]])]])
