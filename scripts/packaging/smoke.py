"""What tpufeed must do where it has just been installed: `python -I smoke.py CASE FOLDER`.

scripts/packaging/matrix.py runs it in each environment that it makes. Every case goes from photographs to batches; the
case of an extra does what the extra is for, and `none` shows that without the extras each is named.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import tpufeed
from tpufeed.errors import install_command
from tpufeed.images import CenterCrop, Resize

PHOTOS, BATCH, SIDE = 60, 8, 64
BEAM = ("--engine", "beam", "--", "--runner=DirectRunner")
PROFILE = Path(__file__).parents[2] / "tests/measure/torch_xla_cpu.xplane.pb"


def main(case: str, folder: Path) -> None:
    make_photos(folder / "photos")
    check_installation()
    check_core(folder)
    check_extension(folder, case != "no-compiler")
    CHECKS.get(case.removeprefix("oldest-"), lambda _: None)(folder)


def make_photos(folder: Path) -> None:
    """JPEGs in two class folders, with content that is neither flat nor noise."""
    draws = np.random.default_rng(0)
    for number in range(PHOTOS):
        coarse = Image.fromarray(draws.integers(0, 256, (6, 8, 3), "uint8"))
        path = folder / ("dark", "light")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse.resize((480, 360), Image.Resampling.BICUBIC).save(path, quality=95)


def check_installation() -> None:
    """It is the wheel's code that runs, its version is everywhere the same, and type checkers find its types."""
    package = Path(tpufeed.__file__).parent
    assert package.is_relative_to(sys.prefix), f"{package} is not in {sys.prefix}"
    assert (package / "py.typed").is_file()
    assert metadata.version("tpufeed") == tpufeed.__version__
    assert run("--version").strip() == f"tpufeed {tpufeed.__version__}"


def check_core(folder: Path) -> None:
    run("shard", folder / "photos", folder / "flowers", "--splits", "train=0.8,val=0.2", "--shards", 2)
    run("cache", "warmup", folder / "flowers", folder / "cache", "--size", SIDE, "--variants", 2)
    for dataset in ("flowers", "cache"):
        assert run("verify", folder / dataset).startswith("sound: ")
        run("info", folder / dataset)
    check_batches(folder, tpufeed.Loader)
    val = tpufeed.Loader(
        str(folder / "flowers"),
        "val",
        batch_size=BATCH,
        ops=[Resize(SIDE), CenterCrop(SIDE)],
        shuffle=False,
        remainder="pad",
    )
    records = tpufeed.open_dataset(folder / "flowers").manifest.splits["val"].records
    assert sum(int(mask.sum()) for _, _, mask in val) == records


def check_extension(folder: Path, built: bool) -> None:
    """Kept JPEGs get restart markers by the C extension; without it `shard` says what to do."""
    markers = tpufeed.open_dataset(folder / "flowers").manifest.markers
    assert bool(markers and markers.rewritten == PHOTOS) == built, markers
    warned = tpufeed.shard(folder / "photos", folder / "flowers-again").warnings
    assert any("C extension" in warning for warning in warned) != built, warned


def check_batches(folder: Path, make_loader: Callable) -> None:
    """An epoch of the cache: as many full batches as there are, uint8 pixels that differ, both labels."""
    loader = make_loader(str(folder / "cache"), "train", batch_size=BATCH)
    batches = [(np.asarray(images), np.asarray(labels)) for images, labels in loader]
    records = tpufeed.open_dataset(folder / "cache").manifest.splits["train"].records
    assert len(batches) == records // BATCH, (len(batches), records)
    for images, labels in batches:
        assert (images.shape, images.dtype) == ((BATCH, SIDE, SIDE, 3), np.uint8)
        assert images.std() > 1
        assert set(labels.tolist()) <= {0, 1}


