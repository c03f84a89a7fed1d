"""Keras on JAX and on torch, and the programs of docs/keras.md: forks of one process that has imported Keras."""

import functools
import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.frameworks import lazy
from tests.quick_xla import COMPILE_ONCE, QUICK
from tests.repo.docs.pages import blocks
from tests.repo.docs.pages import ran as note

all_steps = lazy("tests.adapters.keras.training:all_steps")
saved_after = lazy("tests.adapters.keras.training:saved_after")

RUNS = {"keras.md": ""}

pytestmark = pytest.mark.timeout(1800)

HERE = Path(__file__).parent
EPOCH = 10  # steps
LONG = [pytest.param("torch", marks=pytest.mark.long)]


@pytest.fixture(scope="module")
def ran(run_forks, dataset_url, cache_url, tmp_path_factory):
    """`ran(backend)` is `(status, stdout, stderr)` of each program by its name."""

    @functools.cache
    def run(backend):
        folder = tmp_path_factory.mktemp(backend)
        programs = {"training": [HERE / "training.py", cache_url, folder / "training", "17"]}
        if backend != "tensorflow":  # which test_dataset.py and tests/adapters/tf have
            programs["fit"] = [HERE / "without_tensorflow.py", dataset_url, cache_url, folder]
        if backend == "jax":
            write_page(folder, dataset_url, cache_url)
            programs["page"] = ["program.py"]
        runs = [{"command": list(map(str, command)), "cwd": str(folder)} for command in programs.values()]
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {QUICK}", "KERAS_BACKEND": backend}
        # Most models have the layers of one before, which is compiled. The cache asks for TensorFlow unless told.
        flags |= COMPILE_ONCE | {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "EPATH_USE_TF": "false"}
        return dict(zip(programs, run_forks("keras", runs, folder, **flags), strict=True)), folder

    return run


def write_page(folder, dataset_url, cache_url):
    shutil.copytree(dataset_url, folder / "flowers")
    shutil.copytree(cache_url, folder / "flowers-224")
    programs = blocks("keras.md")
    assert len(programs) == 4
    last = "import sys; assert 'tensorflow' not in sys.modules; print(scores.shape)"
    (folder / "program.py").write_text("\n".join([*programs, last]))


@pytest.mark.parametrize("backend", ["jax", *LONG])
def test_fit_evaluate_and_predict_without_tensorflow(ran, backend):
    _, output, said = ran(backend)[0]["fit"]
    assert output == "ok\n", said[-3000:]


# test_state.py stops trainings with TensorFlow in its own process.
@pytest.mark.parametrize("backend", ["jax", *LONG, pytest.param("tensorflow", marks=pytest.mark.long)])
def test_a_training_that_is_killed_takes_the_steps_that_were_left(ran, cache_url, backend):
    """In the middle of an epoch or at its end, with weights of every fourth step; see training.py."""
    status, output, said = ran(backend)[0]["training"]
    assert status == 0, said[-3000:]
    *told, statuses = map(json.loads, output.splitlines())
    assert statuses == [-signal.SIGKILL, 0], said[-3000:]
    (whole, weights, stops), (rest, resumed) = told
    expected = all_steps(cache_url)
    assert whole == expected
    for stopped, (before, after, again) in stops.items():
        assert before == expected[: int(stopped)]
        assert after == expected[saved_after(int(stopped), 4, EPOCH) :]
        assert again == pytest.approx(weights)
    assert "ran out of data" not in said
    assert rest == expected[16:]
    assert resumed == pytest.approx(weights)


def test_the_programs_of_the_page_are_one_that_runs(ran):
    programs, folder = ran("jax")
    status, output, said = programs["page"]
    assert status == 0, said[-4000:]
    assert output.count("val_accuracy") == 5
    assert output.splitlines()[-1] == "(26, 3)"
    assert (folder / "backup.json").is_file()
    note("export KERAS_BACKEND=jax", *blocks("keras.md"))  # the fixture sets the variable
