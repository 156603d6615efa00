"""Views: numbered draws of the same images, the same for any number of ranks."""

from dataclasses import replace

import pytest
import torch

from intnacl.data import views
from intnacl.data.augment import augment
from intnacl.data.augmentations import AUGMENTATIONS
from intnacl.data.batches import batch_indices, rank_rows
from intnacl.data.views import make_views, mix
from mistakes import must_refuse, refused

CONFIG = AUGMENTATIONS["simclr"]


@pytest.fixture
def images():
    return torch.randint(0, 256, (40, 3, 12, 12), dtype=torch.uint8)


def test_mix_combines_each_row_with_an_earlier_one():
    x = torch.tensor([[0.0], [1.0], [10.0]])
    assert torch.allclose(mix(x, 0.75, 1), torch.tensor([[2.5], [0.75], [7.75]]))
    assert torch.allclose(mix(x, 0.75, -2), mix(x, 0.75, 1))
    assert torch.equal(mix(x, 1.0, 2), x)


test_mix_refuses_a_row_with_itself_and_bytes = refused(
    lambda x, shift: mix(x, 0.5, shift),
        *((torch.zeros(3, 2), shift, f"shift={shift} .*from 1 to 2, or a larger batch.*drop_last=True")
          for shift in (0, 3, -6)),
        (torch.zeros(3, 2, dtype=torch.uint8), 1, r"x is torch.uint8: .*images.float\(\) / 255"),
        (torch.zeros(0, 2), 1, r"x has shape \(0, 2\): mixing needs a batch"),
        (torch.zeros(1, 2), 1, r"x has shape \(1, 2\): mixing needs a batch"),
)  # fmt: skip


def test_lam_is_a_share_and_the_batch_has_partners_for_the_mixed_views(images):
    key = {"seed": 0, "step": 0, "mixed": 4}
    for lam in (-0.1, 1.5, float("nan")):
        must_refuse(mix, images, lam, 1, r"lam=.*\[0, 1\]")
        told = r"lam=.*\[0, 1\]"
        must_refuse(make_views, images, CONFIG, told, rows=torch.arange(40), lam=lam, **key)
    told = r"4 mixed views.*which has 4.*at least 5"
    must_refuse(make_views, images[:4], CONFIG, told, rows=torch.arange(4), **key)


def test_views_are_numbered_draws_of_the_same_images(images):
    rows = torch.arange(40)
    views = make_views(images, CONFIG, seed=5, step=9, rows=rows, extra=2)
    assert (len(views.plain), len(views.extra), len(views.mixed)) == (2, 2, 0)
    for number, view in enumerate(views.plain + views.extra):
        alone = augment(images, CONFIG, seed=5, step=9, view=number, rows=rows)
        assert torch.allclose(view, alone, atol=1e-6)
        assert view.is_contiguous(memory_format=torch.channels_last)
    assert (views.plain[0] - views.plain[1]).abs().mean() > 0.05


@pytest.mark.parametrize(("mix_of", "number"), [("x0", 0), ("x1", 1)])
def test_each_mixed_view_has_another_partner_and_never_the_image_itself(images, mix_of, number):
    rows, config = torch.arange(40), replace(CONFIG, mix_of=mix_of)
    views = make_views(images, config, seed=0, step=0, rows=rows, mixed=3, lam=0.6)
    x = views.plain[number]
    for shift, mixed in enumerate(views.mixed, start=1):
        partner = (mixed - 0.6 * x) / 0.4
        assert torch.allclose(partner, x[rows - shift], atol=1e-5)
        assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_separate_mixed_views_come_from_further_draws(images):
    key = {"seed": 5, "step": 9, "rows": torch.arange(40)}
    views = make_views(images, replace(CONFIG, mix_of="own"), **key, extra=1, mixed=2, lam=0.6)
    for number, mixed in enumerate(views.mixed, start=1):
        x = augment(images, CONFIG, **key, view=2 + number)
        assert torch.allclose(mixed, mix(x, 0.6, number), atol=1e-5)
    plain = make_views(images, CONFIG, **key, extra=1, mixed=2)
    for kind in ("plain", "extra"):
        assert all(map(torch.equal, getattr(views, kind), getattr(plain, kind)))


def test_make_views_compiles_to_one_graph(images):
    compiled = torch.compile(make_views, fullgraph=True, backend="aot_eager")
    key = {"seed": 0, "rows": torch.arange(40), "extra": 1, "mixed": 2}
    for step in (0, 1):
        out = compiled(images, CONFIG, step=torch.tensor(step), **key)
        expected = make_views(images, CONFIG, step=step, **key)
        torch.testing.assert_close(tuple(out), tuple(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mix_of", ["x0", "x1", "own"])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_ranks_make_the_same_views_as_one_process(images, world, mix_of):
    index, config = batch_indices(0, 3, 40, 16), replace(CONFIG, mix_of=mix_of)
    counts = {"extra": 1, "mixed": 3, "lam": 0.7}
    whole = make_views(images[index], config, seed=0, step=3, rows=rank_rows(0, 1, 16), **counts)
    parts = []
    for rank in range(world):
        rows = rank_rows(rank, world, 16, halo=3)
        parts.append(make_views(images[index[rows]], config, seed=0, step=3, rows=rows, halo=3, **counts))
    for kind in range(3):
        for number, expected in enumerate(whole[kind]):
            joined = torch.cat([part[kind][number] for part in parts])
            assert torch.allclose(joined, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("mix_of", "count"), [("x0", 3), ("x1", 3), ("own", 5)])
def test_only_views_that_are_used_are_augmented(images, monkeypatch, mix_of, count):
    made = []
    monkeypatch.setattr(views, "augment", lambda x, *a, **k: made.append(len(x)) or augment(x, *a, **k))
    config, rows = replace(CONFIG, mix_of=mix_of), torch.arange(40)
    make_views(images, config, seed=0, step=0, rows=rows, extra=1, mixed=2)
    assert made == [count * 40]
