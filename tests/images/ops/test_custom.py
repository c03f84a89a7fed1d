"""`Custom`: what may stand in it, what its function may do, and that the same draws give the same pixels anywhere."""

import functools
import json
import pickle
import random
import re
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.images.ops.every import Case
from tpufeed.errors import OpError, OptionError
from tpufeed.images import Custom, HorizontalFlip, RandomCrop, RandomResizedCrop
from tpufeed.images.decoding import decode
from tpufeed.images.description import from_dict, to_dict
from tpufeed.images.pipeline import Pipeline, check_deterministic, run_views
from tpufeed.images.protocols import PixelOp

HERE = Path(__file__).parents[1]
names = st.from_regex(r"[a-z_ü][a-z0-9_]{0,6}", fullmatch=True).map(lambda name: name + "x")
versions = st.text("ab1.@ -", min_size=1, max_size=9).filter(lambda text: text == text.strip())
CASES = [Case(Custom("custom_ops:noisy"), 0x362B3227)]
MADE = [st.builds(Custom, st.builds("{}.{}:{}".format, names, names, names), versions)]
SAME = [(Custom("a:b", 2), Custom("a:b", "2"))]
DRAWS = [0.1, 0.2, 0.3, 0.4]
IMAGE = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
IMAGE.flags.writeable = False


@pytest.fixture(autouse=True)
def custom_ops(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    import custom_ops

    return custom_ops


def of_main(image, rng):
    return image


@pytest.mark.parametrize("name", ["noisy", "Augmentations.inverted", "Augmentations.darker"])
def test_a_function_is_its_name(custom_ops, name):
    function = functools.reduce(getattr, name.split("."), custom_ops)
    op = Custom(function, version=2)
    assert op == Custom(f"custom_ops:{name}", version="2")
    assert hash(op) == hash(Custom(f"custom_ops:{name}", "2"))
    assert op != Custom(function)
    assert op.load() == function
    assert isinstance(op, PixelOp)
    assert to_dict(op) == {"op": "Custom", "target": f"custom_ops:{name}", "version": "2"}
    assert from_dict(json.loads(json.dumps(to_dict(op)))) == op
    assert pickle.loads(pickle.dumps(op)) == op
    assert b"custom_ops" in pickle.dumps(op)
    assert len(pickle.dumps(op)) < 200
    assert op.apply(IMAGE, DRAWS, None).shape == IMAGE.shape


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("anonymous", r"cannot import a lambda \(custom_ops:<lambda>\)"),
        ("local", r"cannot import custom_ops:made\.<locals>\.augmentation, as it is local to a function"),
        ("instance", "Augmentations object at .* has no name by which workers could import it"),
        ("original", "custom_ops:renamed is not <function renamed at .*"),
        ("NUMBER", "7 has no name"),
        ("KEPT", "has no name"),
    ],
)
def test_what_workers_could_not_import_is_refused(custom_ops, name, message):
    with pytest.raises(OptionError, match=f"(?s)Custom: .*{message}"):
        Custom(getattr(custom_ops, name))


def test_what_is_in_main_runs_as_it_was_defined_last(monkeypatch):
    """As in a notebook."""

    def darker(image, rng):
        return image // 2

    for function in (of_main, darker):
        function.__module__, function.__qualname__ = "__main__", "of_main"
        monkeypatch.setattr(sys.modules["__main__"], "of_main", function, raising=False)
        op = Custom(function)
        assert op == Custom("__main__:of_main")
        np.testing.assert_array_equal(op.apply(IMAGE, DRAWS, None), function(IMAGE, None))
    assert re.match(r"Custom: .* __main__:of_main, as they have another __main__: put it, .* a module", op.obstacle)


@pytest.mark.parametrize(
    "target",
    ["", "a", "a.b", ":f", "a:", "a:b:c", "a.:b", ".a:b", "a..b:c", "a/b:c", "a:b()", "a b:c", "a:1", "a:<lambda>",
     "a:def", "../a:b", "a:b\n", "a" * 500],
)  # fmt: skip
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(OptionError, match="Custom: the target is"):
        Custom(target)


