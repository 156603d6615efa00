"""Views made in DataLoader's workers equal those of `make_views`, by any worker and in any order."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from intnacl.data.augmentations import AUGMENTATIONS
from intnacl.data.multiview import MultiViewDataset, MultiViewTransform
from intnacl.data.views import make_views
from mistakes import must_refuse

CONFIG = AUGMENTATIONS["simclr"]


@pytest.fixture
def pairs():
    images = torch.randint(0, 256, (24, 3, 12, 12), dtype=torch.uint8)
    return TensorDataset(images, torch.arange(24))


def epoch_of(loader: DataLoader) -> tuple[torch.Tensor, torch.Tensor]:
    """The views of an epoch, (V, N, 3, S, S), and the labels, in the order in which they come."""
    views, labels = zip(*loader, strict=True)
    return torch.cat([torch.stack(batch) for batch in views], 1), torch.cat(labels)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than there are cores
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_views_equal_those_of_make_views_for_any_number_of_workers_in_any_order(pairs, workers):
    data = MultiViewDataset(pairs, MultiViewTransform("simclr", views=3), seed=5)
    loader = DataLoader(data, batch_size=7, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    for epoch in (0, 4):
        data.set_epoch(epoch)  # workers that persist hear of it too
        views, rows = epoch_of(loader)
        batched = make_views(pairs.tensors[0][rows], CONFIG, seed=5, step=epoch, rows=rows, extra=1)
        assert torch.allclose(views, torch.stack(batched.plain + batched.extra), atol=1e-6)
    assert sorted(rows.tolist()) == list(range(24))


def test_the_transform_by_itself_draws_from_torchs_generator(pairs):
    image, transform = pairs[0][0], MultiViewTransform("simclr", size=9)
    first = transform(image)
    assert [view.shape for view in first] == [(3, 9, 9)] * 2
    assert not torch.allclose(first[0], transform(image)[0], atol=0.01)
    torch.manual_seed(0)
    again = transform(image)
    torch.manual_seed(0)
    assert all(map(torch.equal, transform(image), again))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_images_of_pil_and_of_tensors_give_the_same_views(mode):
    pixels = np.random.default_rng(0).integers(0, 256, (10, 14), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    bytes_3HW = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    key = {"seed": 1, "epoch": 2, "index": 3}
    views = MultiViewTransform(CONFIG, size=8).draw(image, **key)
    assert all(map(torch.equal, views, MultiViewTransform(CONFIG, size=8).draw(bytes_3HW, **key)))
    floats = MultiViewTransform(CONFIG, size=8).draw(bytes_3HW / 255, **key)
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(views, floats, strict=True))


def test_other_parts_of_an_item_are_kept(pairs):
    image = pairs[7][0]
    views = MultiViewTransform().draw(image, seed=0, epoch=0, index=7)
    for place, item, rest in [
        (0, lambda i: pairs[i][0], lambda found: found),
        (0, lambda i: (pairs[i][0], "x", 3), lambda found: found[0] if found[1:] == ("x", 3) else None),
        (1, lambda i: ("x", pairs[i][0]), lambda found: found[1] if found[0] == "x" else None),
        ("img", lambda i: {"img": pairs[i][0], "a": 1}, lambda found: found["img"] if found["a"] == 1 else 0),
    ]:
        data = type("Data", (), {"__len__": lambda _: 24, "__getitem__": lambda _, i, item=item: item(i)})()
        found = MultiViewDataset(data, image=place)[7]
        assert all(map(torch.equal, rest(found), views))


def test_the_dataset_can_be_pickled_with_its_epoch(pairs):
    data = MultiViewDataset(pairs, MultiViewTransform("crop_flip"), seed=9)
    data.set_epoch(3)
    copy = pickle.loads(pickle.dumps(data))
    assert len(copy) == 24
    assert all(map(torch.equal, copy[5][0], data[5][0]))
    data.set_epoch(4)
    assert not torch.equal(copy[5][0][0], data[5][0][0])


def test_mistakes_are_named(pairs):
    must_refuse(MultiViewTransform, "simclrr", "augmentation='simclrr' is unknown; did you mean 'simclr'")
    must_refuse(MultiViewTransform, "views=0 must be a whole number", views=0)
    transform = MultiViewTransform()
    must_refuse(
        transform, torch.zeros(1, 8, 8), r"shape \(1, 8, 8\): .* grey one is image.expand\(3, -1, -1\)"
    )
    must_refuse(transform, np.zeros((8, 8, 3)), "of type ndarray: expected PIL's or a tensor")
    data = MultiViewDataset([{"img": pairs[0][0], "label": 1}], image="image")
    must_refuse(data.__getitem__, 0, "image='image' is not a key of an item, which has img, label")
    for place in ("img", 2, -3):
        data = MultiViewDataset(pairs, image=place)
        must_refuse(data.__getitem__, 0, f"image={place!r} is not a place in an item, which has 2 entries")
    must_refuse(MultiViewDataset(pairs).set_epoch, -1, "epoch=-1 must be a whole number from 0")
