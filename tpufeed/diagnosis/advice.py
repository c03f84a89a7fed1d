"""One table of advice: what to do next, and the rate that it is predicted to come to. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from shlex import quote
from typing import Any, Literal

from tpufeed.diagnosis.prediction import Alternative, Goal, Measurements, predict_band
from tpufeed.diagnosis.results import Action
from tpufeed.diagnosis.wording import number_of
from tpufeed.errors import OptionError
from tpufeed.images.policy import ImagePolicy
from tpufeed.sharding.options import ShardOptions

LEAST_FACTOR = 1.05  # less is within the noise of a few seconds
LEAST_OF_WORKERS = 1.25  # likewise of other processes and threads, whose cores others may use at the time
_GOOD_BATCH = 128  # of a device: the sides of its matrix unit, and batch norm's statistics

# The options that a manifest records under the names that their flags have.
_FLAGS = (
    *("shards", "hosts", "split_by", "image", "label", "seed", "check", "encode", "quality", "presize_mode"),
    *("max_pixels", "min_side"),
)
_POLICIES = ("exif", "cmyk", "alpha", "deep", "greyscale", "animated", "extension", "damaged")
_UNKNOWN_SOURCE = "PHOTOS"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of a training run: a saved `StepReport` or a profile.

    Attributes:
        blames: what the run waited for; None where that is not known.
        says: what was seen, as a sentence.
    """

    blames: Literal["data", "tracing", "accelerator"] | None
    says: str


def advise(measured: Measurements, goal: Goal, evidence: Sequence[Evidence] = ()) -> tuple[Action, ...]:
    """Return the advice that applies, the best first; advice whose effect is not known comes last."""
    blamed = {one.blames for one in evidence}
    waits = measured.fed is None or measured.fed < goal.needed[1]
    gains = []
    for alternative in measured.alternatives:
        action = _predict_gain(alternative, measured, goal)
        least = LEAST_OF_WORKERS if alternative.kind == "workers" else LEAST_FACTOR
        if action.factor is None or action.factor >= least:
            gains.append(action)
    gains.sort(key=lambda action: (-(action.factor or 0.0), action.do))
    a_device = None if goal.batch_size is None else goal.batch_size / goal.devices
    tracing = (
        "your step waits on tracing, not on data: keep shapes fixed (remainder='drop' or 'pad'), compile or trace the "
        "step once, and read no value of the device within it (.item(), print)"
    )
    table = [  # (when it applies, what to do)
        *((one.blames == "tracing", Action(do=tracing, cost=one.says)) for one in evidence),
        *((waits, gain) for gain in gains),
        *((waits, Action(do=hint)) for hint in measured.hints),
        (
            not waits and "data" in blamed and "tracing" not in blamed,
            Action(
                do="look at the run rather than at the data: it waited, though this host can feed it. Time its loop "
                "with StepClock and give --clock, which tells waiting for a batch from tracing; see what else takes "
                "its cores"
            ),
        ),
        (
            a_device is not None and a_device < _GOOD_BATCH / 2,
            Action(
                do=f"batch {a_device or 0:.4g} a core leaves the MXU idle: {_GOOD_BATCH} "
                f"({_GOOD_BATCH * goal.devices:,} on this host)",
                cost="a learning rate that fits, and memory of the device",
            ),
        ),
    ]
    return tuple(action for applies, action in table if applies)


def _predict_gain(alternative: Alternative, measured: Measurements, goal: Goal) -> Action:
    """Return what an alternative gives with the storage and the transfer that there are."""
    storage, transfer = measured.storage, measured.transfer
    rate = alternative.images_per_second

    def at_device(images_per_second: float) -> float:
        return images_per_second if transfer is None else min(images_per_second, transfer)

    first = best = at_device(storage.through(rate, alternative.record_bytes))
    fed, cost = measured.fed, [alternative.cost] if alternative.cost else []
    # Where the stage or the page cache can hold all of it, later epochs read from memory. They are compared with the
    # later epochs of now, which may do so, too.
    fits = alternative.total_bytes is not None and alternative.total_bytes <= storage.room
    if fits or (alternative.total_bytes is None and not storage.every_epoch):
        later, fed_later = at_device(rate), measured.fed_later
        if fed and fed_later and later / fed_later > first / fed:
            best, fed = later, fed_later
            cost.append(f"what is read for the first time comes at {first:,.0f}")
    if best < rate / LEAST_FACTOR:
        limit = "storage" if best < (transfer or best + 1) else "the transfer"
        cost.append(f"{limit} holds it at that, from memory it is {rate:,.0f}")
    return Action(
        do=alternative.do,
        factor=best / fed if fed else None,
        images_per_second=best,
        idle_percent=predict_band(best, goal.needed),
        cost="; ".join(cost),
    )


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of samples, for commands of `tpufeed shard` that make their dataset again.

    Attributes:
        source: raw images.
        flags: the options that are not the default, quoted for a shell, each with a space before it; all but the size
            of the images, which is what the advice changes.
        remarks: what the flags do not say, as sentences.
        images: how images were stored.
    """

    source: str = _UNKNOWN_SOURCE
    flags: str = ""
    remarks: tuple[str, ...] = ()
    images: ImagePolicy = field(default_factory=ImagePolicy)


def find_provenance(options: Mapping[str, Any]) -> Provenance:
    """Return the provenance of a dataset whose manifest has these options."""
    if options.get("command") != "shard" or not options.get("source"):
        said = f"{_UNKNOWN_SOURCE} stands for the images it was made of; how it was made is not recorded"
        if options.get("command") == "adopt":
            said = (
                f"{_UNKNOWN_SOURCE} stands for the images that its TFRecords were made of: add --label, --split or "
                "--split-by as they need it"
            )
        return Provenance(remarks=(said,))
    usual = {"shards": None, **ShardOptions().to_dict()}
    flags, remarks = list[str](), list[str]()
    for name, value in options.items():
        if name in ("command", "source", "presize") or value is None or (name in usual and value == usual[name]):
            continue
        if name == "shard_bytes":
            flags.append(f" --shard-size {value}")
        elif name in _FLAGS:
            flags.append(f" --{name.replace('_', '-')} {quote(str(value))}")
        elif name in _POLICIES:
            flags.append(f" --policy {quote(f'{name}={value}')}")
        elif name == "split" and isinstance(value, Mapping):
            flags.append(f" --split {quote(','.join(f'{split}={share}' for split, share in value.items()))}")
        elif name == "classes" and isinstance(value, list | tuple):
            flags.append(" --classes CLASSES")
            remarks.append(
                f"CLASSES stands for the file of its {number_of(len(value), 'class name')}, one a line, in the order "
                "that `tpufeed info --json` has them"
            )
        else:
            remarks.append(f"it was made with {name}={value}, which no option of `tpufeed shard` says")
    # A manifest leaves the units of names out.
    policy = {known.name: options.get(known.name.removesuffix("_px")) for known in fields(ImagePolicy)}
    try:
        images = ImagePolicy(**{name: value for name, value in policy.items() if value is not None})
    except OptionError:  # of another version
        images = ImagePolicy()
    return Provenance(str(options["source"]), "".join(flags), tuple(remarks), images)
