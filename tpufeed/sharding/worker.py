"""One task of a sharding: read its inputs, store their images, put the shard and its report."""

from collections import Counter
from dataclasses import dataclass

from tpufeed.dataset.commit import Reject, Report, ShardReport, put_report, put_shard
from tpufeed.dataset.plan import Input, PlanHeader, TaskRef, read_task
from tpufeed.dataset.schema import FILENAME, FORMAT, LABEL, TEXT, record_layout
from tpufeed.dataset.writer import ShardWriter
from tpufeed.engines import engine
from tpufeed.errors import ImageError, ObjectNotFoundError, StoreError
from tpufeed.images.policy import ImagePolicy, StoredImage, store_image
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import Store
from tpufeed.tfrecord.example import Feature

ENTRY = "tpufeed.sharding.worker:run"


@dataclass(frozen=True, slots=True)
class ShardContext:
    """What the tasks of a sharding share."""

    destination: str
    header: PlanHeader
    policy: ImagePolicy


def run(context: ShardContext, ref: TaskRef, report_progress: engine.ReportProgress) -> None:
    """Make the shard that `ref` refers to."""
    source, destination = open_store(context.header.source), open_store(context.destination)
    task = read_task(destination, ref)
    layout = record_layout(context.header.features)
    labelled = LABEL in layout.int_keys
    class_names = context.header.class_names
    counts, images, rejects = [0] * len(class_names), Counter[str](), list[Reject]()
    meter = engine.ProgressMeter(report_progress)
    with destination.temporary_folder() as folder:
        path = folder / "shard"
        with ShardWriter(path, layout) as writer:
            for item in task.inputs:
                try:
                    image = take_image(source, item, context.policy)
                except ImageError as error:
                    rejects.append(Reject(item.path, error.reason, str(error)))
                    meter.add(rejects=1)
                    continue
                sizes = (image.height, image.width, image.channels)
                writer.add(
                    image.data,
                    (item.label, *sizes) if labelled else sizes,
                    _features(image, item.path, class_names[item.label] if labelled else None),
                )
                if labelled:
                    counts[item.label] += 1
                images[image.format if image.kept else f"{image.format}, encoded anew"] += 1
                meter.add(images=1, size=item.bytes)
        meter.flush()
        written = writer.finish()
        (name,) = context.header.shard_names(task)
        put_shard(destination, name, path, written)
    shard = ShardReport(name, written.bytes, written.crc32c, written.lengths)
    put_report(destination, Report(task.number, (shard,), tuple(counts), dict(images), tuple(rejects)))


def take_image(source: Store, item: Input, policy: ImagePolicy) -> StoredImage:
    """The image of an input as its record holds it.

    Raises:
        ImageError: the input cannot be read, is no longer what was listed, or is no image that can be taken.
    """
    try:
        if source.local_path(item.path) is not None:  # elsewhere it would cost a request an image
            now = source.stat(item.path)
            if now is not None and (now.size_bytes, now.version) != (item.bytes, item.version):
                raise ImageError(
                    "changed_during_build", "the file is not the one that was listed: size or mtime differ"
                )
        data = source.read(item.path)
    except ObjectNotFoundError as error:
        raise ImageError("changed_during_build", f"the file is gone, or a link to nothing: {error}") from error
    except StoreError as error:
        raise ImageError("unreadable", str(error)) from error
    if len(data) != item.bytes:
        raise ImageError("changed_during_build", f"the file has {len(data)} bytes; {item.bytes} were listed")
    return store_image(data, policy)


def _features(image: StoredImage, path: str, class_name: str | None) -> dict[str, Feature]:
    features = {
        FORMAT: Feature("bytes", (image.format.encode(),)),
        FILENAME: Feature("bytes", (path.encode(),)),
    }
    if class_name is not None:
        features[TEXT] = Feature("bytes", (class_name.encode(),))
    return features