def check_missing(folder: Path) -> None:
    """What needs an extra names the command that installs it. Nothing of tpufeed needs `lightning` or `torchtpu`."""
    url = str(folder / "cache")
    (folder / "table.parquet").write_bytes(b"PAR1")
    calls: dict[str, Sequence[Callable[[], object]]] = {
        "gcs": [lambda: tpufeed.open_dataset("gs://bucket/flowers")],
        "tf": [lambda: tpufeed.Loader(url, "train", batch_size=BATCH).to_tf()],
        "torch": [
            lambda: tpufeed.Loader(url, "train", batch_size=BATCH).to_torch(),
            lambda: tpufeed.TFRecordImages(url),
        ],
        "xla": [lambda: tpufeed.Loader(url, "train", batch_size=BATCH).to_xla()],
        "jax": [lambda: tpufeed.Loader(url, "train", batch_size=BATCH).to_jax()],
        "keras": [lambda: tpufeed.Loader(url, "train", batch_size=BATCH).to_keras()],
        "grain": [lambda: tpufeed.grain_source(url)],
        "ray": [lambda: tpufeed.shard(folder / "photos", folder / "again", engine="ray")],
        "profile": [convert_profile],
        "tpu-compiler": [compile_step],
        "parquet": [lambda: tpufeed.shard(folder / "table.parquet", folder / "parquet")],
    }
    for extra, each in calls.items():
        for call in each:
            said = "nothing"
            try:
                call()
            except tpufeed.errors.MissingExtraError as error:
                said = str(error)
            assert said.endswith(install_command(extra)), (extra, said)
    commands = {
        "report": ["bench", folder / "cache", "--report", folder / "page.html"],
        "beam": ["shard", folder / "photos", folder / "again", *BEAM],
    }
    for extra, command in commands.items():
        said = run(*command, expect=2)
        assert said.strip().endswith(install_command(extra)), (extra, said)


def check_gcs(folder: Path, bucket: str = "gs://bucket") -> None:
    """With the tests' own server behind STORAGE_EMULATOR_HOST, and with credentials that are none."""
    url = f"{bucket}/flowers"
    run("shard", folder / "photos", url, "--shards", 2)
    assert run("verify", url).startswith("sound: ")
    loader = tpufeed.Loader(url, "train", batch_size=BATCH, ops=[Resize(SIDE), CenterCrop(SIDE)])
    assert sum(len(labels) for _, labels in loader) == PHOTOS // BATCH * BATCH
    nowhere = {"GOOGLE_APPLICATION_CREDENTIALS": str(folder / "none.json"), "STORAGE_EMULATOR_HOST": ""}
    said = run("info", url, expect=1, environment=nowhere)
    assert "GOOGLE_APPLICATION_CREDENTIALS" in said, said


def run_programs(folder: Path, page: str, word: str = "") -> None:
    """Run a page's programs in which the word occurs, as they stand."""
    if not (folder / "flowers-224").exists():
        run("cache", "warmup", folder / "flowers", folder / "flowers-224", "--size", 224, "--variants", 2)
    text = (Path(__file__).parents[2] / page).read_text()
    programs = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if word in code]
    assert programs, f"{page} has no program with {word}"
    (folder / "program.py").write_text("\n".join(programs))
    done = subprocess.run([sys.executable, "-I", "program.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"


def check_jax(folder: Path) -> None:
    check_batches(folder, lambda *args, **given: tpufeed.Loader(*args, **given).to_jax())
    run_programs(folder, "README.md", "to_jax()")


def check_torch(folder: Path) -> None:
    from torch.utils.data import DataLoader

    check_batches(folder, lambda *args, **given: tpufeed.Loader(*args, **given).to_torch())
    images = tpufeed.TFRecordImages(str(folder / "cache"), "train")
    assert len(list(DataLoader(images, batch_size=BATCH, drop_last=True))) == len(images) // BATCH


def check_keras(folder: Path) -> None:
    """On JAX, where TensorFlow is not installed."""
    import keras

    loader = tpufeed.Loader(str(folder / "cache"), "train", batch_size=BATCH)
    batches = loader.to_keras()
    inputs = keras.Input((SIDE, SIDE, 3), dtype="uint8")
    pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(1 / 255)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2)(pooled))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    place = tpufeed.keras_state(loader, folder / "place.json")
    model.fit(batches, epochs=2, verbose=0, callbacks=[place])
    assert int(model.optimizer.iterations) == 2 * len(batches)
    assert "tensorflow" not in sys.modules
    run_programs(folder, "README.md", "to_keras()")
    run_programs(folder, "docs/keras.md")


def check_xla(folder: Path) -> None:
    import torch_xla

    def on_host(*arguments: str, **options: int) -> Iterator[tuple[Any, Any]]:
        for images, labels in tpufeed.Loader(*arguments, **options).to_xla(device=torch_xla.device()):
            assert images.device.type == "xla"
            yield images.cpu(), labels.cpu()

    check_batches(folder, on_host)
    run_programs(folder, "README.md", "to_xla()")


def check_grain(folder: Path) -> None:
    def in_workers(url: str, split: str, batch_size: int) -> Iterator[tuple[Any, Any]]:
        import grain
        from absl import flags

        flags.FLAGS.mark_as_parsed()
        samples = tpufeed.grain_source(url, split).to_map_dataset().seed(0).shuffle()
        batches = samples.batch(batch_size, drop_remainder=True).to_iter_dataset()
        for batch in batches.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=2)):
            yield batch["image"], batch["label"]

    check_batches(folder, in_workers)
    assert "torch" not in sys.modules
    run_programs(folder, "docs/grain.md")


