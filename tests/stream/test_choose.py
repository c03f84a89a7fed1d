"""One of several values for each sample and epoch, and texts that functions in workers make tokens of."""

import itertools
import json

import numpy as np
import pytest
from PIL import Image

import tpufeed
from tpufeed.cache import warmup
from tpufeed.errors import OpError, OptionError, RecordError
from tpufeed.images import Choose, Custom, HorizontalFlip, Resize
from tpufeed.images.protocols import evaluation_of

COUNT = 30
CROP = [Resize((8, 8))]
TOKENS = [Choose("captions"), Custom("tests.stream.test_choose:tokenised", sample=True)]
NAMES = ("sample", "captions", "score", "note")
CAPTIONS = [[f"red {number}", f"a large bus {number}", f"{number}"][: number % 3 + 1] for number in range(COUNT)]


def tokenised(sample, random):
    """A number for each word, its length. It draws one more, and changes another text and a number."""
    words = [len(word) for word in sample["captions"].split()]
    return sample | {"captions": words, "note": sample["note"].upper(), "score": sample["score"] + 1}


def read(sample, random):
    return sample | {"captions": [0.5]}


def doubled(sample, random):
    return sample | {"grid": np.concatenate([sample["grid"]] * 2)}


def ragged(sample, random):
    return sample | {"captions": [[1], [2, 3]]}


def kept(sample, random):
    return sample


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder, rows = tmp_path_factory.mktemp("captions"), []
    for number, captions in enumerate(CAPTIONS):
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)).save(
            folder / f"{number}.png"
        )
        note = {"note": f"note {number}"} if number else {}
        more = {
            "captions": captions,
            "score": number / 2,
            "grid": [[1, 2]],
            "tags": ["a", "b"][: number % 3],
            "few": [9] * (number % 2),
        }
        rows.append({"path": f"{number}.png", **more, **note})
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tpufeed.shard(folder / "table.jsonl", folder / "d", label="none", columns={"few": "uint8[]"}, workers=1).url


def loader(url, ops, columns=NAMES, **options):
    options = {"batch_size": 10, "processes": 0, "seed": 5, "fill": {"note": "none"}, **options}
    return tpufeed.Loader(url, ops=[*CROP, *ops], columns=columns, **options)


def texts(batch):
    return dict(zip(batch[0].tolist(), batch[1].tolist(), strict=True))


def captions_of(url):
    with loader(url, [], ["sample", "score"], fill=None) as each:
        return {sample: CAPTIONS[int(score * 2)] for batch in each for sample, score in zip(*batch, strict=True)}


def test_one_of_several_is_drawn_in_each_epoch_and_again_after_a_resume(url):
    known, seen = captions_of(url), {}
    with loader(url, [Choose("captions")]) as each:
        epochs = [[texts(batch) for batch in each] for _ in range(12)]
    for batches in epochs:
        for sample, text in itertools.chain.from_iterable(batch.items() for batch in batches):
            seen.setdefault(sample, set()).add(text)
    assert all(texts <= set(known[sample]) for sample, texts in seen.items())
    assert sum(map(len, seen.values())) > 0.9 * sum(map(len, known.values()))
    with loader(url, [Choose("captions")]) as each:
        list(each)
        next(iterator := iter(each))
        state = each.state_dict()
        iterator.close()
    with loader(url, [Choose("captions")], processes=1) as each:
        each.load_state_dict(state)
        assert [texts(batch) for batch in each] == epochs[1][1:]


def test_samples_without_any_get_what_fill_says(url):
    with loader(url, [Choose("captions"), Choose("tags")], ["tags"], fill={"tags": "none"}) as each:
        assert {tag for tags in each for tag in tags} == {"none", "a", "b"}
    with loader(url, [Choose("tags")], ["score"], fill=None) as each:
        next(iter(each))


def test_evaluation_takes_the_first(url):
    (op,) = evaluation_of([Choose("captions")])
    known = captions_of(url)
    with loader(url, [op]) as each:
        assert all(text == known[sample][0] for batch in each for sample, text in texts(batch).items())


