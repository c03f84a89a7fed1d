"""Combinations of builds against a dict: sources of every kind that change, and every command, killed or twice at once.

After each step all versions that are kept hold what the model says, `verify` says so, too, samples have kept their
numbers and classes their ids, and nothing outside of the destination was touched.

    python -m tests.oracle.builds [--seconds 1800] [--seed N] [--kinds folder,csv] [--shrink]
"""

import functools
import itertools
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3"})

from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import tpufeed
from tests.grouped import in_groups
from tests.oracle.commands import dawdle, kill_at, run
from tests.oracle.seeds import make_parser, try_seeds
from tests.oracle.sources import (
    BRINGS_CLASSES,
    EDITS,
    FORMATS,
    KINDS,
    MAKES_CLIPS,
    READ_NPY,
    SIDE,
    SPLITS_ITSELF,
    TRAITS,
    Source,
    number_of,
    own_split,
    place_of,
    same_path,
)
from tests.oracle.versions import COUNTS, Version, manifest_of, numbers_of, read, tree
from tpufeed import cache
from tpufeed.images import CenterCrop, HorizontalFlip

MODES = st.one_of(
    st.just(("calm",)),
    st.tuples(st.just("killed"), st.integers(1, 16), st.booleans(), st.booleans()),
    st.tuples(st.just("twice"), st.integers(0, 999)),
)
SEEDS = st.sampled_from(range(1 << 16))
EDITED = st.lists(st.sampled_from(EDITS), max_size=6)
LAST: list[str] = []  # what the machine that failed last has done


@functools.cache
def prepare():
    """Do all once in this process, so that its forks have every module already."""
    with tempfile.TemporaryDirectory(prefix="tpufeed-builds-") as folder:
        source = Source("parquet", Path(folder, "source"), frozenset(), random.Random(0), itertools.count())
        for _ in range(9):
            source.add()
        source.write()
        to = Path(folder, "dataset")
        tpufeed.shard(source.url, to, workers=1, **in_groups(source.options))
        tpufeed.append(source.url, to, workers=1)
        tpufeed.verify(to, "all")
        tpufeed.compact(to, workers=1)
        tpufeed.prune(to)
        cache.warmup(to, Path(folder, "cache"), ops=[CenterCrop(SIDE), HorizontalFlip()], workers=1)
        with tpufeed.Loader(to, batch_size=1, processes=0, ops=[CenterCrop(SIDE)]) as loader:
            next(iter(loader))


