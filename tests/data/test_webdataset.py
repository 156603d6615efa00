"""Shards in the WebDataset convention: their names, their index, and what can be wrong with them."""

import os
import struct
import tarfile
import time
import zlib

import numpy as np
import pytest
import torch

from intnacl.data import load
from intnacl.data.images import decode
from intnacl.data.shards import open_shard
from intnacl.data.webdataset import expand
from mistakes import must_refuse
from shards import encoded, photograph, write_shard, write_shards


def test_streamed_images_are_those_of_a_resident_set(tmp_path):
    name = write_shards(tmp_path, 10)
    write_shards(tmp_path, 4, shards=1, split="test")
    resident, streamed = load(name, size=16), load(name, size=16, room=0)
    assert torch.equal(streamed.images[:], resident.images)
    assert torch.equal(streamed.images[torch.tensor([3, 1])], resident.images[[3, 1]])
    assert torch.equal(streamed.images[2], torch.from_numpy(decode(encoded(photograph(4, (24, 18))), 16)))
    assert streamed.images.shape == resident.images.shape == (10, 3, 16, 16)
    assert streamed.labels.tolist() == resident.labels.tolist() == [0, 2, 0, 2, 0, 1, 3, 1, 3, 1]
    assert streamed.classes == resident.classes == load(name, "test", room=0).classes == ("0", "1", "2", "3")
    assert tuple(streamed.names) == tuple(resident.names)
    assert streamed.names[0] == "train-000.tar/00000.jpg"
    assert streamed.facts == f"{name}, train: 10 images, 16×16, 4 classes, streamed"
    kept, held = streamed.hold_out(3)
    assert kept.index.tolist() + held.index.tolist() != list(range(10))
    assert torch.equal(held.images[:], resident.images[held.index])
    assert list(held.names) == [resident.names[i] for i in held.index]
    assert kept.checksum == held.checksum == streamed.checksum != resident.checksum


def test_shards_written_by_the_webdataset_package_are_read(tmp_path):
    writer = pytest.importorskip("webdataset").TarWriter
    pictures = [photograph(number, (20, 20)) for number in range(3)]
    with writer(str(tmp_path / "train-000.tar")) as out:
        for number, picture in enumerate(pictures):
            out.write({"__key__": f"cats/{number}", "png": picture, "cls": number, "json": {"camera": "x"}})
    streamed = load(f"webdataset:{tmp_path}/train-{{000..000}}.tar", size=20, room=0)
    assert torch.equal(streamed.images[1], torch.from_numpy(np.array(pictures[1])).permute(2, 0, 1))
    assert streamed.labels.tolist() == [0, 1, 2]
    assert streamed.names[2] == "train-000.tar/cats/2.png"


def test_patterns_select_shards_and_their_names_determine_the_split(tmp_path):
    assert expand("a{08..10}-{x,y}") == ["a08-x", "a08-y", "a09-x", "a09-y", "a10-x", "a10-y"]
    for folder, shard in (
        ("", "imagenet-train-00"),
        ("", "imagenet-train-01"),
        ("", "imagenet-validation-00"),
    ):
        write_shard(tmp_path / folder / f"{shard}.tar", {"0.png": encoded(photograph(0, (8, 8)), "PNG")})
    for pattern, train, test in (
        ("", 2, 1), ("/imagenet-train-{00..01}.tar", 2, 0), ("/*.tar", 2, 1),
        ("/imagenet-{train,validation}-00.tar", 1, 1),
    ):  # fmt: skip
        name = f"webdataset:{tmp_path}{pattern}"
        assert len(load(name, room=0)) == train, pattern
        if test:
            assert len(load(name, "test", room=0)) == test
        else:
            must_refuse(lambda name=name: load(name, "test"), "has no test split")
    assert load(f"webdataset:{tmp_path}", room=0).labels is None


def test_an_index_is_rebuilt_only_when_a_shard_changes(tmp_path, root):
    name = write_shards(tmp_path, 6)
    first = load(name, room=0)
    assert first.decoded
    table = next((root / "cache").glob("index-*/table.bin"))
    made = table.stat().st_mtime_ns
    assert load(name, room=0).checksum == first.checksum
    assert table.stat().st_mtime_ns == made
    os.utime(tmp_path / "train-000.tar", (1, 1))
    assert load(name, room=0).checksum == first.checksum
    assert table.stat().st_mtime_ns > made
    write_shards(tmp_path, 5, shards=1)
    assert load(name, room=0).checksum != first.checksum