def check_torchtpu(folder: Path) -> None:
    """Without a TPU: the seam against the real package, its errors, and the same loader on the CPU."""
    import torch

    def on_cpu(*arguments: str, **options: int) -> Any:
        return tpufeed.Loader(*arguments, **options).to_device("cpu")

    check_batches(folder, on_cpu)
    # torch has loaded it by itself, and it tells children to do so; workers of tpufeed do not.
    assert "torch_tpu" in sys.modules
    assert os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "1"
    if torch.accelerator.is_available():
        check_batches(folder, lambda *args, **opts: to_host(tpufeed.Loader(*args, **opts).to_device()))
        return
    said = "nothing"
    try:
        tpufeed.device_loader([], "tpu")
    except tpufeed.errors.OptionError as error:
        said = str(error)
    assert said.startswith(f"torch_tpu {metadata.version('torch_tpu')} finds no TPU here"), said
    # Why device.py copies without non_blocking: waiting for a device is said to wait for copies to the host and for
    # deferred operations, not for copies to the device. If this text changes, look again. Pinned tensors are
    # the device's own; ranks are torch.distributed's, of a backend that only a TPU registers.
    from torch_tpu import _loader
    from torch_tpu._internal.batch_transfer import TransferFuture, batch_transfer_h2d
    from torch_tpu._internal.device import _device_ops_backend

    assert "all async d2h copies and deferred operations" in _device_ops_backend._synchronize_device.__doc__
    assert callable(torch.tpu.synchronize)
    assert '"tpu_dist"' in Path(_loader.__file__).read_text()
    # What it does not use: futures of tensors that the caller allocates, in the device's own layout.
    assert "src_arrs" in batch_transfer_h2d.__doc__
    assert "dst_arrs" in batch_transfer_h2d.__doc__
    assert callable(TransferFuture.wait)
    # As on a TPU, the device has its name.
    torch.utils.rename_privateuse1_backend("tpu")
    assert tpufeed.device_loader([], "tpu").device == torch.device("tpu")


def to_host(loader: Any) -> Iterator[tuple[Any, Any]]:
    for images, labels in loader:
        assert images.device == loader.device
        yield images.cpu(), labels.cpu()


def check_lightning(folder: Path) -> None:
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
            images, labels = batch
            return torch.nn.functional.cross_entropy(self.layer(images.float().mean((1, 2)) / 255), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet)
    loader = tpufeed.Loader(str(folder / "cache"), "train", batch_size=BATCH).to_torch()
    trainer.fit(Model(), loader)
    assert trainer.global_step == 2 * len(loader)


def check_metrics(folder: Path) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    with tpufeed.Loader(str(folder / "cache"), "train", batch_size=BATCH) as loader:
        tpufeed.MetricsLogger(loader, registry)
        batches = len(list(loader))
    assert f"tpufeed_batches_total {batches:.1f}" in generate_latest(registry).decode()


def check_engine(folder: Path, *options: str) -> None:
    """The same bytes as from processes of this host."""
    run("shard", folder / "photos", folder / "again", "--splits", "train=0.8,val=0.2", "--shards", 2, *options)
    first, again = (tpufeed.open_dataset(folder / name).manifest.content_digest for name in ("flowers", "again"))
    assert first == again


def check_report(folder: Path) -> None:
    options = ["--batch", BATCH, "--seconds", 0.5, "--repeats", 1, "--warm-up", 0, "--device", "none"]
    run("bench", folder / "cache", *options, "--report", folder / "page.html")
    assert "<svg" in (folder / "page.html").read_text()


def convert_profile() -> None:
    from tpufeed.measure.xplane import convert

    ((overview, *_),) = convert([PROFILE])
    assert overview


def compile_step() -> None:
    from tpufeed.measure.step_cost import cost_of_step

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.py")
        shape = "jax.ShapeDtypeStruct((images, 3), 'float32')"
        file.write_text(f"import jax\ndef make_step(images):\n    return jax.jit(lambda x: x @ x.T), ({shape},)\n")
        assert cost_of_step(f"{file}:make_step", "v5e-8", 1024).flops >= 2 * 3 * 1024**2