@pytest.mark.parametrize("version", ["", None, 1.5, True, "x" * 101, "a\nb", " ", "1 ", ["1"]])
def test_a_version_that_is_none_is_refused(version):
    with pytest.raises(OptionError, match="Custom: version is"):
        Custom("a:b", version)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module:f", "importing no_such_module for no_such_module:f raised ModuleNotFoundError.*PYTHONPATH"),
        ("broken_ops:f", "importing broken_ops for broken_ops:f raised ZeroDivisionError"),
        ("custom_ops:absent", "there is no absent in custom_ops"),
        ("custom_ops:Augmentations.absent", "there is no Augmentations.absent in custom_ops"),
        ("custom_ops:NUMBER", "custom_ops:NUMBER is 7, which cannot be called"),
    ],
)
def test_a_failing_import_shows_when_the_op_runs(target, message, monkeypatch, tmp_path):
    (tmp_path / "broken_ops.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    op = from_dict(to_dict(Custom(target)))  # imports nothing
    for run in (op.load, lambda: op.apply(IMAGE, DRAWS, None)):
        with pytest.raises(OptionError, match=message):
            run()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "raised KeyError: 'no such colour'"),
        ("nothing", "returned NoneType, not a numpy array"),
        ("nested_list", "returned list, not a numpy array: return np.asarray"),
        ("floats", r"returned pixels of float64, not uint8: return image\.astype\(np\.uint8\)"),
        ("smaller", r"returned the shape \(5, 5, 3\) for \(6, 5, 3\)"),
        ("grey", r"returned the shape \(6, 5\) for \(6, 5, 3\)"),
        ("mirrored", r"returned an array that is not C-contiguous: return np\.ascontiguousarray"),
        ("fortran", r"returned an array that is not C-contiguous: return np\.ascontiguousarray"),
    ],
)
def test_a_function_that_breaks_the_contract_is_named(name, message):
    for out in (None, np.empty_like(IMAGE)):
        with pytest.raises(OpError, match=rf"Custom\(target='custom_ops:{name}', version='1'\) {message}") as caught:
            Custom(f"custom_ops:{name}").apply(IMAGE, DRAWS, out)
    assert isinstance(caught.value.__cause__, KeyError) == (name == "raises")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_threads_wait_for_the_one_that_imports(monkeypatch, tmp_path):
    """All threads of a loader meet a function first at the same time."""
    (tmp_path / "slow_op.py").write_text("import time\ntime.sleep(0.5)\n\n\ndef run(image, rng):\n    return image\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with ThreadPoolExecutor(4) as executor:
        found = list(executor.map(lambda _: Custom("slow_op:run").load(), range(4)))
    assert {function.__name__ for function in found} == {"run"}


def test_a_module_may_use_its_own_function_while_it_is_imported(monkeypatch, tmp_path):
    """As a program without a guard does that is imported: threads that waited for it would wait for ever."""
    (tmp_path / "own_op.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from tpufeed.images import Custom\n\n\n"
        "def run(image, rng):\n    return image\n\n\n"
        "found = ThreadPoolExecutor(1).submit(Custom('own_op:run').load).result(timeout=10)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_op

    assert own_op.found is own_op.run


def test_a_function_may_change_its_image_and_hurts_no_other(photos):
    op, given = Custom("custom_ops:in_place"), IMAGE.copy()
    assert np.array_equal(op.apply(given, DRAWS, None), IMAGE + np.uint8(1))
    assert np.array_equal(given, IMAGE)
    assert op.apply(given, DRAWS, given) is given
    assert np.array_equal(given, IMAGE + np.uint8(1))
    for before in ([], [RandomCrop(64)], [RandomResizedCrop(400)], [HorizontalFlip(0)]):  # views, too
        pipeline = Pipeline([*before, op], 0)
        drawn = [[op[0] for op in pipeline.draw(0, np.array([5]))]] * 3
        first, *others = run_views([pipeline] * 3, photos["china.jpg"], drawn, [None] * 3)
        assert all(np.array_equal(first, other) for other in others)


def test_an_array_that_the_function_keeps_is_copied(custom_ops):
    op = Custom("custom_ops:kept")
    results = [op.apply(IMAGE, [draw] * 4, None) for draw in (0.1, 0.5, 0.9)]
    assert not any(np.shares_memory(result, custom_ops.KEPT) for result in results)
    assert len({result.tobytes() for result in results}) == 3


def test_the_generator_follows_the_draws():
    op = Custom("custom_ops:noisy")
    image = np.full((50, 50, 3), 128, np.uint8)
    first = op.apply(image, DRAWS, None)
    random.seed(1)
    np.random.seed(1)  # nothing global counts
    assert np.array_equal(op.apply(image, DRAWS, None), first)
    for number in range(4):
        others = [draw + (place == number) * 0.01 for place, draw in enumerate(DRAWS)]
        assert (op.apply(image, others, None) != first).mean() > 0.9


@pytest.mark.parametrize("name", ["unseeded", "counts", "kept"])
def test_ops_that_do_not_repeat_themselves_are_found(name):
    pipeline = Pipeline([HorizontalFlip(), Custom("custom_ops:in_place"), Custom(f"custom_ops:{name}")], 0)
    draws = [op[0] for op in pipeline.draw(0, np.array([3]))]
    if name == "kept":  # follows its Generator
        check_deterministic(pipeline, IMAGE, draws)
        return
    with pytest.raises(OpError, match=rf"custom_ops:{name}.* number 3 of 3 ops.*\d+ of 90 values"):
        check_deterministic(pipeline, IMAGE, draws)


def test_the_check_of_determinism_leaves_the_image_and_passes_on_errors(photos):
    pixels = decode(photos["china.jpg"])
    before = pixels.copy()
    pipeline = Pipeline([Custom("custom_ops:in_place"), RandomCrop(500, 9), Custom("custom_ops:noisy")], 0)
    check_deterministic(pipeline, pixels, [op[0] for op in pipeline.draw(0, np.array([1]))])
    assert np.array_equal(pixels, before)
    for target, error in (("custom_ops:raises", OpError), ("no_such_module:f", OptionError)):
        with pytest.raises(error):
            check_deterministic(Pipeline([Custom(target)], 0), pixels, [DRAWS])


def test_an_op_that_changes_its_size_is_found():
    class Shrinking(types.SimpleNamespace):
        version, draws, calls = 1, 0, 5

        def output_size(self, size):
            return None

        def skips(self, draws):
            return False

        def apply(self, image, draws, out):
            self.calls -= 1
            return image[: self.calls]

    with pytest.raises(OpError, match=r"\(3, 5, 3\) after \(4, 5, 3\)"):
        check_deterministic(Pipeline([Shrinking()], 0), IMAGE, [()])