PICTURE = encoded(photograph(0, (8, 8)), "PNG")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"../a.png": PICTURE}, r"shard .*train-0.tar: the name '../a.png' leads out of it"),
        ({"/a.png": PICTURE}, "'/a.png' leads out of it"),
        ({"a.png": PICTURE, "a.jpg": PICTURE}, "train-0.tar holds two images of the key 'a'"),
        ({"a.png": PICTURE, "a.PNG": PICTURE}, "holds 'a.PNG' twice"),
        (
            {"a.png": PICTURE, "a.cls": b"cat"},
            "train-0.tar: 'a.cls' holds no label: write a class as a number",
        ),
        ({"a.png": PICTURE, "a.json": b'{"label": 1.5}'}, "'a.json' holds no label"),
        ({"a.png": PICTURE, "a.cls": b"-1"}, "'a.cls' holds no label"),
        (
            {"a.png": PICTURE, "a.cls": b"1", "b.png": PICTURE},
            "1 of 2 images of the train split have a label",
        ),
        (
            {"a.png": b"no image"},
            "no image could be read; the first: train-0.tar/a.png: UnidentifiedImageError",
        ),
        ({"a.txt": b"text"}, "no image could be read; the first: there are none"),
    ],
)
def test_bad_shards_are_named(tmp_path, members, message):
    write_shard(tmp_path / "train-0.tar", members)
    must_refuse(lambda: load(f"webdataset:{tmp_path}", room=0), message)


def test_truncated_linked_compressed_and_missing_shards_are_named(tmp_path):
    name, shard = write_shards(tmp_path, 6), tmp_path / "train-001.tar"
    whole = shard.read_bytes()
    for cut in (len(whole) // 2, len(whole) - tarfile.RECORDSIZE, 700, 100, 0):
        shard.write_bytes(whole[:cut])
        must_refuse(lambda: load(name, room=0), r"shard .*train-001.tar is (truncated or )?damaged")
    with tarfile.open(shard, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.png"))
    must_refuse(lambda: load(name, room=0), "no uncompressed tar file")
    with tarfile.open(shard, "w") as tar:
        link = tarfile.TarInfo("a.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    must_refuse(lambda: load(name, room=0), "'a.png' is a link or a special file")
    pattern = f"webdataset:{tmp_path}/train-{{000..002}}.tar"
    must_refuse(lambda: load(pattern, room=0), r"shard .*train-002.tar does not exist")
    must_refuse(lambda: load(f"webdataset:{tmp_path}/none-*.tar", room=0), "does not exist")


def test_a_decompression_bomb_is_skipped_and_counted(tmp_path):
    start, rest = PICTURE.partition(b"IHDR")[0] + b"IHDR", PICTURE.partition(b"IHDR")[2]
    header = struct.pack(">II", 60_000, 60_000) + rest[8:13]
    bomb = start + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + rest[17:]
    write_shard(tmp_path / "train-0.tar", {"bomb.png": bomb, "good.png": PICTURE})
    with pytest.warns(match=r"1 of 2 images are broken: train-0.tar/bomb.png \(DecompressionBombError"):
        assert len(load(f"webdataset:{tmp_path}", size=8, room=0)) == 1


def test_damaged_images_are_replaced_by_the_next_of_their_class(tmp_path):
    members = {}
    for number in range(6):
        data = encoded(photograph(number, (40, 40)))
        members[f"{number}.jpg"] = data[: len(data) // 2] if number in (1, 3) else data
        members[f"{number}.cls"] = str(number % 2).encode()
    write_shard(tmp_path / "train-0.tar", members)
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0]):
        images = load(f"webdataset:{tmp_path}", size=8, room=0).images
        got = dict(zip(order, images[torch.tensor(order)], strict=True))
        assert sorted(images.broken) == ["train-0.tar/1.jpg", "train-0.tar/3.jpg"]
        assert torch.equal(got[1], got[5])
        assert torch.equal(got[3], got[5])


def test_a_shard_that_vanishes_or_changes_is_named(tmp_path):
    name = write_shards(tmp_path, 6, shards=1)
    images = load(name, room=0).images
    (tmp_path / "train-000.tar").rename(tmp_path / "away")
    must_refuse(lambda: images[0], r"shard .*train-000.tar can no longer be read \(No such file")
    (tmp_path / "train-000.tar").write_bytes(b"short")
    must_refuse(lambda: images[0], "has changed since its images were indexed")
    open_shard.cache_clear()


@pytest.mark.slow
def test_a_second_load_is_fast(tmp_path):
    write_shard(tmp_path / "train-0.tar", {f"{n}.png": PICTURE for n in range(30_000)})
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        load(f"webdataset:{tmp_path}", size=8, room=0)
        times.append(time.perf_counter() - begun)
    assert times[1] < 0.02 * times[0], times