def check_parquet(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    paths = sorted((folder / "photos").rglob("*.jpg"))
    columns = {"path": [str(path.relative_to(folder)) for path in paths], "kind": [path.parent.name for path in paths]}
    parquet.write_table(pyarrow.table(columns), folder / "table.parquet")
    run("shard", folder / "table.parquet", folder / "from-table", "--label", "kind")
    assert tpufeed.open_dataset(folder / "from-table").manifest.class_names == ("dark", "light")
    images = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    labels = [("dark", "light").index(path.parent.name) for path in paths]
    features = {"label": {"names": ["dark", "light"], "_type": "ClassLabel"}}
    table = pyarrow.table({"image": images, "label": labels})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, folder / "train-00000-of-00001.parquet", row_group_size=2)
    run("shard", folder / "train-00000-of-00001.parquet", folder / "from-hub")
    found = tpufeed.open_dataset(folder / "from-hub").manifest
    assert (found.class_names, found.splits["train"].records) == (("dark", "light"), len(paths))


def draw_outlines() -> None:
    import yaml
    from pycocotools import mask

    square = [[8, 4, 24, 4, 24, 20, 8, 20]]
    outlines = mask.decode(mask.merge(mask.frPyObjects(square, SIDE, SIDE)))
    assert (outlines.shape, outlines.sum(), outlines[12, 16]) == ((SIDE, SIDE), 16 * 16, 1)
    assert yaml.safe_load("names: [dark, light]") == {"names": ["dark", "light"]}


def check_formats(folder: Path) -> None:
    import pillow_heif
    import pillow_jxl  # noqa: F401  # Pillow writes JPEG XL then

    (folder / "phone").mkdir()
    for path in sorted((folder / "photos").rglob("*.jpg")):
        with Image.open(path) as picture:
            pillow_heif.from_pillow(picture).save(folder / "phone" / f"{path.stem}.heic")
            picture.save(folder / "phone" / f"{path.stem}.jxl", lossless_jpeg=False)
    run("shard", folder / "phone", folder / "from-phone")
    assert tpufeed.open_dataset(folder / "from-phone").manifest.images == {"jpeg, encoded anew": 2 * PHOTOS}


def check_bands(folder: Path) -> None:
    import tifffile

    (folder / "scenes").mkdir()
    bands = np.random.default_rng(0).integers(0, 9000, (40, 50, 13)).astype(np.uint16)
    tifffile.imwrite(folder / "scenes/0.tif", bands, photometric="minisblack", planarconfig="contig", compression="lzw")
    run("shard", folder / "scenes", folder / "satellites", "--pixels", "keep")
    loader = tpufeed.Loader(folder / "satellites", batch_size=1, columns=("image",), shuffle=False)
    assert np.array_equal(next(iter(loader))[0], bands)


def check_dicom(folder: Path) -> None:
    import pydicom
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    (folder / "xrays").mkdir()
    stored = np.random.default_rng(0).integers(0, 4096, (40, 50)).astype(np.uint16)
    scan = pydicom.Dataset()
    scan.file_meta = pydicom.dataset.FileMetaDataset()
    scan.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    scan.SOPClassUID, scan.SOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
    scan.set_pixel_data(stored, "MONOCHROME1", 12)
    scan.save_as(folder / "xrays/0.dcm", enforce_file_format=True)
    run("shard", folder / "xrays", folder / "from-xrays", "--pixels", "keep")
    loader = tpufeed.Loader(folder / "from-xrays", batch_size=1, columns=("image",), shuffle=False)
    assert np.array_equal(next(iter(loader))[0, ..., 0], 4095 - stored)


def run(*arguments: object, expect: int = 0, environment: dict[str, str] | None = None) -> str:
    """What the command `tpufeed` prints; on stderr, where it is to fail."""
    command = [str(Path(sys.executable).with_name("tpufeed")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | (environment or {}))
    assert done.returncode == expect, f"{command} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr if expect else done.stdout


CHECKS: dict[str, Callable[[Path], None]] = {
    "none": check_missing,
    "gcs": check_gcs,
    "rapid": lambda folder: check_gcs(folder, "gs://rapid"),
    "tf": lambda folder: check_batches(folder, lambda *args, **given: tpufeed.Loader(*args, **given).to_tf()),
    "torch": check_torch,
    "xla": check_xla,
    "torchtpu": check_torchtpu,
    "jax": check_jax,
    "keras": check_keras,
    "grain": check_grain,
    "ray": lambda folder: check_engine(folder, "--engine", "ray", "--ray-address", "local"),
    "beam": lambda folder: check_engine(folder, *BEAM),
    "lightning": check_lightning,
    "metrics": check_metrics,
    "report": check_report,
    "profile": lambda _: convert_profile(),
    "tpu-compiler": lambda _: compile_step(),
    "parquet": check_parquet,
    "annotations": lambda _: draw_outlines(),
    "formats": check_formats,
    "bands": check_bands,
    "dicom": check_dicom,
}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