class Builds(RuleBasedStateMachine):
    """A dataset, its sources and its cache."""

    kinds, traits = KINDS, TRAITS

    @initialize(data=st.data(), number=SEEDS)
    def begin(self, data, number):
        prepare()
        kind = data.draw(st.sampled_from(self.kinds))
        self.said = []
        self.root = Path(tempfile.mkdtemp(prefix="tpufeed-builds-"))
        self.dataset, self.cached = self.root / "out/dataset", self.root / "out/cache"
        self.temporary = self.root / "temporary"
        for name in ("out", "temporary", "canary/train/ant"):
            (self.root / name).mkdir(parents=True)
        (self.root / "canary/train/ant/1.png").write_bytes(b"none of yours")
        (self.root / "canary/manifest.json").write_text("{}")
        draw = self.draw = random.Random(number)
        traits = {name for name in self.traits if draw.random() < 0.5}
        first, splits = draw.randrange(5000), draw.random() < 0.6
        self.splits_itself = "own splits" in traits and kind in SPLITS_ITSELF
        splits = splits and not (self.splits_itself and kind == "coco")
        self.splits_itself = self.splits_itself and not splits
        outside, outlines = draw.choice(["reject", "clip", "drop"]), draw.choice(["", "semantic", "instance"])
        places = self.root / "source", self.root / "other/source"
        presize = draw.choice([None, None, SIDE // 2])
        handled = {"outside": outside, "outlines": outlines, "is_halved": presize is not None}
        handled |= {"kept": draw_format(kind, number)} | draw_clips(kind, number)
        if (clips := handled["clips"]) and handled["way"] == "file" and handled["kept"] and kind != "jsonl":
            # A clip in one file is a TIFF of pages. One page in a folder would be a frame.
            handled["kept"] = handled["kept"] if "tif" in handled["kept"][2] else None
            pixels = (each for each in itertools.count(first % 1500) if each % 11)
        else:
            pixels = itertools.count(first % 1500 if clips else first)
        self.sources = [Source(kind, place, frozenset(traits), draw, pixels, **handled) for place in places]
        for source, count in zip(self.sources, (draw.randrange(7, 26), draw.randrange(1, 6)), strict=True):
            for _ in range(count):
                source.add()
            if count > 9:
                source.edit("spoil")
                source.edit("spoil")
            source.write()
        self.options = {
            "splits": "train=0.7,val=0.3" if splits else None,
            "encode": draw.choice(["keep", "keep", "exact", "png"]) if handled["kept"] is None else "keep",
            "pixels": None if handled["kept"] is None else "keep",
            "frames": clips and clips[0],
            "frame_stride": clips and clips[1],
            "seed": draw.randrange(3),
            "presize": presize,
            "presize_mode": draw.choice(["short", "long", "fit"]),
            "classes": None,
        }
        if splits and kind in ("csv", "grouped"):
            self.options["split_with"] = draw.choice([None, "text"])
        if kind in ("folder", "csv"):
            self.options["classes"] = draw.choice([None, None, list(self.sources[0].classes)])
            self.options["names"] = draw.choice(["tpufeed", "tpufeed", "kaggle"])
        if self.sources[0].has_numbers:
            self.options["classes"] = None
        if self.sources[0].has_numbers or self.sources[0].leaves_some or clips:  # kaggle's names need classes
            self.options["names"] = "tpufeed"
        self.redraw()
        self.split_of = {}  # by path, or by what is held together
        self.standing, self.warmed, self.is_stale = {}, {}, False
        self.say(f"{kind}, {sorted(traits)}, {handled}, {self.options}, rows {len(self.sources[0].rows)}")
        self.shard(("calm",), overwrite=False)

    def redraw(self):
        """Options that another build of the same may have."""
        self.options["shard_bytes"] = self.draw.choice([4000 * self.times, 9000 * self.times, None])
        self.refused = {}  # by source the path and pixels of rejects, and what is wrong
        self.refused_ever = set()  # place and pixels; a file that is damaged as before is not counted again
        self.options["hosts"] = self.draw.choice([1, 1, 2])

    def say(self, text):
        self.said.append(text)
        LAST[:] = self.said
        note(text)

    # What is right.

    @property
    def side(self):
        return self.options["presize"] or SIDE

    @property
    def times(self):
        """How much larger shards are, so that they hold records of more bands, bits and frames."""
        return (8 if self.options["pixels"] else 1) * (self.options["frames"] or 1)

    @property
    def newest(self):
        return self.standing[max(self.standing)] if self.standing else Version((), {})

    def expect(self, source, base):
        """What a build takes of a source: groups of samples with how many of each, and paths of rejects.

        The rejects are those that have to be, and those that can be.
        """
        if source.kind in ("parquet", "arrow"):
            return self.expect_rows(source, base)
        groups, sure, maybe = [], set(), set()
        by_path = source.samples()
        for path in sorted(by_path):
            sample, bad = by_path[path]
            said = self.options["classes"]
            bad = bad or ("label" if said and not set(sample.labels) <= set(said) else "")
            if bad != "image" and (path, sample.pixels) in base.known:  # a damaged file has other bytes
                continue
            if bad:
                maybe.add(path)
                sure.add(path)
            else:
                groups.append(([sample], 1, 1))
        return groups, sure, maybe

    def expect_rows(self, source, base):
        """As `expect`: rows move within their file, which has each content as often as the dataset has it."""
        groups, maybe, by_path = [], set(), source.samples()
        have = Counter(sample.pixels for sample in base.samples)
        for content in {sample.pixels for sample, _ in by_path.values()}:
            rows = [(sample, bad) for sample, bad in by_path.values() if sample.pixels == content and bad != "image"]
            good = [sample for sample, bad in rows if not bad]
            most = min(len(good), max(0, len(rows) - have[content]))
            least = max(0, len(good) - have[content])
            if good:
                groups.append((good, least, most))
        maybe = {path for path, (_, bad) in by_path.items() if bad}
        contents = Counter(sample.pixels for sample, _ in by_path.values())
        sure = {path for path in maybe if contents[by_path[path][0].pixels] == 1 and not have[by_path[path][0].pixels]}
        return groups, sure, maybe

    def check_taken(self, base, version, source, rejects):
        """Compare what a version has more than its base with what is right."""
        source.ids = version.classes
        groups, _, maybe = self.expect(source, base)
        added = Counter(version.samples) - Counter(base.samples)
        COUNTS["samples added"] += added.total()
        COUNTS["rejects"] += len(rejects)
        for group, least, most in groups:
            count = sum(added.pop(sample, 0) for sample in group)
            assert least <= count <= most, f"{count} of {least} to {most} new samples like {group[0]}"
        assert not added, f"these samples are not to be added: {sorted(added)[:3]}"
        assert rejects.keys() <= maybe, f"rejected without reason: {sorted(rejects.keys() - maybe)}"
        wrong = source.samples()
        for path, reason in rejects.items():
            bad = wrong[path][1]
            is_right = bad in ("image", "") or reason == f"bad_{bad}" or (bad == "mask" and reason == "bad_box")  # both
            assert is_right, f"{path} has a wrong {bad}, and the reason is {reason}"
        before = self.refused.pop(str(source.url), set())
        for path, (sample, bad) in source.samples().items():
            self.refused_ever |= {(place_of(path), sample.pixels), (path, bad)} if path in rejects else set()
            if path in rejects or (path, sample.pixels, bad) in before:
                self.refused.setdefault(str(source.url), set()).add((path, sample.pixels, bad))
        for name, samples in version.splits.items():
            assert self.options["splits"] or self.splits_itself or name == "train"
            for sample in samples:
                assert not self.splits_itself or name == own_split(sample.path), f"{sample.path} is in {name}"
                text = "said" if source.renames else "text"
                held = dict(sample.columns)[text] if self.options.get("split_with") else sample.path
                there = self.split_of.setdefault(held, name)
                assert there == name, f"{held} was in {there} and is in {name} now"

    @staticmethod
    def rejects_of(folder):
        """Reasons by path."""
        lines = (folder / "rejects.jsonl").read_text().splitlines()
        return {same_path(said["path"]): said["reason"] for said in map(json.loads, lines)}

    # Commands.

    def go(self, what, work, mode, between):
        """Run a command as `mode` says; returns its outcomes. `between` looks at what stands after a kill."""
        COUNTS["commands"] += 1
        self.before = self.outside()
        if mode[0] == "twice":
            COUNTS["twin runs"] += 1
            outcomes = run(self.temporary, *((partial(dawdle, mode[1] + twin), work) for twin in range(2)))
            # Each has replaced what the other had put, and says so.
            if not any(each.done for each in outcomes) and any("same command again" in each.error for each in outcomes):
                outcomes += run(self.temporary, (lambda: None, work))
        else:
            strikes = [mode[1], mode[1] // 2][: 1 + mode[3]] if mode[0] == "killed" else []
            for at in strikes:
                (outcome,) = run(self.temporary, (partial(kill_at, at, mode[2]), work))
                self.say(f"  {what}: at {at} {'killed' if outcome.killed else outcome.error[:300] or 'done'}")
                if outcome.killed:
                    COUNTS["kills"] += 1
                    between()
                elif not outcome.done:
                    return [outcome]
            outcomes = run(self.temporary, (lambda: None, work))
        for outcome in outcomes:
            self.say(f"  {what} {mode[0]}: {outcome.error[:300] or 'done'}")
            assert not outcome.crashed, outcome.error
        assert not list(self.dataset.glob("_tpufeed/tmp/*")), "temporary files are left"
        self.untouched()
        return outcomes

    @staticmethod
    def check_done(outcomes, overwrites):
        """All are done; of two that overwrite one may be replaced by the other, or even both have to be repeated."""
        allowed = ("BuildError", "DuplicateWriterError") if overwrites and len(outcomes) > 1 else ()
        assert any(each.done for each in outcomes), outcomes
        late = "has another version now"  # the other one was through first
        assert all(each.done or each.is_a(*allowed) or late in each.error for each in outcomes), outcomes

    def outside(self):
        return {folder: tree(self.root / folder) for folder in ("source", "other", "canary")} | {
            "root": sorted(path.name for path in [*self.root.iterdir(), *(self.root / "out").iterdir()])
        }

    def untouched(self):
        now = self.outside()
        assert {*now.pop("root")} <= {*self.before["root"], "dataset", "cache"}, "something is beside the destination"
        for folder, files in now.items():
            assert files == self.before[folder], f"the folder {folder} was touched"

    def sound(self, folder, numbers):
        """`verify` finds the right number of records in each version."""

        def work():
            return [tpufeed.verify(folder, "all", version=number).records for number in numbers]

        (outcome,) = run(self.temporary, (lambda: None, work))
        assert outcome.done, f"verify of a sound dataset: {outcome.error}"
        return outcome.value

    def shard(self, mode, overwrite):
        source, options = self.sources[0], {**self.options, **self.sources[0].options}
        options = {name: value for name, value in options.items() if value is not None}
        old = dict(self.standing)
        for each in self.sources:
            each.has_varied = source.varies

        def work():
            tpufeed.shard(
                source.url, self.dataset, **in_groups(options), overwrite=overwrite, workers=1, max_rejects="100%"
            )

        def between():
            self.untouched()
            manifest = manifest_of(self.dataset, None)
            if manifest is not None:
                version = read(manifest, self.dataset)
                self.sound(self.dataset, [manifest.get("version", 1)])
                is_old = old and version == old[max(old)] and manifest.get("version", 1) == max(old)
                if not is_old:
                    self.check_taken(Version((), {}), version, source, {})

        outcomes = self.go("shard", work, mode, between)
        self.check_done(outcomes, overwrite)
        assert numbers_of(self.dataset) == [1]
        version = read(manifest_of(self.dataset, 1), self.dataset)
        base, rejects = Version((), {}), self.rejects_of(self.dataset)
        self.check_taken(base, version, source, rejects)
        _, sure, _ = self.expect(source, base)
        assert rejects.keys() >= sure, f"no rejects: {sorted(sure - rejects.keys())}"
        said = options.get("classes") or (source.classes if source.kind in BRINGS_CLASSES else None)
        assert version.classes == tuple(said or sorted(version.classes)), version.classes
        self.standing = {1: version}
        self.look()

    def look(self, may_lack=(), folder=None, standing=None):
        """All versions that the model keeps are as they were, but for those in `may_lack`, which may be gone."""
        folder, standing = folder or self.dataset, self.standing if standing is None else standing
        there = numbers_of(folder)
        lacking = sorted(standing.keys() - {*there, *may_lack})
        assert not lacking, f"the versions {lacking} are gone"
        numbers = sorted(standing.keys() & {*there})
        for number in numbers:
            assert read(manifest_of(folder, number), folder) == standing[number], f"version {number} has changed"
        variants = 2 if folder == self.cached else 1
        records = [len(standing[number].samples) * variants for number in numbers]
        found = self.sound(folder, numbers)
        assert found == records, f"verify counts {found} records, where {records} are right"
        for number in standing.keys() - {*there}:
            standing.pop(number)
        return there

    def absorb(self, may_lack=()):
        """Look at the dataset, and take versions into the model that are new and right."""
        last, base = max(self.standing, default=0), self.newest  # a prune after an append leaves none of the model's
        new = sorted({*self.look(may_lack)} - self.standing.keys())
        for number in new:
            manifest = manifest_of(self.dataset, number)
            assert number == last + 1, f"the versions {new} follow on {last}"
            version, part = read(manifest, self.dataset), manifest["parts"][-1]
            assert version.grew_from(base), "samples or classes have changed their numbers"
            if part["kind"] == "compact":
                assert version == base, "a compaction has changed samples"
            else:
                source = next(each for each in self.sources if str(each.url) == part["source"])
                rejects = self.rejects_of(self.dataset / part["folder"])
                self.check_taken(base, version, source, rejects)
            self.standing[number] = base = version
            last = number
        if new:
            self.look()

    def between(self, may_lack=()):
        self.untouched()
        self.absorb(may_lack)

    def is_unfinished(self):
        """Whether an append has left a part, as it took none of its images, which docs/growing.md says to discard."""
        part = f"part-{max(self.standing) + 1:05d}"
        return (self.dataset / part / "_tpufeed/plan.jsonl").exists()

    def append_work(self, source):
        self.discards = self.is_unfinished()
        options = {"overwrite": self.discards, "workers": 1, "max_rejects": "100%"}
        return lambda: tpufeed.append(source.url, self.dataset, **source.further, **options).added

    def compact_work(self):
        self.discards = self.is_unfinished()
        return lambda: tpufeed.compact(self.dataset, overwrite=self.discards, workers=1).shards

    def may_refuse(self, source, outcome):
        """A source that brings its own classes may be refused where they do not begin with the dataset's.

        And one that lacks columns of the dataset.
        """
        base = self.newest.classes
        brings = source.kind in BRINGS_CLASSES and tuple(source.classes[: len(base)]) != base
        return (brings or source.lacks_objects) and outcome.is_a("OptionError", "SourceError")

    def after_append(self, source, outcomes):
        """All that was to be added is there."""
        groups, sure, maybe = self.expect(source, self.newest)
        if all(self.may_refuse(source, outcome) for outcome in outcomes):
            COUNTS["classes refused"] += 1
            return
        left = [group[0] for group, least, _ in groups if least]
        assert not left, f"not added: {left[:3]}; {outcomes}"
        by_path = source.samples()
        refused = self.refused.get(str(source.url), set())
        # Elsewhere than in a folder anything of a row may have changed, so that it is tried again.
        is_news = source.kind != "folder" or any(
            (path, by_path[path][0].pixels, by_path[path][1]) not in refused for path in maybe
        )
        if is_news and all(each.is_a("BuildError") for each in outcomes):  # none of the new ones could be taken
            return
        self.check_done(outcomes, self.discards)
        # If annotations are wrong, the bytes of their image do not matter.
        lacking = {
            path
            for path in sure
            if (place_of(path), by_path[path][0].pixels) not in self.refused_ever
            and (by_path[path][1] == "image" or (path, by_path[path][1]) not in self.refused_ever)
        }
        assert not lacking, f"no rejects: {sorted(lacking)}"

    # Rules.

    def edit(self, which, edits, number):
        self.draw.seed(number)
        done = [self.sources[which].edit(what) for what in edits]
        self.sources[which].write()
        self.say(f"source {which}: {', '.join(filter(None, done))}")

    @rule(which=st.sampled_from([0, 0, 0, 1]), edits=EDITED, number=SEEDS, mode=MODES)
    def append(self, which, edits, number, mode):
        self.edit(which, edits, number)
        self.say(f"append {which} {mode}")
        source = self.sources[which]
        outcomes = self.go("append", self.append_work(source), mode, self.between)
        self.absorb()
        self.after_append(source, outcomes)

    @rule(edits=EDITED, number=SEEDS, mode=MODES)
    def append_once_more(self, edits, number, mode):
        self.append(0, edits, number, mode)

    @rule(keep=st.sampled_from([0, 0, 1, 2, 3]), mode=MODES)
    def tidy(self, keep, mode):
        if keep:
            self.prune(keep, mode)
        else:
            self.compact(mode)

    def compact(self, mode):
        self.say(f"compact {mode}")
        outcomes = self.go("compact", self.compact_work(), mode, self.between)
        self.check_done(outcomes, self.discards)
        self.absorb()

    def prune(self, keep, mode):
        self.say(f"prune {keep} {mode}")
        dropped = sorted(self.standing)[:-keep]
        between = partial(self.between, dropped)
        outcomes = self.go("prune", lambda: tpufeed.prune(self.dataset, keep=keep).kept, mode, between)
        assert all(each.done for each in outcomes), outcomes
        self.absorb(dropped)
        assert not self.standing.keys() & {*dropped}, "versions stand that were to go"
        manifests = [manifest_of(self.dataset, number) for number in self.standing]
        named = {
            self.dataset / shard["name"]
            for manifest in manifests
            for split in manifest["splits"].values()
            for shard in split["variants"][0]["shards"]
        }
        there = {path for pattern in ("*.tfrecord", "*.tfrec") for path in self.dataset.rglob(pattern)}
        left = f"part-{max(self.standing) + 1:05d}"  # by an append that took nothing
        there = {path for path in there if path.parent.name != left}
        assert there == named, f"shards of no version: {sorted(there - named)}"

    @rule(edits=EDITED, mode=MODES, number=SEEDS)
    def overwrite(self, edits, mode, number):
        self.edit(0, edits, number)
        self.redraw()
        self.say(f"overwrite {mode} {self.options}")
        self.shard(mode, overwrite=True)
        self.is_stale = True

    @rule(
        first=st.sampled_from([0, 1]),
        edits=EDITED,
        other=st.sampled_from(["append", "compact", "prune"]),
        number=SEEDS,
    )
    def beside(self, first, edits, other, number):
        """Another command beside an append; both are done when they have been repeated."""
        self.edit(first, edits, number)
        self.say(f"append {first} beside {other}")
        source = self.sources[first]
        makers = [
            partial(self.append_work, source),
            {"append": partial(self.append_work, self.sources[1 - first])}.get(other)
            or (self.compact_work if other == "compact" else lambda: lambda: tpufeed.prune(self.dataset).kept),
        ]
        COUNTS["twin runs"] += 1
        COUNTS["commands"] += 2
        self.before = self.outside()
        may_lack = sorted(self.standing) if other == "prune" else ()
        works = [make() for make in makers]
        outcomes = run(self.temporary, *((partial(dawdle, number + twin), work) for twin, work in enumerate(works)))
        for _ in range(3):
            for outcome in outcomes:
                self.say(f"  {outcome.error[:300] or 'done'}")
                assert not outcome.crashed, outcome.error
                assert outcome.done or outcome.is_a("DuplicateWriterError", "BuildError", "OptionError"), outcome
            self.between(may_lack)
            outcomes = [run(self.temporary, (lambda: None, make()))[0] for make in makers]
        if other == "append":
            self.after_append(self.sources[1 - first], outcomes[1:])
        self.after_append(source, outcomes[:1])

    @rule(mode=MODES, flips=st.booleans())
    def warm(self, mode, flips):
        """Warm a cache, or let it grow; it equals one that is warmed at once."""
        ops = [CenterCrop(self.side), HorizontalFlip()] if flips else [CenterCrop(self.side)]
        overwrite = self.is_stale or flips != getattr(self, "flips", flips)
        self.is_stale, self.flips = False, flips
        self.say(f"warm {mode} flips {flips}, overwrite {overwrite}")

        def work(to=self.cached, replaces=overwrite):
            options = {"variants": 2, "shard_bytes": 12_000 * self.times, "workers": 1, "max_rejects": "0"}
            cache.warmup(self.dataset, to, ops=ops, overwrite=replaces, **options)

        def between():
            self.untouched()
            if not overwrite:
                self.look(folder=self.cached, standing=dict(self.warmed))

        outcomes = self.go("warm", work, mode, between)
        self.check_done(outcomes, overwrite)
        if overwrite:
            self.warmed = {}
        there = self.look(folder=self.cached, standing=self.warmed)
        manifest = manifest_of(self.cached, None)
        fresh = self.root / "out/fresh"
        (outcome,) = run(self.temporary, (lambda: None, partial(work, fresh, False)))
        assert outcome.done, outcome.error
        for variant in range(2):
            found = read(manifest, self.cached, variant)
            assert found == read(manifest_of(fresh, None), fresh, variant), "it is not as one that is warmed at once"
            for name, samples in self.newest.splits.items():
                assert list(map(plain, found.splits[name])) == list(map(plain, samples)), "it has other samples"
        shutil.rmtree(fresh)
        for number in sorted({*there} - self.warmed.keys()):
            self.warmed[number] = read(manifest_of(self.cached, number), self.cached)
        self.look(folder=self.cached, standing=self.warmed)
        self.look()

    @rule(number=SEEDS)
    def examine(self, number):
        (self.harm if number % 2 else self.load)(number // 2)

    def harm(self, number):
        """`verify` says so where a shard, an index or a manifest is harmed."""
        shards = sorted(path for path in self.dataset.rglob("*") if path.name.endswith((".tfrecord", ".tfrec")))
        named = json.dumps(manifest_of(self.dataset, None)["splits"])
        shards = [path for path in shards if f'"{path.relative_to(self.dataset)}"' in named and path.stat().st_size]
        path = shards[number % len(shards)]
        data, times = path.read_bytes(), path.stat()
        at = number * 7 % len(data)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << number % 8]) + data[at + 1 :])
        (outcome,) = run(self.temporary, (lambda: None, lambda: tpufeed.verify(self.dataset).records))
        assert outcome.is_a("DatasetDamagedError"), f"byte {at} of {path} was changed, and verify says {outcome}"
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.sound(self.dataset, sorted(self.standing))

    def load(self, number):
        """A loader gives what the model says, of any version that is kept."""
        number = sorted(self.standing)[number % len(self.standing)]

        wanted = {
            split: [(sample.pixels, at) for at, sample in enumerate(samples)]
            for split, samples in self.standing[number].splits.items()
            if samples  # a loader refuses an empty split
        }

        def work():
            found = {}
            for split in wanted:
                data = tpufeed.open_dataset(self.dataset, version=number)
                options = {"batch_size": 1, "shuffle": False, "processes": 0, "columns": ["image", "sample"]}
                options["ops"] = [CenterCrop(self.side)]
                with tpufeed.Loader(data, split=split, **options) as loader:
                    found[split] = [(number_of(image[0]), int(sample[0])) for image, sample in loader]
            return found

        (outcome,) = run(self.temporary, (lambda: None, work))
        assert outcome.done, outcome.error
        assert outcome.value == wanted

    def teardown(self):
        COUNTS["machines"] += 1
        COUNTS["steps"] += len(getattr(self, "said", []))
        if hasattr(self, "root"):
            shutil.rmtree(self.root, ignore_errors=True)


def draw_format(kind, number):
    """One of `FORMATS` with suffixes that this kind of source reads, or None for 8-bit RGB."""
    dtype, channels, suffixes = FORMATS[number % len(FORMATS)]
    suffixes = tuple(suffix for suffix in suffixes if suffix != "npy" or kind in READ_NPY)
    return (dtype, channels, suffixes) if suffixes and number // 7 % 2 else None


def draw_clips(kind, number):
    """Frames and stride, and how a folder has its clips."""
    if kind not in MAKES_CLIPS or number // 13 % 3 != 1:
        return {"clips": None}
    ways = {"way": ("frames", "file")[number // 39 % 2]} if kind == "folder" else {}
    return {"clips": ((2, None), (3, None), (3, 2), (2, 1))[number // 78 % 4], "way": "file"} | ways


def plain(sample):
    """A sample without what a flip moves."""
    moved = ("boxes", "objects.bbox", "mask", "keypoints")
    columns = tuple(each for each in sample.columns if each[0] not in moved or len(each[1]) == 1)
    return sample.path, sample.pixels, sample.labels, columns


def machine(kinds, number=None, traits=TRAITS):
    """The machine over these kinds of source, with a seed if there is one."""
    found = type("Builds", (Builds,), {"kinds": tuple(kinds), "traits": tuple(traits)})
    return found if number is None else seed(number)(found)


def settings_of(examples, steps, shrink=False, **more):
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, *[Phase.shrink] * shrink],
        **more,
    )


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--without", default="", help=f"no sources like this: {', '.join(TRAITS)}")
    parser.add_argument("--shrink", action="store_true", help="look for the fewest steps that fail")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    traits = [trait for trait in TRAITS if trait not in options.without.split(",")]

    def take(number: int) -> None:
        chosen = [kinds[number % len(kinds)]]
        try:
            run_state_machine_as_test(machine(chosen, number, traits), settings=settings_of(6, 14, options.shrink))
        except Exception:
            print("\n".join(LAST), flush=True)
            raise

    try_seeds("builds", options, COUNTS, take, f" --kinds {options.kinds}")


if __name__ == "__main__":
    main()
