"""The examples with checkpoints of a trainer or of Orbax, stopped in mid-epoch: each sample comes once an epoch."""

import importlib
import json
import re
from pathlib import Path

import pytest

import tpufeed
from tests.frameworks import lazy

ocp = lazy("orbax.checkpoint")

RUNS = {"examples/README.md": "jax_orbax|huggingface_trainer|accelerate_flowers|stateful_dataloader"}

EXAMPLES = Path(__file__).parents[3] / "examples"
STOP = 14  # in the second epoch of 9 steps; the last checkpoint is of step 12
# All trainers in one process, which imports torch and accelerate once. The state of another dataset at the end.
TRAINERS = """
import importlib
import shlex
import sys

sys.path.insert(0, sys.argv[1])


class PowerCut(BaseException):
    pass


for line in sys.argv[2:]:
    name, *words = shlex.split(line)
    example = importlib.import_module(name)

    def fail(text, **options):
        print(text, **options)
        if text.startswith("step 14:"):
            raise PowerCut

    print(f"== {name}", flush=True)
    example.print = fail
    try:
        example.main(example.parse(words))
    except PowerCut:
        pass
    print("-- rest")
    del example.print
    example.main(example.parse(words))
    print("-- other")
    try:
        example.main(example.parse([*words, "--data", "other"]))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""
# Dies once the checkpoint of step 12 is whole, which a thread writes.
KILLED = """
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import jax_orbax


def fail(text, **options):
    print(text, **options)
    if text.startswith("step 14:"):
        while not Path("orbax-run/12").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


jax_orbax.print = fail
jax_orbax.main(jax_orbax.parse(sys.argv[2:]))
"""


def steps(text):
    """Loss and samples of each step, by its number."""
    found = re.findall(r"^step (\d+): loss (\S+), samples (\[.*\])$", text, re.MULTILINE)
    return {int(number): (loss, json.loads(samples)) for number, loss, samples in found}


def expected(flowers, remainder="drop"):
    """The samples of two epochs, batch by batch."""
    options = {"columns": ["sample"], "batch_size": 16, "remainder": remainder, "processes": 0}
    with tpufeed.Loader(flowers.url, **options) as loader:
        if remainder == "drop":
            return [batch.tolist() for _ in range(2) for batch in loader]
        return [batch[mask].tolist() for _ in range(2) for batch, mask in loader]


@pytest.fixture(scope="module")
def trained(flowers, page_arguments, run_example, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainers")
    (folder / "flowers").symlink_to(flowers.url)
    (folder / "other").symlink_to(flowers.cache_url)
    (folder / "trainers.py").write_text(TRAINERS)
    names = ["huggingface_trainer", "accelerate_flowers", "stateful_dataloader"]
    lines = [" ".join([name, *page_arguments(f"{name}.py")]) for name in names]
    text = run_example(folder / "trainers.py", EXAMPLES, *lines, folder=folder, USE_TORCH_XLA="0").text
    parts = re.split(r"^== (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", ["huggingface_trainer", "accelerate_flowers", "stateful_dataloader"])
def test_a_trainer_goes_on_with_the_very_next_sample(flowers, trained, name):
    failed, rest = trained[name].split("-- rest\n")
    rest, other = rest.split("-- other\n")
    before, after = steps(failed), steps(rest)
    assert (list(before), min(after)) == (list(range(1, STOP + 1)), 13)
    assert [before[number] for number in (13, 14)] == [after[number] for number in (13, 14)]  # losses as well
    batches = [samples for _, samples in (before | after).values()]
    assert batches == expected(flowers, "pad" if name == "stateful_dataloader" else "drop")
    assert re.search("^OptionError: the state's content_digest is .*: it is of another dataset", other, re.MULTILINE)


def test_orbax_goes_on_after_a_kill_on_any_number_of_processes(
    flowers, workplace, page_arguments, run_example, monkeypatch, capsys
):
    arguments = page_arguments("jax_orbax.py")
    (workplace / "killed.py").write_text(KILLED)
    killed = run_example(workplace / "killed.py", EXAMPLES, *arguments, folder=workplace, returncode=-9)
    ranks = [tpufeed.Loader(flowers.url, batch_size=4, columns=["sample"], world=(r, 2)) for r in range(2)]
    with ocp.CheckpointManager(workplace / "orbax-run") as manager:
        assert manager.latest_step() == 12
        place = manager.restore(12, args=ocp.args.Composite(loader=ocp.args.JsonRestore())).loader
    batches = expected(flowers)
    assert (place["epoch"], place["samples"]) == (1, 3 * 16)  # as it was when step 12 was saved, not later
    for rank, loader in enumerate(ranks):
        loader.load_state_dict(place)
        with loader:
            assert next(iter(loader)).tolist() == batches[12][rank:8:2]

    monkeypatch.chdir(workplace)
    monkeypatch.setenv("TPUFEED_PROCESSES", "0")
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("jax_orbax")
    example.main(example.parse(arguments))
    rest = capsys.readouterr().out
    assert rest.startswith("goes on after step 12\n")
    before, after = steps(killed.text), steps(rest)
    assert list(after) == list(range(13, 21))
    assert [samples for _, samples in (before | after).values()][:18] == batches
    for number in (13, 14):
        assert float(after[number][0]) == pytest.approx(float(before[number][0]), rel=1e-3)


# The Trainer's own way, without a loader: it skips the ids of the steps that are done.
SAMPLER = """
import torch
import tpufeed
from huggingface_trainer import Model
from transformers import Trainer, TrainerCallback, TrainingArguments


class PowerCut(BaseException):
    pass


class Fail(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 14:
            raise PowerCut


class LaneTrainer(Trainer):
    def _get_train_sampler(self, dataset=None):
        return tpufeed.LaneSampler(self.train_dataset, 1, 0)


def collate(samples):
    images, labels, ids = zip(*samples)
    print(f"samples {list(ids)}, {torch.stack(images).sum()}", flush=True)
    return {"pixel_values": torch.stack(images).permute(0, 3, 1, 2) / 255, "labels": torch.tensor(labels)}


for name, callbacks, resume in (("whole", [], None), ("run", [Fail()], None), ("run", [], "run/checkpoint-12")):
    print("== ")
    dataset = tpufeed.TFRecordImages("cache", columns=["image", "label", "sample"])
    arguments = {"num_train_epochs": 2, "save_steps": 4, "report_to": "none", "per_device_train_batch_size": 16}
    given = TrainingArguments(name, disable_tqdm=True, **arguments)
    trainer = LaneTrainer(Model(5), given, train_dataset=dataset, data_collator=collate, callbacks=callbacks)
    try:
        trainer.train(resume_from_checkpoint=resume)
    except PowerCut:
        pass
"""


@pytest.mark.long  # imports transformers once more, for a way that is wholly the Trainer's
def test_the_trainer_skips_ids_of_a_lane_sampler_and_goes_on_with_the_same_pixels(flowers, run_example, tmp_path):
    (tmp_path / "cache").symlink_to(flowers.cache_url)
    (tmp_path / "sampler.py").write_text(SAMPLER)
    folders = {"PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parent}"}
    text = run_example(tmp_path / "sampler.py", folder=tmp_path, USE_TORCH_XLA="0", **folders).text
    whole, failed, rest = (re.findall(r"^samples .*$", part, re.MULTILINE) for part in text.split("== \n")[1:])
    assert (len(whole), len(rest)) == (20, 8)
    assert failed[:14] == whole[:14]
    assert rest == whole[12:]
