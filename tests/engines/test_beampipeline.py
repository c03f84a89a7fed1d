"""The pipeline that Beam's child makes: its arguments, its size, and what a failure comes to."""

import hashlib
import pickle
import re

import pytest

import tpufeed
from tests.frameworks import lazy
from tpufeed.builds.plan import TaskRef
from tpufeed.errors import OptionError

pytestmark = pytest.mark.uses("apache_beam")

check_arguments = lazy("tpufeed.engines.beampipeline:check_arguments")
explain = lazy("tpufeed.engines.beampipeline:explain")
pack = lazy("tpufeed.engines.beampipeline:pack")
unpack = lazy("tpufeed.engines.beampipeline:unpack")


def test_a_worker_without_tpufeed_is_told_what_to_install():
    report = "Error message from worker: ...\\nModuleNotFoundError: No module named \\'tpufeed\\'\\n [while running]"
    assert re.match(rf"a worker of Beam has no tpufeed. .* {tpufeed.__version__} on Python", explain(report).message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runner=Nimbus"], "Nimbus"),
        (["--runner=DirectRunner", "--direct_num_workerz=2"], "--direct_num_workerz=2"),
        (["--runner=DirectRunner", "extra"], "extra"),
        (["--runner=DirectRunner", "--direct_num_workers=abc"], "'abc'"),
        (["--runner=DirectRunner", "--direct_running_mode=multi_processing"], "multi_processing"),
        (["--runner=DirectRunner", "--streaming"], "--streaming"),
        (["--runner=DirectRunner", "--save_main_session"], "--save_main_session"),
        (["--runner=DataflowRunner", "--temp_location=t"], "region"),
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
