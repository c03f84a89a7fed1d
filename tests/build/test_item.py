import msgspec

from tpufeed.build.item import ImageRef, Item, decode_item


def test_the_files_of_a_sample():
    mask = ImageRef("mask.png", 5, "2")
    assert Item("a.jpg", 3, "1").files == (ImageRef("a.jpg", 3, "1"),)
    item = Item("row 7", 3, "1", file="t.parquet", offset=9, row=7, leaf="image.bytes", images=(mask,))
    assert item.files == (ImageRef("t.parquet", 3, "1", 9, 7, "image.bytes"), mask)
    assert [file.place for file in item.files] == ["parquet:t.parquet:7:image.bytes", "mask.png"]


def test_an_item_is_small_and_comes_back():
    item = Item("a.jpg", 3, "1", label=4)
    data = msgspec.msgpack.encode(item)
    assert decode_item(data) == item
    assert len(data) < 40  # fields that say nothing are left out
