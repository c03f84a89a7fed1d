"""Folders of clips, and tables of them: which files make a clip, and what is wrong with others."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import tpufeed
from tests.clips import FRAMES, build, frame, write_animation, write_folder, write_source
from tests.frameworks import lazy
from tests.sharding.outputs import rejects_of, samples_of
from tpufeed.cli.app import app
from tpufeed.errors import BuildError, OptionError, SourceError, TooManyRejectsError
from tpufeed.images.decoding import decode

tifffile = lazy("tifffile")


def shard(src, dst, **options):
    build(src, dst, max_rejects=99, **options)
    return tpufeed.open_dataset(dst).manifest


def frames_of(url, path):
    return [decode(data) for data in samples_of(url)[path]["image/encoded"]]


def is_near(image, expected):
    return np.abs(image.astype(int) - expected).mean() < 6  # a JPEG


def test_a_folder_of_numbered_images_is_a_clip_of_the_class_above(tmp_path):
    write_source(tmp_path / "raw", 4)
    write_folder(tmp_path / "raw/class1/deep/clip9", 9, range(7, 7 + FRAMES), "{}.jpg")
    manifest = shard(tmp_path / "raw", tmp_path / "set")
    assert manifest.listed.kind == "folder of clips"
    assert manifest.pixels.frames == 4
    assert (manifest.class_names, manifest.records) == (("class0", "class1"), {"train": 5})
    samples = samples_of(tmp_path / "set")
    labels = {path: sample["image/class/label"] for path, sample in samples.items()}
    assert labels == {f"class{n % 2}/clip{n:02d}": [n % 2] for n in range(4)} | {"class1/deep/clip9": [1]}
    for path, clip in (("class0/clip02", 2), ("class1/deep/clip9", 9)):
        for image, number in zip(frames_of(tmp_path / "set", path), [0, 2, 5, 8], strict=True):
            assert is_near(image, frame(clip, number))


def test_numbers_have_their_natural_order(tmp_path):
    write_folder(tmp_path / "raw/a/clip", 1, range(8, 8 + FRAMES), "f{}.jpg")  # f8, f9, f10, ...
    shard(tmp_path / "raw", tmp_path / "set", frames=3, images={"frame_stride": 1})
    for number, image in enumerate(frames_of(tmp_path / "set", "a/clip")):
        assert is_near(image, frame(1, number))


def test_the_options_of_the_command(tmp_path):
    write_folder(tmp_path / "raw/a/clip", 1)
    words = ["shard", str(tmp_path / "raw"), str(tmp_path / "set"), "--frames", "3", "--frame-stride", "2"]
    done = CliRunner().invoke(app, [*words, "--workers", "1"])
    assert not done.exit_code, done.output
    manifest = tpufeed.open_dataset(tmp_path / "set").manifest
    assert (manifest.options["frames"], manifest.options["frame_stride"]) == (3, 2)
    for image, number in zip(frames_of(tmp_path / "set", "a/clip"), [0, 2, 4], strict=True):
        assert is_near(image, frame(1, number))


def test_splits_and_clips_without_classes(tmp_path):
    for split in ("train", "val"):
        write_source(tmp_path / "raw" / split, 2)
    assert shard(tmp_path / "raw", tmp_path / "set").records == {"train": 2, "val": 2}
    write_folder(tmp_path / "bare/one", 1)
    manifest = shard(tmp_path / "bare", tmp_path / "unlabelled")
    assert (manifest.records, manifest.labelled) == ({"train": 1}, False)


def test_frames_in_the_source_itself_are_refused(tmp_path):
    write_folder(tmp_path / "clip", 1)
    with pytest.raises(SourceError, match="give the folder above"):
        shard(tmp_path / "clip", tmp_path / "set")


def spoil(folder):
    for name in ("sound", "gap", "few", "series", "twice", "named", "sizes", "empty", "text", "broken", "grey"):
        write_folder(folder / "a" / name, 1, range(1, 10))
    (folder / "a/gap/frame_5.jpg").unlink()
    for number in range(4, 10):
        (folder / f"a/few/frame_{number}.jpg").unlink()
    write_folder(folder / "a/series", 1, name="flow_{}.jpg")
    shutil.copy(folder / "a/twice/frame_3.jpg", folder / "a/twice/frame_03.jpg")
    shutil.copy(folder / "a/named/frame_3.jpg", folder / "a/named/cover.jpg")
    Image.fromarray(frame(1, 2, 20, 30)).save(folder / "a/sizes/frame_9.jpg")
    (folder / "a/empty/frame_9.jpg").write_bytes(b"")
    (folder / "a/text/frame_9.jpg").write_text("no image, but a text")
    (folder / "a/broken/frame_9.jpg").unlink()
    (folder / "a/broken/frame_9.jpg").symlink_to("nowhere.jpg")
    Image.fromarray(frame(1, 2)[..., 0]).save(folder / "a/grey/frame_9.jpg")
    return folder


def test_what_is_no_clip_is_rejected_by_name(tmp_path):
    assert shard(spoil(tmp_path / "raw"), tmp_path / "set").records == {"train": 1}
    rejects = rejects_of(tmp_path / "set")
    expected = {
        "gap": ("missing_frame", "no frame 5"),
        "few": ("too_few_frames", "3 frames, and --frames 4"),
        "series": ("mixed_frames", "flow_*.jpg, frame_*.jpg"),
        "twice": ("mixed_frames", "frame_03.jpg"),
        "named": ("mixed_frames", "cover.jpg"),
        "sizes": ("mixed_frames", "frame_9.jpg has 30x20x3 values"),
        "grey": ("mixed_frames", "has 56x40x1 values"),
        "empty": ("zero_bytes", "frame_9.jpg"),
        "text": ("not_an_image", "frame_9.jpg"),
        "broken": ("unreadable", "a link to nothing"),
    }
    assert rejects.keys() == {f"a/{name}" for name in expected}
    for name, (reason, said) in expected.items():
        assert rejects[f"a/{name}"][0] == reason, name
        assert said in rejects[f"a/{name}"][1], name
    with pytest.raises(TooManyRejectsError):
        build(tmp_path / "raw", tmp_path / "other", max_rejects=3)


@pytest.mark.parametrize("ending", ["gif", "webp", "png", "tif"])
def test_animated_files_are_clips_also_with_numbers(ending, tmp_path):
    for clip in range(2):
        write_animation(tmp_path / f"raw/a/clip{clip}.{ending}", clip)
    write_animation(tmp_path / f"raw/a/few.{ending}", 5, count=3)
    write_folder(tmp_path / "raw/b/still", 5)
    manifest = shard(tmp_path / "raw", tmp_path / "set")
    assert (manifest.records, manifest.class_names) == ({"train": 3}, ("a", "b"))
    assert rejects_of(tmp_path / "set")[f"a/few.{ending}"][0] == "too_few_frames"
    assert {name for name, count in manifest.images.items() if "anew" in name and count == 2}
    stored = {sample["image/format"][0] for sample in samples_of(tmp_path / "set").values()}
    assert stored == {b"jpeg", b"jpeg" if ending == "webp" else b"png"}
    tpufeed.verify(tmp_path / "set", decode="all")


def write_pages(folder, *clips):
    for clip in clips:
        path = folder / f"a/clip{clip}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tifffile.TiffWriter(path) as file:
            for number in range(3):
                pixels = np.full((9, 8, 5), clip + number, np.uint16)
                file.write(pixels, photometric="minisblack", planarconfig="contig")


@pytest.mark.uses("tifffile")
def test_animations_of_8_bits_among_clips_of_another_format_are_rejected(tmp_path):
    write_pages(tmp_path / "raw", *range(20))
    for ending in ("gif", "webp"):
        write_animation(tmp_path / f"raw/a/x.{ending}", 1)
    manifest = shard(tmp_path / "raw", tmp_path / "set", frames=2, images={"pixels": "keep"})
    assert (str(manifest.pixels), manifest.records) == ("uint16 of 5 channels, clips of 2 frames", {"train": 20})
    assert [reason for reason, _ in rejects_of(tmp_path / "set").values()] == ["other_pixels"] * 2


@pytest.mark.uses("tifffile")
def test_pages_of_a_format_that_is_kept_are_clips_also_with_numbers(tmp_path):
    write_pages(tmp_path / "raw", 1, 2)
    manifest = shard(tmp_path / "raw", tmp_path / "set", frames=2, images={"pixels": "keep"})
    assert (str(manifest.pixels), manifest.records) == ("uint16 of 5 channels, clips of 2 frames", {"train": 2})
    write_pages(tmp_path / "raw", 3)
    (tmp_path / "raw/a/clip3.tif").write_bytes((tmp_path / "raw/a/clip3.tif").read_bytes()[:500])
    with pytest.raises(BuildError, match="none of the 1"):  # its format is not known
        tpufeed.append(tmp_path / "raw", tmp_path / "set", workers=1, max_rejects=99)


def test_one_folder_with_animated_files_and_frames_is_refused(tmp_path):
    write_animation(tmp_path / "raw/a/clip1.webp", 1)
    write_folder(tmp_path / "raw/a/clip", 1, name="{}.webp")
    with pytest.raises(SourceError, match=r"clip1\.webp has several frames, and a/clip/0\.webp"):
        shard(tmp_path / "raw", tmp_path / "set")


def test_a_frame_with_frames_is_rejected(tmp_path):
    write_folder(tmp_path / "raw/a/clip", 1, name="{}.webp")
    write_animation(tmp_path / "raw/a/clip/8.webp", 1)
    build(write_source(tmp_path / "raw"), tmp_path / "set", max_rejects=1)
    assert "has several" in rejects_of(tmp_path / "set")["a/clip"][1]


def test_transparent_frames_and_sixteen_bits_follow_the_policy(tmp_path):
    clear = Image.new("RGBA", (20, 10), (255, 0, 0, 0))
    (tmp_path / "raw/a").mkdir(parents=True)
    clear.save(tmp_path / "raw/a/x.png", save_all=True, append_images=[Image.new("RGBA", (20, 10), "blue")] * 3)
    shard(tmp_path / "raw", tmp_path / "set", images={"alpha": "black"})
    assert [image[0, 0].tolist() for image in frames_of(tmp_path / "set", "a/x.png")] == [[0, 0, 0]] + [[0, 0, 255]] * 3
    pages = [Image.fromarray(np.full((9, 8), 1000 * number, np.uint16)) for number in range(1, 5)]
    (tmp_path / "deep/a").mkdir(parents=True)
    pages[0].save(tmp_path / "deep/a/x.tif", save_all=True, append_images=pages[1:])
    manifest = shard(tmp_path / "deep", tmp_path / "kept", images={"pixels": "keep"})
    assert (str(manifest.pixels), manifest.levels) == ("uint16 of 1 channel, clips of 4 frames", (1000, 4000))
    (images, _) = next(iter(tpufeed.Loader(tmp_path / "kept", "train", batch_size=1, processes=0)))
    assert images[0, :, 0, 0, 0].tolist() == [1000, 2000, 3000, 4000]


def test_a_table_lists_the_frames(tmp_path):
    for clip in range(2):
        write_folder(tmp_path / f"clip{clip}", clip, name="{}.jpg")
    write_animation(tmp_path / "x.gif", 3)
    rows = [
        {"frames": [f"clip{clip}/{number}.jpg" for number in range(FRAMES)], "label": "ab"[clip]} for clip in (0, 1)
    ]
    rows += [
        {"frames": "x.gif", "label": "b"},
        {"frames": ["clip0/0.jpg"], "label": "a"},
        {"frames": ["clip0/0.jpg", "clip0/1.jpg", "clip0/2.jpg", "gone.jpg"], "label": "a"},
        {"frames": ["clip1/0.jpg", 7, None, "clip1/1.jpg"], "label": "a"},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert shard(tmp_path / "t.jsonl", tmp_path / "set", image="frames").records == {"train": 3}
    for image, number in zip(frames_of(tmp_path / "set", "clip1/0.jpg"), [0, 2, 5, 8], strict=True):
        assert is_near(image, frame(1, number))
    said = [json.loads(line) for line in Path(tmp_path / "set/rejects.jsonl").read_text().splitlines()]
    found = {each["reason"]: each["message"] for each in said if "gone" not in each["message"]}
    assert "row 4" in found["too_few_frames"]
    assert [each["path"] for each in said if each["reason"] == "too_few_frames"] == ["clip0/0.jpg"]
    assert "row 6" in found["unreadable"]
    assert any("'gone.jpg': there is no such file" in each["message"] for each in said)


def test_frames_of_a_table_are_in_the_folder_that_is_given(tmp_path):
    for clip in range(2):
        write_folder(tmp_path / "pics", clip, name=f"{'ab'[clip]}_{{}}.jpg")
    rows = [{"image": [f"{name}_{number}" for number in range(FRAMES)], "label": name} for name in "ab"]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert shard(tmp_path / "t.jsonl", tmp_path / "set", image="pics").records == {"train": 2}
    for image, number in zip(frames_of(tmp_path / "set", "pics/b_0.jpg"), [0, 2, 5, 8], strict=True):
        assert is_near(image, frame(1, number))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"images": {"frame_stride": 0}}, "frame_stride"),
        ({"frames": 0}, "frames"),
        ({"frames": 1}, "frames"),
        ({"frames": None, "images": {"frame_stride": 2}}, "Give frames as well"),
        ({"boxes": tpufeed.Boxes(column="boxes")}, "boxes.column"),
        ({"masks": "masks"}, "masks"),
        ({"names": "kaggle"}, "single images"),
    ],
)
def test_options_that_do_not_fit(options, said, tmp_path):
    with pytest.raises(OptionError, match=said):
        build(write_source(tmp_path / "raw", 2), tmp_path / "set", **options)
    assert not (tmp_path / "set").exists()


def test_boxes_of_a_source_are_refused(tmp_path):
    write_animation(tmp_path / "x.gif", 1)
    coco = {
        "images": [{"id": 1, "file_name": "x.gif", "width": 56, "height": 40}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],
        "categories": [{"id": 1, "name": "a"}],
    }
    (tmp_path / "x.json").write_text(json.dumps(coco))
    with pytest.raises(OptionError, match="boxes"):
        shard(tmp_path / "x.json", tmp_path / "set", image=str(tmp_path))


def test_without_frames_an_animation_is_its_first_frame_and_that_is_said(tmp_path):
    write_animation(tmp_path / "raw/a/x.gif", 1)
    tpufeed.shard(tmp_path / "raw", tmp_path / "set", workers=1, progress=False)
    manifest = tpufeed.open_dataset(tmp_path / "set").manifest
    assert any("--frames" in line for line in manifest.listed.iter_lines(manifest.sizes, manifest.odd))
    assert b'"frames"' not in (tmp_path / "set/manifest.json").read_bytes()


def test_a_clip_is_known_by_all_its_frames(tmp_path):
    """Another list of frames is another clip, in its table or in the next one, also with the same first frame."""
    write_folder(tmp_path / "clip", 1, name="{}.jpg")

    def table(name, *rows):
        rows = [{"path": [f"clip/{number}.jpg" for number in row], "label": "a"} for row in rows]
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
        return tmp_path / name

    assert shard(table("one.jsonl", (0, 1), (0, 2)), tmp_path / "set", frames=2).records == {"train": 2}
    source = table("two.jsonl", (0, 3), (0, 2), (0, 1))
    for added, skipped in ((1, 2), (0, 3)):
        result = tpufeed.append(source, tmp_path / "set", workers=1, progress=False)
        assert (result.added, result.skipped) == (added, skipped)
    assert not [said for said in result.warnings if "already" in said]
    old = (tmp_path / "clip/3.jpg").stat()
    (tmp_path / "clip/3.jpg").write_bytes((tmp_path / "clip/4.jpg").read_bytes())  # of which no list begins
    os.utime(tmp_path / "clip/3.jpg", ns=(old.st_atime_ns, old.st_mtime_ns + 1))
    assert tpufeed.append(source, tmp_path / "set", workers=1, progress=False).added == 1


def test_one_animated_file_without_frames_is_one_image(tmp_path):
    write_animation(tmp_path / "raw/a/x.gif", 1)
    manifest = tpufeed.shard(tmp_path / "raw", tmp_path / "set", workers=1, progress=False).manifest
    said = list(manifest.listed.iter_lines(odd=manifest.odd))
    assert "frames: 1 image has several, of which one is taken. --frames makes clips of them" in said


def test_folders_of_classes_that_become_clips_are_said(tmp_path):
    for clip, name in enumerate(("cat", "dog")):
        write_folder(tmp_path / "raw" / name, clip)
    result = build(tmp_path / "raw", tmp_path / "set", frames=3)
    assert [said for said in result.warnings if "cat is a class" in said]
    result = build(tmp_path / "raw", tmp_path / "unlabelled", frames=3, label="none")
    assert not [said for said in result.warnings if "is a class" in said]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (["clip/0.jpg", "clip/1.jpg"], r"list \(of which --frames makes a clip\)"),
        ("clip/{:d}.jpg", r"no such file \(--frames makes a clip of a pattern\); row 1"),
    ],
)
def test_a_list_or_a_pattern_without_frames_names_the_option(path, said, tmp_path):
    write_folder(tmp_path / "clip", 1, range(3), "{}.jpg")
    (tmp_path / "table.jsonl").write_text(json.dumps({"path": path, "label": "a"}) + "\n")
    with pytest.raises(TooManyRejectsError, match=said):
        tpufeed.shard(tmp_path / "table.jsonl", tmp_path / "set", workers=1, max_rejects=0)


def test_a_table_has_a_pattern_of_frames(tmp_path):
    for clip, name in enumerate(("f_{:04d}.jpg", "{}.jpg", "f{:02d}.jpg", "f{}.jpg")):
        write_folder(tmp_path / f"clip{clip}", clip, range(5, 5 + FRAMES), name)
    (tmp_path / "clip0/f_00007.jpg").write_bytes(b"of another pattern")
    (tmp_path / "clip2/f07.jpg").unlink()
    patterns = ["clip0/f_{:04d}.jpg", str(tmp_path / "clip1/{:d}.jpg"), "clip2/f{:02}.jpg", "clip3/f{:04d}.jpg"]
    patterns += ["clip9/{:d}.jpg", "clip3/f1{:d}.jpg"]
    lines = ["image,label", *(f"{pattern},{'ab'[number % 2]}" for number, pattern in enumerate(patterns))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert shard(tmp_path / "t.csv", tmp_path / "set", frames=4).records == {"train": 3}
    for path, clip in (("clip0/f_0005.jpg", 0), (f"{tmp_path}/clip1/5.jpg", 1)):
        for image, number in zip(frames_of(tmp_path / "set", path), [0, 2, 5, 8], strict=True):
            assert is_near(image, frame(clip, number))
    said = [json.loads(line) for line in Path(tmp_path / "set/rejects.jsonl").read_text().splitlines()]
    assert {each["reason"] for each in said} == {"missing_frame"}
    found = sorted(each["message"].partition("'image': ")[2] for each in said)
    assert [
        words in each for words, each in zip(("clip2/f07.jpg", "clip3/f0001.jpg", "clip9/1.jpg"), found, strict=True)
    ]


@pytest.mark.parametrize("pattern", ["foo://x/{:d}.jpg", "a\0{:d}.jpg", "clip/{:99999999999999999999d}.jpg"])
def test_a_pattern_that_cannot_be_is_a_reject(pattern, tmp_path):
    write_folder(tmp_path / "clip", 1, name="{}.jpg")
    rows = [{"image": each, "label": "a"} for each in ("clip/{:d}.jpg", pattern)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert shard(tmp_path / "t.jsonl", tmp_path / "set").records == {"train": 1}
    assert [reason for reason, _ in rejects_of(tmp_path / "set").values()] == ["unreadable"]
