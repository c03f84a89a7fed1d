"""One task of a sharding: read its inputs, store their images, put the shard and its report."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import msgspec

from tpufeed.build.commit import Reject, Report, put_report, put_shard, read_report
from tpufeed.build.destination import see_destination
from tpufeed.build.digests import LEFT_OUT, REJECTED, TAKEN, UNREAD, image_digest
from tpufeed.build.plan import Input, Owner, PlanHeader, Task, TaskRef, read_task
from tpufeed.dataset.manifest import Markers
from tpufeed.dataset.naming import counted
from tpufeed.dataset.schema import LABEL, record_layout
from tpufeed.dataset.writer import ShardWriter
from tpufeed.engines import engine
from tpufeed.errors import AccessError, BuildError, ImageError, UnavailableError
from tpufeed.images.policy import ImagePolicy
from tpufeed.images.restart import CAN_REWRITE
from tpufeed.sharding.inputs import Files, iter_taken
from tpufeed.sharding.sample import SampleMaker, StoredSample
from tpufeed.storage.registry import open_store
from tpufeed.storage.store import ObjectInfo
from tpufeed.tfrecord.example import encode_entries

ENTRY = "tpufeed.sharding.worker:run"
REACH = "tpufeed.sharding.worker:reach"
DROPPED = "box outside"  # among the odd cases: boxes outside the square that "fit" cuts out
_SEEN_INPUTS = 4


@dataclass(frozen=True, slots=True)
class ShardContext:
    """Data that all tasks of a sharding share."""

    destination: str
    header: PlanHeader
    policy: ImagePolicy
    owner: Owner


def run(context: ShardContext, ref: TaskRef, report_progress: engine.ReportProgress) -> None:
    """Make the shard that `ref` refers to."""
    _check_rewriting(context.policy)
    destination = open_store(context.destination, follow=False)
    if read_report(destination, ref, context.owner.run_id) is not None:  # another run of the same build was quicker
        return
    task = read_task(destination, ref)
    header, files = context.header, Files(context.header.base)
    (shard_name,) = header.shard_names(task)
    make = SampleMaker(header.features, header.class_names, context.policy, header.options)
    meter = engine.ProgressMeter(report_progress)
    counts, images, odd = [0] * len(header.class_names), Counter[str](), Counter[str]()
    rewritten, added_bytes, unmarked = 0, 0, Counter[str]()
    rejects, digests, last = list[Reject](), bytearray(), UNREAD

    def take(item: Input, data: Sequence[bytes]) -> StoredSample:
        nonlocal last
        last = image_digest(data[0])
        return make(item, data)

    with destination.temporary_folder() as folder:
        path = folder / "shard"
        with (
            closing(iter_taken(files, task.inputs, take)) as inputs,
            ShardWriter(path, record_layout(header.features)) as writer,
        ):
            for item, sample in inputs:
                digests += LEFT_OUT if item.is_left_out else REJECTED if isinstance(sample, ImageError) else TAKEN
                digests += bytes.fromhex(item.known_digest) or last
                last = UNREAD
                if item.is_left_out:
                    continue
                if isinstance(sample, ImageError):
                    rejects.append(Reject(item.path, sample.reason, str(sample)))
                    meter.add(rejects=1)
                    continue
                image = sample.image
                images[image.format + ("" if image.kept else ", mended" if image.mended else ", encoded anew")] += 1
                odd.update((*image.odd, *sample.odd))
                if sample.dropped_boxes:
                    odd[DROPPED] += sample.dropped_boxes
                if image.added_bytes is not None:
                    rewritten, added_bytes = rewritten + 1, added_bytes + image.added_bytes
                elif image.unmarked:
                    unmarked[image.unmarked] += 1
                ints: tuple[int, ...] = (image.height, image.width, image.channels)
                if make.columns.several_labels:
                    for label in set(sample.rest[LABEL].values):
                        counts[int(label)] += 1
                elif make.columns.labelled:
                    counts[item.label] += 1
                    ints = (item.label, *ints)
                writer.add(
                    image.data, ints, encode_entries({make.keys[name]: value for name, value in sample.rest.items()})
                )
                meter.add(images=1, size=sum(file.bytes for file in item.files))
        written = writer.finish()
        with meter.putting(written.bytes):
            shard = put_shard(destination, counted(shard_name, len(written.lengths)), path, written, context.owner)
    retries = destination.retries + files.retries
    report = Report(
        task.number,
        (shard,),
        tuple(counts),
        dict(images),
        tuple(rejects),
        dict(odd),
        retries,
        markers=Markers(rewritten, added_bytes, dict(unmarked)) if context.policy.restart_markers else msgspec.UNSET,
        digests=bytes(digests),
    )
    put_report(destination, report, context.owner)


def reach(context: ShardContext, ref: TaskRef) -> dict[str, str]:
    """Return what this host sees of the build's destination and of the first files of a task, see `Job.reach`."""
    _check_rewriting(context.policy)
    destination = open_store(context.destination, follow=False)
    seen = see_destination(destination, context.header.run_id)
    return seen | see_inputs(context.header, read_task(destination, ref)) if seen else seen


def _check_rewriting(policy: ImagePolicy) -> None:
    """Raise BuildError on a host that would store other bytes than the build's other hosts."""
    if policy.restart_markers and not CAN_REWRITE:
        raise BuildError(
            "tpufeed was installed here without its C extension, and this build gives kept JPEGs restart markers. "
            "Install it from a wheel, or with a C compiler; or begin the build with encode='exact'"
        )


def see_inputs(header: PlanHeader, task: Task) -> dict[str, str]:
    """Return the versions of the first files of a task. Raises where their store does not answer, or refuses."""
    first = [item for item in task.inputs if item.problem is None][:_SEEN_INPUTS]
    names = list(dict.fromkeys(file.file for item in first for file in item.files))
    found = Files(header.base).stats(names)
    for info in found:
        if isinstance(info, AccessError | UnavailableError):
            raise info
    return {
        name if "://" in name or name.startswith("/") else f"{header.base.rstrip('/')}/{name}": info.version
        for name, info in zip(names, found, strict=True)
        if isinstance(info, ObjectInfo)  # others are rejects, wherever the task runs
    }
