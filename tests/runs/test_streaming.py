"""Streamed runs: equal to resident ones if nothing is resized, and measured and embedded like them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from intnacl.data import load
from intnacl.errors import InputError
from intnacl.evaluation.features import extract
from intnacl.runs.commands import embed_command
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import RunImages
from intnacl.runs.opened import open_run
from intnacl.runs.pretrain import pretrain
from intnacl.runs.resolve import resolve
from intnacl.runs.stages import train_and_measure
from intnacl.training.stop import Stop
from mistakes import must_refuse
from shards import encoded, photograph, write_shard, write_shards
from tiny_run import CPU, HERE, SETTINGS, write_images


@pytest.fixture(autouse=True)
def _root(tmp_path, monkeypatch):
    monkeypatch.setenv("INTNACL_DATA", str(tmp_path / "root"))


def config(dataset: str, **changes: object):
    small = {
        "encoder.name": "small",
        "size": 8,
        "train.batch_size": 8,
        "train.precision": "fp32",
        "train.workers": 1,
    }
    return resolve(SETTINGS | small | {"dataset": dataset} | changes, preset="intnacl", device=CPU)


def train(folder: Path, dataset: str, **changes: object) -> bytes:
    assert pretrain(config(dataset, **changes), RunFolder(folder), HERE, Stop()) is None
    return (folder / "encoder.safetensors").read_bytes()


def weights(content: bytes) -> dict[str, torch.Tensor]:
    from safetensors.torch import load as read

    return read(content)


@pytest.mark.parametrize("kind", ["folder", "npz", "webdataset", "parquet"])
def test_images_of_the_training_size_give_the_same_weights_streamed_or_resident(tmp_path, kind):
    pictures = [np.array(photograph(number, (8, 8))) for number in range(20)]
    if kind == "npz":
        np.savez(tmp_path / "a.npz", train_images=pictures, train_labels=np.arange(20) % 4)
        name = f"npz:{tmp_path}/a.npz"
    elif kind == "webdataset":
        name = write_shards(tmp_path / "shards", 20, size=(8, 8), kind="PNG")
    elif kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        rows = {
            "image": [{"bytes": encoded(photograph(n, (8, 8)), "PNG")} for n in range(20)],
            "label": [n % 4 for n in range(20)],
        }
        for part in range(2):
            half = {key: values[10 * part : 10 * part + 10] for key, values in rows.items()}
            pq.write_table(pa.table(half), tmp_path / f"train-{part}.parquet")
        name = f"parquet:{tmp_path}"
    else:
        for number, picture in enumerate(pictures):
            path = tmp_path / "pets" / ("cat", "dog")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(path)
        name = f"folder:{tmp_path}/pets"
    size = {} if kind != "npz" else {"size": None}
    always, never = (
        weights(train(tmp_path / stream, name, stream=stream, **size)) for stream in ("always", "never")
    )
    assert all(torch.equal(always[key], never[key]) for key in never)
    assert RunFolder(tmp_path / "always").read_config().stream == "always"


def test_a_whole_run_streams_and_ends_in_a_result(tmp_path, capsys):
    name = write_shards(tmp_path / "shards", 24)
    write_shards(tmp_path / "shards", 12, shards=1, split="test")
    changes = {"evaluation.images": 4, "holdout": 4, "train.monitor_epochs": 1}
    folder = RunFolder(tmp_path / "run")
    assert train_and_measure(config(name, stream="always", **changes), folder, HERE, Stop()) is None
    run = open_run(folder, device=CPU)
    assert run.result["accuracy"][run.config.dataset]["clean"] <= 100
    assert run.result["protocol"]["images"][run.config.dataset] == {"train": 20, "holdout": 4}
    assert run.images.training().checksum == run.trained_on
    train_facts = "train: 20 images, 8×8, 4 classes, streamed"
    assert train_facts in capsys.readouterr().out
    for out in (tmp_path / "f.npz", tmp_path / "f.parquet"):
        embed_command(folder, name, "test", out, "cpu")
    test = load(name, "test", size=8, room=0)
    wanted = extract(run.encoder, test.images[:]).numpy()
    with np.load(tmp_path / "f.npz") as found:
        np.testing.assert_allclose(found["features"], wanted, rtol=1e-5, atol=1e-6)
        assert found["names"].tolist() == list(test.names)
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "f.parquet").to_pydict()
    np.testing.assert_allclose(table["features"], wanted, rtol=1e-5, atol=1e-6)
    assert (table["name"], table["label"]) == (list(test.names), test.labels.tolist())


def test_auto_is_decided_once_by_the_free_memory_and_kept(tmp_path, monkeypatch):
    name = write_images(tmp_path / "pets")
    bytes_needed = 12 * 3 * 8 * 8
    for free, stream, words in (
        (2 * bytes_needed, "never", "images are resident: decoded they take"),
        (2 * bytes_needed - 1, "always", "images are streamed: decoded they take"),
    ):
        monkeypatch.setattr("intnacl.runs.images.free_memory", lambda device, free=free: free)
        images = RunImages(config(name))
        assert images.decide(None, HERE).startswith(words)
        assert images.stream == stream
        assert (type(images.training().images) is torch.Tensor) == (stream == "never")
        again = RunImages(config(name))
        assert again.decide(config(name, stream="always"), HERE) == ""
        assert again.stream == "always"
    digits = RunImages(resolve())
    assert digits.decide(None, HERE) == ""
    old = RunImages(config(name))
    assert old.decide(config(name), HERE) == ""  # from a version without streaming
    assert old.stream == "never"


def test_a_run_refuses_another_decoder_and_another_choice_of_streaming(tmp_path, monkeypatch):
    name = write_shards(tmp_path / "shards", 16)
    train(tmp_path / "run", name, stream="always")
    (tmp_path / "run" / "encoder.safetensors").unlink()
    must_refuse(lambda: train(tmp_path / "run", name, stream="never"), r"stream: 'always' -> 'never'")
    monkeypatch.setattr("PIL.__version__", "1.0")
    must_refuse(
        lambda: train(tmp_path / "run", name, stream="always"),
        r"decoded by Pillow .*, but Pillow 1\.0",
    )


def test_damaged_images_are_counted_and_too_many_stop_the_run(tmp_path, capsys):
    members = {}
    for number in range(40):
        picture = encoded(photograph(number, (40, 30)))
        members[f"{number}.jpg"] = picture[: len(picture) // 2] if number == 7 else picture
        members[f"{number}.cls"] = str(number % 4).encode()
    write_shard(tmp_path / "train-0.tar", members)
    name = f"webdataset:{tmp_path}"
    with pytest.raises(InputError, match=r"1 of 40 images are damaged, .*max_broken=0.01.*train-0.tar/7.jpg"):
        train(tmp_path / "few", name, stream="always")
    train(tmp_path / "run", name, stream="always", max_broken=0.1)
    assert (
        "1 damaged images were replaced by others of their class: train-0.tar/7.jpg ("
        in capsys.readouterr().out
    )
    train(tmp_path / "again", name, stream="always", max_broken=0.1, **{"train.workers": 0})
    assert weights((tmp_path / "run" / "encoder.safetensors").read_bytes()).keys()
    a, b = (weights((tmp_path / run / "encoder.safetensors").read_bytes()) for run in ("run", "again"))
    assert all(torch.equal(a[key], b[key]) for key in a)
