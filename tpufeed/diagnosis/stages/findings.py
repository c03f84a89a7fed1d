"""What the doctor has measured, before anything is made of it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from tpufeed.diagnosis.stages.rates import ASSEMBLY, DECODING, OPS, READING, TRANSFER, Figure, Storage

Kind = Literal["workers", "presize", "raw", "shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Another way for the same samples, tried on some of them with the real loader, from memory.

    Attributes:
        kind: what is changed.
        do: a sentence in the imperative, with the command or the option.
        images_per_second: of the loader.
        record_bytes: of a record on its storage.
        total_bytes: of all records, where they are not those of now.
        cost: what it takes.
        saves: the stage whose time is all that it can save; "" where it may be any.
    """

    kind: Kind
    do: str
    images_per_second: float
    record_bytes: float
    total_bytes: float | None = None
    cost: str = ""
    saves: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a training run has shown: of a saved `StepReport`, or of a profile.

    Attributes:
        blames: "data", "tracing" or "accelerator"; None where it does not tell.
        says: what was seen, as a sentence.
    """

    blames: Literal["data", "tracing", "accelerator"] | None
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All of it.

    Attributes:
        url: of the dataset, or of raw images.
        split: that was measured.
        machine: see `diagnosis.machine`.
        record_bytes: of a record, on average.
        storage: where records come from.
        reading: of records, CRCs verified.
        decoding: of images, without ops.
        ops: that loaders apply.
        transfer: to the device.
        loader: images a second of the real loader from end to end; from memory, where storage is remote and staged.
        loader_detail: what that was.
        why_no_loader: of None.
        ways: others, that were tried.
        hints: of other things to do, whose effect is not known.
        evidence: of training runs.
        settings: for this host.
        notes: what was noticed.
    """

    url: str
    split: str
    machine: dict[str, Any]
    record_bytes: float
    storage: Storage
    reading: Figure = field(default_factory=lambda: Figure(name=READING))
    decoding: Figure = field(default_factory=lambda: Figure(name=DECODING))
    ops: Figure = field(default_factory=lambda: Figure(name=OPS))
    transfer: Figure = field(default_factory=lambda: Figure(name=TRANSFER))
    loader: float | None = None
    loader_detail: str = ""
    why_no_loader: str = ""
    ways: tuple[Way, ...] = ()
    hints: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def assembly(self) -> Figure:
        """The loader as a stage."""
        return Figure(
            name=ASSEMBLY,
            images_per_second=self.loader,
            detail=self.loader_detail,
            why_not=self.why_no_loader,
        )
