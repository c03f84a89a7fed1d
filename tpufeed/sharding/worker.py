"""One task of a sharding: read its inputs, and store their images."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from tpufeed.build.commit import Reject
from tpufeed.build.digests import LEFT_OUT, REJECTED, TAKEN, UNREAD, image_digest
from tpufeed.build.item import Item
from tpufeed.build.plan import PlanHeader, Task
from tpufeed.build.worker import Output, TaskContext, reach, run
from tpufeed.dataset.manifest import Markers
from tpufeed.dataset.schema import LABEL
from tpufeed.errors import AccessError, BuildError, ImageError, UnavailableError
from tpufeed.images.policy import ImagePolicy
from tpufeed.images.restart import CAN_REWRITE
from tpufeed.sharding.inputs import Files, iter_taken
from tpufeed.sharding.sample import SampleMaker, StoredSample
from tpufeed.storage.store import ObjectInfo
from tpufeed.tfrecord.example import encode_entries

__all__ = ["DROPPED", "ShardContext", "reach", "run", "see_inputs"]  # an engine finds `run` and `reach` here

DROPPED = "box outside"  # among the odd cases: boxes outside the square that "fit" cuts out
_SEEN_INPUTS = 4


@dataclass(frozen=True, slots=True)
class ShardContext(TaskContext):
    """What all tasks of a sharding share."""

    policy: ImagePolicy

    def check(self) -> None:
        """Raise BuildError on a host that would store other bytes than the build's other hosts."""
        if self.policy.restart_markers and not CAN_REWRITE:
            raise BuildError(
                "tpufeed was installed here without its C extension, and this build gives kept JPEGs restart markers. "
                "Install it from a wheel, or with a C compiler; or begin the build with encode='exact'"
            )

    def write(self, task: Task, output: Output) -> None:
        """Write the images of the task's inputs as the policy wants them."""
        header, files, (writer,) = self.header, Files(self.header.base), output.writers
        make = SampleMaker(header.features, header.class_names, self.policy, header.options)
        rewritten, added_bytes, unmarked = 0, 0, Counter[str]()
        digests, last = bytearray(), UNREAD

        def take(item: Item, data: Sequence[bytes]) -> StoredSample:
            nonlocal last
            last = image_digest(data[0])
            return make(item, data)

        with closing(iter_taken(files, task.inputs, take)) as inputs:
            for item, sample in inputs:
                digests += LEFT_OUT if item.duplicate_of else REJECTED if isinstance(sample, ImageError) else TAKEN
                digests += bytes.fromhex(item.duplicate_of) or last
                last = UNREAD
                if item.duplicate_of:
                    continue
                if isinstance(sample, ImageError):
                    output.reject(Reject(item.path, sample.reason, str(sample)))
                    continue
                image = sample.image
                stored = "" if image.kept else ", mended" if image.mended else ", encoded anew"
                output.images[image.format + stored] += 1
                output.odd.update((*image.odd, *sample.odd))
                if sample.dropped_boxes:
                    output.odd[DROPPED] += sample.dropped_boxes
                if image.added_bytes is not None:
                    rewritten, added_bytes = rewritten + 1, added_bytes + image.added_bytes
                elif image.unmarked:
                    unmarked[image.unmarked] += 1
                ints: tuple[int, ...] = (image.height, image.width, image.channels)
                if make.columns.several_labels:
                    output.count(set(map(int, sample.rest[LABEL].values)))
                elif make.columns.labelled:
                    output.count((item.label,))
                    ints = (item.label, *ints)
                entries = encode_entries({make.keys[name]: value for name, value in sample.rest.items()})
                writer.add(image.data, ints, entries)
                output.meter.add(images=1, size=sum(file.bytes for file in item.files))
        if self.policy.restart_markers:
            output.markers = Markers(rewritten, added_bytes, dict(unmarked))
        output.digests, output.retries = bytes(digests), files.retries

    def see(self, task: Task) -> dict[str, str]:
        """Return the versions of the first files of a task."""
        return see_inputs(self.header, task)


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
