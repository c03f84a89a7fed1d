"""All of the corpus of odd and broken images through store_image."""

import importlib.util
from pathlib import Path

import pytest

from tpufeed.errors import ImageError
from tpufeed.images import policy as policy_module
from tpufeed.images.decoding import decode
from tpufeed.images.policy import Images, store_image

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_corpus.py"


def load_script():
    spec = importlib.util.spec_from_file_location("make_corpus", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Folder and expectations."""
    folder = tmp_path_factory.mktemp("corpus")
    return folder, load_script().make_corpus(folder)


def outcome(folder, path, policy):
    try:
        image = store_image((folder / path).read_bytes(), policy, path)
    except ImageError as error:
        return error.reason
    if policy.check == "full":
        assert decode(image.data).shape == (image.height, image.width, 3)
    return "kept" if image.kept else "changed"


@pytest.mark.all
def test_every_file_is_kept_changed_or_rejected_as_it_says(corpus):
    folder, expectations = corpus
    assert {path: outcome(folder, path, Images()) for path in expectations} == expectations


def test_the_header_check_takes_broken_scans_and_nothing_else(corpus):
    folder, expectations = corpus
    for path, expectation in expectations.items():
        expected = "kept" if "broken-scan" in path else expectation
        assert outcome(folder, path, Images(check="header")) == expected, path


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("mode", "encode"), [("short", "keep"), ("fit", "jpeg"), ("short", "png"), ("long", "webp")])
def test_what_is_taken_is_taken_at_every_size_and_in_every_format(corpus, mode, encode):
    folder, expectations = corpus
    policy = Images(encode=encode, presize=48, presize_mode=mode)
    for path, expectation in expectations.items():
        found = outcome(folder, path, policy)
        if expectation in ("kept", "changed"):
            assert found in ("kept", "changed"), path
        else:
            assert found == expectation, path


def test_header_bombs_are_refused_without_decoding(corpus, monkeypatch):
    def never(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr(policy_module, "decode_stored", never)
    monkeypatch.setattr(policy_module, "check_pixels", never)
    folder, expectations = corpus
    bombs = [path for path in expectations if "bomb" in path]
    assert {Path(path).suffix for path in bombs} == {".jpg", ".png", ".webp", ".gif", ".bmp", ".tiff"}
    for path in bombs:
        assert (folder / path).stat().st_size < 10_000
        assert outcome(folder, path, Images()) == "too_large", path


@pytest.mark.all
def test_the_command_counts(tmp_path, capsys, corpus):
    assert load_script().main([str(tmp_path / "corpus")]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{len(corpus[1])} files: ")
    assert load_script().main([str(tmp_path / "corpus")]) == 2
