"""Class 18: nothing that is stored is ever run: no pickle, no eval, and no import that a manifest asks for."""

import ast
import json
import pickle
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import tpufeed
from tpufeed.errors import TpufeedError
from tpufeed.images import Custom

SOURCES = sorted((Path(__file__).parents[2] / "tpufeed").rglob("*.py"))
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__"}
# Jobs and tasks on their way from a launcher to its own workers: through Ray and Beam, which pickle them again, or over
# a socket pair that nobody else has.
TO_WORKERS = {f"{name}.py" for name in ("beam", "beampipeline", "channel", "preflight", "ray")}


@pytest.mark.all
def test_no_source_file_unpickles_or_evaluates():
    assert len(SOURCES) > 100
    for path in SOURCES:
        modules = MODULES - (
            {"pickle", "cloudpickle"}
            if path.parent.name in ("engines", "processes") and path.name in TO_WORKERS
            else {"yaml"}
            if path.name == "yolo.py" and "yaml.SafeLoader" in path.read_text()  # whose data.yaml holds no objects
            else set()
        )
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                assert not modules & {alias.name.partition(".")[0] for alias in node.names}, where
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in modules, where
            elif isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                is_bare = isinstance(node.func, ast.Name)
                assert not (is_bare and name in CALLS), where
                assert not (
                    name == "load" and getattr(getattr(node.func, "value", None), "id", "") in ("np", "torch")
                ), where
                given = [ast.unparse(each.value) for each in node.keywords if each.arg == "allow_pickle"]
                assert given in ([], ["False"]), where


class Touch:
    """Pickled, it leaves a file behind where anybody unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.all
def test_a_pickle_in_the_place_of_any_file_is_damage(cache_copy, dataset_url, tmp_path):
    marker = tmp_path / "ran"
    pickle.loads(pickle.dumps(Touch(marker)))
    assert marker.exists(), "the payload works"
    marker.unlink()
    payload = pickle.dumps(Touch(marker))
    for path in [*cache_copy.glob("*.*"), *cache_copy.glob("_tpufeed/**/*.json*")]:
        before = path.read_bytes()
        if path.suffix == ".npy":
            np.save(path, np.array([Touch(marker)], object), allow_pickle=True)
            assert b"Path" in path.read_bytes() or b"pathlib" in path.read_bytes()
        else:
            path.write_bytes((payload * (len(before) // len(payload) + 1))[: len(before)])
        for work in (
            lambda: [list(tpufeed.Loader(cache_copy, batch_size=4)) for _ in range(2)],
            lambda: tpufeed.verify(cache_copy),
            lambda: tpufeed.cache.warmup(dataset_url, cache_copy, size=32, variants=2, shard_bytes="40KB", workers=1),
        ):
            with suppress(TpufeedError):
                work()
        path.write_bytes(before)
    assert not marker.exists()


def test_a_custom_op_in_a_manifest_is_not_run_unasked(cache_copy, monkeypatch, tmp_path):
    """A dataset from elsewhere must not choose what is imported; `ops=[...]` says that one wants it."""
    touch = f"from pathlib import Path\nPath({str(tmp_path)!r}, 'ran').touch()\n"
    (tmp_path / "evil_op.py").write_text(f"{touch}def run(image, generator):\n    return image\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    manifest = json.loads((cache_copy / "manifest.json").read_text())
    manifest["cache"]["live"] = [{"op": "Custom", "target": "evil_op:run", "version": "1"}]
    (cache_copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TpufeedError, match=r"evil_op:run.*ops="):
        list(tpufeed.Loader(cache_copy, batch_size=4))
    with pytest.raises(TpufeedError, match=r"evil_op:run.*ops="):
        tpufeed.TFRecordImages(cache_copy)[0]
    tpufeed.verify(cache_copy, decode="all")
    assert not (tmp_path / "ran").exists()
    list(tpufeed.Loader(cache_copy, batch_size=4, ops=[Custom("evil_op:run")]))
    assert (tmp_path / "ran").exists(), "the payload works"
