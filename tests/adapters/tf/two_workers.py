"""Run by test_processes.py, twice: one worker of a MultiWorkerMirroredStrategy, whose place is in TF_CONFIG.

two_workers.py DATASET OUT
"""

import faulthandler
import json
import os
import sys
from pathlib import Path

import tensorflow as tf

import tpufeed
from tpufeed.images import CenterCrop

PER_CORE = 4

os.environ.setdefault("TPUFEED_PROCESSES", "0")  # worker processes take a second to start
faulthandler.dump_traceback_later(280, exit=True)


def epochs_of(strategy, distributed):
    """Of two epochs the samples of each step, on this worker's only replica."""
    return [[strategy.experimental_local_results(ids)[0].numpy().tolist() for ids in distributed] for _ in range(2)]


def main(url, out):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    given = {"columns": ["sample"], "ops": [CenterCrop(64)]}

    def feed(context):
        return tpufeed.Loader(url, batch_size=PER_CORE, world=context, **given).to_tf()

    size = PER_CORE * strategy.num_replicas_in_sync
    dataset = tpufeed.Loader(url, batch_size=size, **given).to_tf()
    found = {
        "batch_size": size,
        "whole": epochs_of(strategy, strategy.experimental_distribute_dataset(dataset)),
        "from function": epochs_of(strategy, strategy.distribute_datasets_from_function(feed)),
    }
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
