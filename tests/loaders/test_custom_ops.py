"""Functions of the user's in a loader: what fails names the record; what cannot be imported does not blame it."""

import pytest

import tpufeed
from tpufeed.errors import OpError, OptionError
from tpufeed.images import Custom, RandomResizedCrop


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "users_ops.py").write_text(
        "def fails(image, rng):\n    raise KeyError('gone')\n\n\ndef dims(image, rng):\n    return image // 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("module")
def test_an_op_that_raises_names_the_record(dataset_url):
    ops = [RandomResizedCrop(32), Custom("users_ops:fails")]
    with (
        tpufeed.Loader(dataset_url, batch_size=4, ops=ops, shuffle=False) as loader,
        pytest.raises(OpError, match=r"train-00000-of-\d+\.tfrecord, record \d: .*users_ops:fails.*gone"),
    ):
        list(loader)


@pytest.mark.usefixtures("module")
def test_an_op_runs_live(dataset_url):
    plain, dimmed = (
        next(iter(tpufeed.Loader(dataset_url, batch_size=4, ops=[RandomResizedCrop(32), *more], shuffle=False)))[0]
        for more in ([], [Custom("users_ops:dims")])
    )
    assert (dimmed == plain // 2).all()


def test_an_op_that_cannot_be_imported_is_no_damage(dataset_url):
    ops = [RandomResizedCrop(32), Custom("no_such_module:f")]
    with pytest.raises(OptionError, match="no_such_module"):
        list(tpufeed.Loader(dataset_url, batch_size=4, ops=ops))
