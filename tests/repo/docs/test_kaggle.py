"""docs/kaggle.md from its first line to its last, with stand-ins for Kaggle's own modules and TFRecords."""

import io
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.quick_xla import QUICK
from tests.repo.docs.layouts import write_competition
from tests.repo.docs.pages import ROOT, blocks, commands, make_photos, run_here, run_program
from tests.tfrecords import encode_features, encode_record
from tpufeed.tfrecord.example import Feature

# Other tests run the cells for all cores.
RUNS = {"kaggle.md": r"\A(?![\s\S]*(import jax|torch_xla))"}
STAND_INS = {
    "kaggle_datasets": "class KaggleDatasets:\n    def get_gcs_path(self, name):\n        return name\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """`photos`, Kaggle's modules and its records of photographs of 224x224 pixels, and what the commands make."""
    folder = tmp_path_factory.mktemp("kaggle")
    make_photos(folder, 100, "160x120")
    write_competition(folder / "leaves", folder / "photos")
    for name, code in STAND_INS.items():
        (folder / f"{name}.py").write_text(code)
    for split, first in (("train", 0), ("val", 32), ("test", 64)):
        part = folder / f"tpu-getting-started/tfrecords-jpeg-224x224/{split}"
        part.mkdir(parents=True)
        payloads = []
        for number, path in enumerate(sorted((folder / "photos").glob("*/*.jpg"))[first : first + 32]):
            data = io.BytesIO()
            Image.open(path).convert("RGB").resize((224, 224)).save(data, "JPEG")
            label = {} if split == "test" else {"class": Feature("int64", (number % 4,))}
            texts = {"image": data.getvalue(), "id": path.stem.encode()}
            payloads.append(encode_features(label | {key: Feature("bytes", (each,)) for key, each in texts.items()}))
        (part / f"00-224x224-{len(payloads)}.tfrec").write_bytes(b"".join(map(encode_record, payloads)))
    run_here(commands("kaggle.md"), folder)
    return folder


def test_the_page_has_programs_and_commands_alone() -> None:
    assert "```text" not in (ROOT / "docs/kaggle.md").read_text()


def test_the_guides_readers_train_and_kaggles_records_are_read(folder: Path) -> None:
    """Both readers of the guide, over a dataset and a cache: `count_data_items` says how many steps there are."""
    programs = [code for code in blocks("kaggle.md") if "import jax\n" not in code and "torch_xla" not in code]
    readers = (ROOT / "tests/repo/docs/roads/kaggle_readers.py").read_text()
    given = {"TPUFEED_PROCESSES": "0", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK}
    output = run_program("\n".join([readers, *programs]), folder, **given)
    assert len(re.findall(r"^(\d)/\1 - .* - loss: \d", output, re.MULTILINE)) == 3
    assert output.splitlines()[-1] == "(16, 224, 224, 3) of 4 classes"
    assert len(list((folder / "flowers-64").glob("train*.tfrec"))) == 1
