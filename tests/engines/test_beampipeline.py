"""The pipeline that Beam's child makes: its arguments, its size, and what a failure comes to."""

import hashlib
import pickle
import re

import pytest

import tpufeed
from tpufeed.build.plan import TaskRef
from tpufeed.errors import OptionError

pytest.importorskip("apache_beam")
from tpufeed.engines.beampipeline import check_arguments, explain, pack, unpack


def test_a_worker_without_tpufeed_is_told_what_to_install():
    report = "Error message from worker: ...\\nModuleNotFoundError: No module named \\'tpufeed\\'\\n [while running]"
    assert re.match(rf"a worker of Beam has no tpufeed; .* {tpufeed.__version__} on Python", explain(report).message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runner=Nimbus"], "Unexpected pipeline runner: Nimbus. Valid values are .*DataflowRunner"),
        (["--runner=DirectRunner", "--direct_num_workerz=2"], "know --direct_num_workerz=2"),
        (["--runner=DirectRunner", "extra"], "know extra"),
        (["--runner=DirectRunner", "--direct_num_workers=abc"], "invalid int value: 'abc'"),
        (["--runner=DirectRunner", "--direct_running_mode=multi_processing"], "direct_running_mode=multi_processing"),
        (["--runner=DirectRunner", "--streaming"], "leave out --streaming"),
        (["--runner=DirectRunner", "--save_main_session"], "leave out --save_main_session"),
        (["--runner=DataflowRunner", "--temp_location=t"], "(?s)Invalid GCS path .*project.*region"),
    ],
)
def test_arguments_that_beam_does_not_take(arguments, message):
    with pytest.raises(OptionError, match=message):
        check_arguments(arguments)


def test_a_pipeline_of_a_hundred_thousand_tasks_is_small():
    tasks = []
    for n in range(100_000):
        digest = hashlib.blake2b(b"%d" % n, digest_size=16).digest()
        ref = TaskRef(n, "train", 90_000 * n, 90_000 * (n + 1), f"train-{n:05d}-of-100000.tfrecord", digest)
        tasks.append((n, pickle.dumps(ref)))
    blocks = pack(tasks)
    assert sum(map(len, blocks)) < 4e6  # Dataflow takes 10 MB
    assert [each for block in blocks for each in unpack(block)] == tasks
