"""What a batch of numpy_loader holds, and how."""

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import DatasetNotFoundError, OptionError


def first(url, split="val", **options):
    with tpufeed.numpy_loader(url, split, **{"batch_size": 13, "shuffle": False, **options}) as loader:
        return next(iter(loader))


def test_by_default_a_batch_is_image_and_label(cache_url, stored):
    batch = first(cache_url)
    assert isinstance(batch, tuple)
    images, labels = batch
    np.testing.assert_array_equal(images, stored(cache_url, "val").pixels[:13])
    np.testing.assert_array_equal(labels, stored(cache_url, "val").labels[:13])


def test_unlabelled_data_gives_images_alone_and_a_mask_where_it_is_padded(flat_url, stored):
    images = first(flat_url, "train")
    assert isinstance(images, np.ndarray)
    np.testing.assert_array_equal(images, stored(flat_url).pixels[:13])
    images, mask = first(flat_url, "train", remainder="pad", batch_size=32)
    assert mask.tolist() == [True] * 20 + [False] * 12
    np.testing.assert_array_equal(images[mask], stored(flat_url).pixels)
    batch = first(flat_url, "train", columns=None)
    assert list(batch) == ["image", "sample"]
    with pytest.raises(OptionError, match="no column 'label'"):
        first(flat_url, "train", columns=["image", "label"])


def test_columns_are_asked_for_by_short_names_and_by_their_own(dataset_url, stored, ops):
    names = ["sample", "filename", "image", "text", "height", "width", "channels", "format", "label", "image/height"]
    batch = dict(zip(names, first(dataset_url, columns=names, ops=ops), strict=True))
    expected = stored(dataset_url, "val")
    assert batch["sample"].tolist() == list(range(13))
    assert batch["filename"].tolist() == expected.texts("image/filename")[:13]
    assert all(type(value) is str for value in batch["filename"])
    assert batch["text"].tolist() == expected.texts("image/class/text")[:13]
    assert set(batch["format"]) == {"jpeg"}
    assert set(batch["channels"]) == {3}
    assert batch["label"].tolist() == expected.labels[:13].tolist()
    for name in ("height", "width"):
        assert batch[name].dtype == np.int64
        assert batch[name].tolist() == expected.column(f"image/{name}")[:13]
    assert set(batch["height"]) == {120, 160}
    assert batch["image/height"].tolist() == batch["height"].tolist()
    assert batch["image"].shape == (13, 64, 64, 3)


def test_file_names_go_with_their_samples_whatever_the_order(cache_url, stored):
    expected = stored(cache_url).texts("image/filename")
    with tpufeed.numpy_loader(cache_url, columns=["filename", "sample"], batch_size=7) as loader:
        for names, samples in loader:
            assert names.tolist() == [expected[sample] for sample in samples]


@pytest.mark.parametrize(
    ("remainder", "names"), [("drop", ["image", "label", "sample"]), ("pad", ["image", "label", "sample", "mask"])]
)
def test_columns_none_is_a_dict(cache_url, remainder, names):
    batch = first(cache_url, columns=None, remainder=remainder)
    assert isinstance(batch, dict)
    assert list(batch) == names


def test_an_array_alone_where_there_is_but_one_column(cache_url):
    assert first(cache_url, columns=["label"]).shape == (13,)


def test_an_unknown_column_is_an_error_that_names_the_known_ones(cache_url):
    with pytest.raises(OptionError, match="no column 'lable'; this dataset has image, sample, label, text") as caught:
        tpufeed.numpy_loader(cache_url, columns=["image", "lable"])
    for name in str(caught.value).partition(" has ")[2].split(", "):
        first(cache_url, columns=[name])  # each can be had


def test_images_that_differ_in_size_need_an_op_that_fixes_it(dataset_url):
    with pytest.raises(OptionError, match=r"differ in size.*ops=\[RandomResizedCrop\(size=224\)"):
        tpufeed.numpy_loader(dataset_url)
    with pytest.raises(OptionError, match="differ in size"):
        tpufeed.numpy_loader(dataset_url, ops=[tpufeed.images.Resize(64)])


def test_what_is_not_there_is_named(cache_url, tmp_path):
    with pytest.raises(OptionError, match="no split 'test'; it has train, val"):
        tpufeed.numpy_loader(cache_url, "test")
    with pytest.raises(DatasetNotFoundError, match=r"holds no dataset.*tpufeed shard"):
        tpufeed.numpy_loader(tmp_path)