@pytest.mark.parametrize("processes", [0, 1])
def test_a_function_makes_tokens_of_a_text(processes, url):
    with loader(url, TOKENS[:1]) as plain, loader(url, TOKENS, pad={"captions": 5}, processes=processes) as each:
        for before, after in zip(plain, each, strict=True):
            samples, tokens, lengths, score, note = after
            assert (tokens.dtype, tokens.shape, lengths.dtype) == (np.int32, (10, 5), np.int32)
            words = [[len(word) for word in text.split()] for text in before[1]]
            assert tokens.tolist() == [(row + [0] * 5)[:5] for row in words]
            assert lengths.tolist() == list(map(len, words))
            assert samples.tolist() == before[0].tolist()
            assert (score == before[2] + 1).all()
            assert note.tolist() == [text.upper() for text in before[3]]


def test_device_ops_may_follow(url):
    columns = ["image", "captions", "score", "note"]
    options = {"columns": columns, "pad": {"captions": 5}}
    with (
        loader(url, [*TOKENS, HorizontalFlip()], **options) as here,
        loader(url, TOKENS, device_ops=[HorizontalFlip()], **options) as there,
    ):
        for one, other in zip(next(iter(here)), next(iter(there)), strict=True):
            assert np.array_equal(one, other)


CHANGED = [Choose("captions"), Custom(read, sample=True)]


@pytest.mark.parametrize(
    ("ops", "options", "error", "said"),
    [
        ([], {}, OptionError, r"Choose\('captions'\)"),
        ([Choose("caption")], {}, OptionError, "'caption'"),
        ([Choose("captions"), Choose("grid")], {}, OptionError, "'grid'"),
        ([Choose("few")], {"columns": ["few"], "fill": None}, OptionError, r"int64.*is uint8\[0 to 1\]"),
        ([Choose("captions"), Choose("image")], {}, OptionError, "a stored column"),
        ([Choose("captions"), Choose("window")], {}, OptionError, "a stored column"),
        ([Choose("captions"), Choose("tags")], {"columns": ["captions", "tags"]}, OptionError, "fill="),
        (TOKENS[:1], {"pad": {"captions": 5}}, OptionError, "pad is for"),
        (TOKENS, {}, OpError, r"pad=\{'captions': 77\}"),
        (TOKENS, {"pad": {"captions": 2}}, RecordError, "truncate"),
        (CHANGED, {"pad": {"captions": 2}}, OpError, "float64.*a text"),
        ([TOKENS[0], Custom(ragged, sample=True)], {"pad": {"captions": 2}}, OpError, "ragged.*'captions'"),
        ([Choose("captions"), Custom(kept, sample=True)], {"pad": {"captions": 2}}, OpError, "'captions' as str"),
    ],
)
def test_what_cannot_be_chosen_or_batched(ops, options, error, said, url):
    with pytest.raises(error, match=said), loader(url, ops, **options) as each:
        next(iter(each))


def test_a_tensor_of_another_shape_is_the_fault_of_its_function(url):
    each = loader(url, [Custom(doubled, sample=True)], ["image", "grid"], fill=None)
    with each, pytest.raises(OpError, match=r"returned 'grid' of shape \(2, 2\): return it with the shape \(1, 2\)"):
        next(iter(each))


def test_views_and_caches(url, tmp_path):
    crops = [CROP, [*CROP, Choose("captions")]]
    with pytest.raises(OptionError, match="first view"):
        tpufeed.Loader(url, views=crops, columns=["image", "captions"], batch_size=2)
    with pytest.raises(OptionError, match="only loaders"):
        warmup(url, tmp_path / "c", ops=crops[1], workers=1)
    cache = warmup(url, tmp_path / "c", ops=CROP, live=[Choose("captions")], workers=1).url
    with tpufeed.Loader(cache, columns=["captions"], batch_size=COUNT, processes=0) as each:
        assert set(next(iter(each))) <= {text for captions in CAPTIONS for text in captions}
