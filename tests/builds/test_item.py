import msgspec

from tpufeed.builds.item import Item, decode_item


def test_an_item_is_small_and_comes_back():
    item = Item("a.jpg", 3, "1", label=4)
    data = msgspec.msgpack.encode(item)
    assert decode_item(data) == item
    assert len(data) < 40  # fields that say nothing are left out
