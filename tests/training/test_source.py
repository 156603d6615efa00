"""Streamed batches: the crops are those that a device would draw, near exact ones, and memory is bounded."""

import pytest
import torch
from pieces import ALONE, contrastive, labelled_images, run, state, trainer

from intnacl.data import draws
from intnacl.data.augment import BOX_UNIFORMS, UNIFORMS, apply, crop_box, draw
from intnacl.data.augmentations import AUGMENTATIONS, AugmentConfig
from intnacl.data.images import Box, decode_crops
from intnacl.data.streamed import decoders_silenced
from intnacl.data.transforms import resize_matrix
from intnacl.data.views import make_views
from intnacl.training.source import Streamed
from shards import encoded, photograph


@pytest.mark.parametrize("config", [AugmentConfig(), AugmentConfig(crop_scale=(0.9, 1.0), crop_ratio=(2, 3))])
def test_boxes_of_images_of_many_sizes_are_those_of_each_size(config):
    sizes = [(8, 8), (375, 500), (500, 375), (30, 900), (900, 30), (1, 7)]
    rows = torch.arange(200)
    uniform_BU = draws.uniform(3, 11, 1, rows, UNIFORMS)
    assert torch.equal(uniform_BU[:, :BOX_UNIFORMS], draws.uniform(3, 11, 1, rows, BOX_UNIFORMS))
    for height, width in sizes:
        drawn = draw(config, uniform_BU, height, width)
        sides = (torch.full((200,), side) for side in (height, width))
        boxes = crop_box(config, uniform_BU[:, :BOX_UNIFORMS], *sides)
        for one, other in zip(boxes, (drawn.top, drawn.left, drawn.height, drawn.width), strict=True):
            assert torch.equal(one, other), (height, width)


@pytest.mark.parametrize(
    ("size", "side"), [((500, 375), 224), ((1200, 900), 64)]
)  # the second decodes smaller
def test_crops_are_close_to_exact_antialiased_ones(size, side):
    import io

    import numpy as np
    from PIL import Image

    count = 200 if side == 224 else 40
    config, errors = AugmentConfig(), []
    uniform_BK = draws.uniform(0, 0, 0, torch.arange(count), BOX_UNIFORMS)
    boxes = torch.stack(crop_box(config, uniform_BK, size[1], size[0]), 1)
    for number, (top, left, height, width) in enumerate(boxes.tolist()):
        data = encoded(photograph(number, size))
        got = torch.empty(1, 3, side, side, dtype=torch.uint8)
        with decoders_silenced():
            decode_crops(data, [Box(top, left, height, width)], got)
        pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(data)))).permute(2, 0, 1).float()
        rows = resize_matrix(torch.tensor([top]), torch.tensor([height]), size[1], side)[0]
        columns = resize_matrix(torch.tensor([left]), torch.tensor([width]), size[0], side)[0]
        exact = rows @ pixels @ columns.T
        errors.append((got[0].float() - exact).abs().mean().item())
    assert sum(errors) / count <= 2.0


def test_views_of_crops_get_the_rest_of_the_augmentation():
    images, rows = torch.randint(0, 256, (6, 3, 9, 9), dtype=torch.uint8), torch.arange(6)
    config = AUGMENTATIONS["simclr"]
    params = draw(config, draws.uniform(1, 2, 0, rows, UNIFORMS), 9, 9)
    plain = AugmentConfig(flip_p=0, jitter_p=0, grayscale_p=0, blur_p=0)
    crops = torch.stack(
        [
            apply(images, draw(plain, draws.uniform(1, 2, view, rows, UNIFORMS), 9, 9), plain)
            for view in range(2)
        ]
    )
    views = make_views(crops, config, seed=1, step=2, rows=rows)
    whole = make_views(images, config, seed=1, step=2, rows=rows)
    assert params.flip.any()
    torch.testing.assert_close(torch.stack(views.plain), torch.stack(whole.plain), rtol=0, atol=2e-3)


def test_updates_on_a_host_tensor_equal_those_on_a_resident_one(tmp_path):
    made = [trainer(tmp_path / name, contrastive(), accumulate=2) for name in ("resident", "streamed")]
    images, _ = labelled_images()
    step = made[1].train_step
    step.source = Streamed(images, step.rows, crops=None, accumulate=2, workers=0, device=ALONE.device)
    for one in made:
        assert run(one) is None
    resident, streamed = map(state, made)
    assert all(torch.equal(resident[key], streamed[key]) for key in resident)
