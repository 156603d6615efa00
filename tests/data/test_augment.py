"""Drawn parameters and whole recipes against torchvision's in distribution; one graph; gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from intnacl.data import draws
from intnacl.data.augment import BRIGHTNESS, CONTRAST, HUE, SATURATION, TRIES, UNIFORMS, apply, augment, draw
from intnacl.data.augmentations import AUGMENTATIONS
from mistakes import must_refuse

T = pytest.importorskip("torchvision.transforms.v2")
F = T.functional

LEVEL = 1 / 255
COUNT = 4000
KEY = {"seed": 0, "step": 0, "view": 0, "rows": torch.arange(600)}


def drawn(config, count=COUNT, height=32, width=32, seed=0):
    return draw(config, draws.uniform(seed, 0, 0, torch.arange(count), UNIFORMS), height, width)


def crops(scale, ratio, height, width, count=COUNT):
    from torchvision.transforms import RandomResizedCrop

    image = torch.empty(3, height, width)
    return torch.tensor([RandomResizedCrop.get_params(image, scale, ratio) for _ in range(count)])


@pytest.fixture(scope="module")
def patches():
    """600 patches of 32×32 from scikit-learn's two photographs."""
    from sklearn.datasets import load_sample_images

    generator = torch.Generator().manual_seed(0)
    photos = torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2)
    coarse = photos[:, :, ::3, ::3]
    ys, xs = (torch.randint(0, side - 32, (600,), generator=generator) for side in coarse.shape[2:])
    return torch.stack(
        [coarse[i % 2, :, y : y + 32, x : x + 32] for i, (y, x) in enumerate(zip(ys, xs, strict=True))]
    )


@pytest.mark.parametrize(("height", "width"), [(32, 32), (20, 45)])
def test_crop_boxes_are_distributed_as_torchvisions(height, width):
    config = AUGMENTATIONS["paper"]
    params = drawn(config, height=height, width=width)
    theirs = crops(config.crop_scale, config.crop_ratio, height, width)
    for ours, column in zip((params.top, params.left, params.height, params.width), theirs.T, strict=True):
        assert ks_2samp(ours.numpy(), column.numpy()).pvalue > 0.01
    area, their_area = params.height * params.width, theirs[:, 2] * theirs[:, 3]
    ratio, their_ratio = params.width / params.height, theirs[:, 3] / theirs[:, 2]
    assert ks_2samp(area.numpy(), their_area.numpy()).pvalue > 0.01
    assert ks_2samp(ratio.numpy(), their_ratio.numpy()).pvalue > 0.01
    other = crops((0.15, 1.0), config.crop_ratio, height, width)
    other_area = other[:, 2] * other[:, 3]
    assert ks_2samp(area.numpy(), other_area.numpy()).pvalue < 1e-3  # the test sees a difference


def test_the_first_crop_that_fits_is_taken():
    config = replace(AUGMENTATIONS["paper"], crop_scale=(0.2, 0.5))  # every one fits
    first, other = torch.rand(2, 20, UNIFORMS)
    other[:, :2], other[:, 2 * TRIES :] = first[:, :2], first[:, 2 * TRIES :]
    boxes = zip(draw(config, first, 32, 32)[:4], draw(config, other, 32, 32)[:4], strict=True)
    assert all(torch.equal(a, b) for a, b in boxes)


@pytest.mark.parametrize(("height", "width"), [(8, 64), (64, 8), (9, 10)])
def test_the_fallback_is_torchvisions_central_crop(height, width):
    config = replace(AUGMENTATIONS["paper"], crop_scale=(1.0, 1.0))
    config = replace(config, crop_ratio=(1.3, 1.4)) if height == 9 else config
    params = drawn(config, 3, height, width)
    expected = crops(config.crop_scale, config.crop_ratio, height, width, 1)[0]
    for ours, value in zip(params[:4], expected, strict=True):
        assert (ours == value).all()


def test_no_crop_is_the_whole_image_and_every_ratio_leaves_a_pixel():
    params = drawn(AUGMENTATIONS["none"], 3, 8, 64)
    assert [value.tolist() for value in params[:4]] == [[0] * 3, [0] * 3, [8] * 3, [64] * 3]
    for ratio in ((50.0, 50.0), (0.02, 0.02), (1e300, 1e300)):
        params = drawn(replace(AUGMENTATIONS["paper"], crop_ratio=ratio), 4, 8, 8)
        assert min(params.height.min(), params.width.min()) >= 1


def test_a_crop_of_the_padded_image_is_a_shifted_image(patches):
    """All 9 × 9 places are equally likely, and no pixel is interpolated."""
    config = replace(AUGMENTATIONS["pad_crop_flip"], flip_p=0.0)
    params, images = drawn(config, len(patches)), patches / 255
    padded = torch.nn.functional.pad(images, [4] * 4)
    places = list(zip(params.top.tolist(), params.left.tolist(), strict=True))
    expected = torch.stack([x[:, i : i + 32, j : j + 32] for x, (i, j) in zip(padded, places, strict=True)])
    assert torch.equal(apply(patches, params, config), expected)
    many = drawn(config, 9 * 9 * 200)
    counts = torch.bincount(9 * many.top + many.left, minlength=81)
    assert len(counts) == 81
    assert 120 < counts.min() <= counts.max() < 280  # 200 and some five deviations
    must_refuse(
        lambda: replace(config, crop_scale=(0.5, 1.0)), "crop_padding=4 is one way to crop, crop_scale"
    )


def test_switching_one_operation_off_does_not_change_the_draws_of_others():
    full, less = drawn(AUGMENTATIONS["paper"]), drawn(AUGMENTATIONS["crop_flip"])
    assert torch.equal(full.width, less.width)
    assert torch.equal(full.flip, less.flip)


@pytest.mark.parametrize("strength", [0.5, 1.0, 1.5])
def test_jitter_is_distributed_as_torchvisions(strength):
    params = drawn(replace(AUGMENTATIONS["paper"], strength=strength, jitter_p=1.0))
    jitter = T.ColorJitter(*(strength * value for value in (0.8, 0.8, 0.8, 0.2)))
    theirs = [jitter.make_params([]) for _ in range(COUNT)]
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    for column, name in enumerate(names):
        values = np.array([their[name] for their in theirs])
        assert ks_2samp(params.factors[:, column].numpy(), values).pvalue > 0.01
    assert abs(np.corrcoef(params.factors.T.numpy()) - np.eye(4)).max() < 4 / COUNT**0.5


def test_all_24_orders_are_equally_likely():
    stage = drawn(AUGMENTATIONS["paper"], 24_000).stage
    orders, counts = stage.unique(dim=0, return_counts=True)
    assert len(orders) == 24
    assert (orders.sort(dim=1).values == torch.arange(4)).all()
    assert (counts - 1000).abs().max() < 4 * 1000**0.5


def test_probabilities():
    config = replace(AUGMENTATIONS["simclr"], flip_p=0.3, solarize_p=0.1)
    params = drawn(config, 20_000)
    jittered = (params.factors != torch.tensor([1.0, 1.0, 1.0, 0.0])).any(1)
    happened = (params.flip, jittered, params.grayscale, params.blur, params.solarize)
    for chosen, p in zip(happened, (0.3, 0.8, 0.2, 0.5, 0.1), strict=True):
        assert abs(chosen.float().mean().item() - p) < 4 * (p * (1 - p) / 20_000) ** 0.5
    assert ks_2samp(params.sigma.numpy(), np.random.default_rng(0).uniform(0.1, 2.0, 20_000)).pvalue > 0.01
    assert torch.corrcoef(torch.stack(happened).float()).fill_diagonal_(0).abs().max() < 4 / 20_000**0.5


def by_torchvision(image, config, params, i, size):
    """The same parameters through torchvision's functions, one sample."""
    box = [int(value[i]) for value in params[:4]]
    x = F.resized_crop(image, *box, list(size), antialias=True)
    x = F.horizontal_flip(x) if params.flip[i] else x
    operations = {BRIGHTNESS: F.adjust_brightness, CONTRAST: F.adjust_contrast}
    operations |= {SATURATION: F.adjust_saturation, HUE: F.adjust_hue}
    for operation in params.stage[i].argsort().tolist():
        x = operations[operation](x, float(params.factors[i, operation]))
    x = F.rgb_to_grayscale(x, num_output_channels=3) if params.grayscale[i] else x
    if params.blur[i]:
        x = F.gaussian_blur(x, [config.blur_kernel] * 2, [float(params.sigma[i])] * 2)
    return F.solarize(x, 0.5) if params.solarize[i] else x


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_a_recipe_equals_torchvisions_operations_on_the_same_parameters(patches, size):
    config = replace(AUGMENTATIONS["simclr"], strength=1.0)
    x = F.to_dtype(patches[:200], torch.float32, scale=True)
    params = drawn(config, 200)
    theirs = torch.stack([by_torchvision(image, config, params, i, size) for i, image in enumerate(x)])
    ours = apply(patches[:200], params, config, size)
    assert (ours - theirs).abs().max() < 2 * LEVEL
    assert torch.allclose(ours, apply(x, params, config, size), atol=1e-6)  # uint8 and float images alike


def test_a_view_is_drawn_for_the_images_height_and_width(patches):
    wide, config = patches[:, :, :20], AUGMENTATIONS["crop_flip"]
    expected = apply(wide, drawn(config, 600, 20, 32), config)
    assert torch.equal(augment(wide, config, **KEY), expected)


def test_solarise_is_last(patches):
    config = replace(AUGMENTATIONS["crop_flip"], solarize_p=1.0)
    params = drawn(config, 100)
    expected = F.solarize(apply(patches[:100], params, AUGMENTATIONS["crop_flip"]), 0.5)
    assert torch.equal(apply(patches[:100], params, config), expected)


def test_none_changes_nothing_but_the_type_and_flip_alone_mirrors(patches):
    out = augment(patches, AUGMENTATIONS["none"], **KEY)
    assert torch.equal(out, patches.float() / 255)
    assert out.is_contiguous(memory_format=torch.channels_last)
    flipped = augment(patches, replace(AUGMENTATIONS["none"], flip_p=1.0), **KEY)
    assert torch.equal(flipped, patches.flip(3).float() / 255)


@pytest.mark.parametrize("recipe", AUGMENTATIONS)
def test_bf16_is_the_rounded_float32(patches, recipe):
    full = augment(patches, AUGMENTATIONS[recipe], **KEY)
    half = augment(patches, AUGMENTATIONS[recipe], dtype=torch.bfloat16, **KEY)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, full.bfloat16())
    assert full.min() >= 0
    assert full.max() <= 1
    with torch.autocast("cpu", dtype=torch.bfloat16):  # changes nothing
        assert torch.equal(augment(patches, AUGMENTATIONS[recipe], **KEY), full)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 1, 8, 8), torch.uint8), ((4, 4, 8, 8), torch.uint8), ((4, 8, 8, 3), torch.uint8),
     ((3, 8, 8), torch.uint8), ((4, 3, 8, 8), torch.int64)],
)  # fmt: skip
def test_batches_that_are_not_rgb_or_narrower_than_the_kernel_are_refused(patches, shape, dtype):
    expected = r"images are torch\..*expected \(batch, 3, height, width\), uint8 or"
    wrong, key = torch.ones(shape, dtype=dtype), KEY | {"rows": torch.arange(4)}
    must_refuse(augment, wrong, AUGMENTATIONS["none"], expected, **key)
    config = replace(AUGMENTATIONS["simclr"], blur_kernel=65)
    must_refuse(augment, patches, config, r"blur_kernel=65 .*32x32.*at most 63", **KEY)


@pytest.mark.parametrize("recipe", ["none", "crop_flip", "simclr"])
def test_augment_compiles_to_one_graph(patches, recipe):
    compiled = torch.compile(augment, fullgraph=True, backend="aot_eager")
    key = {"seed": 0, "step": torch.tensor(3), "view": 1, "rows": torch.arange(64)}
    expected = augment(patches[:64], AUGMENTATIONS[recipe], **key)
    assert torch.allclose(compiled(patches[:64], AUGMENTATIONS[recipe], **key), expected, atol=1e-5)


@pytest.mark.filterwarnings("default")  # the compiler has its own
def test_compiled_code_agrees_and_draws_by_the_step(patches):
    compiled = torch.compile(augment, fullgraph=True)
    config = replace(AUGMENTATIONS["simclr"], solarize_p=0.2)
    for step in (0, 1):
        key = {"seed": 0, "step": torch.tensor(step), "view": 0, "rows": torch.arange(64)}
        out, expected = compiled(patches[:64], config, **key), augment(patches[:64], config, **key)
        close = (out - expected).abs() < 1e-4
        assert close.float().mean() > 0.9999  # a value at the solarisation threshold may fall on either side
        assert out.is_contiguous(memory_format=torch.channels_last)


def test_gradients_reach_the_image(patches):
    x = (patches[:16].float() / 255).requires_grad_()
    augment(x, AUGMENTATIONS["simclr"], **KEY | {"rows": torch.arange(16)}).sum().backward()
    assert x.grad.isfinite().all()
    assert (x.grad.flatten(1).abs().sum(1) > 0).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_gpu_agrees_without_waiting_for_the_host(patches):
    key = {"seed": 0, "view": 0}
    expected = augment(patches, AUGMENTATIONS["simclr"], step=3, rows=torch.arange(600), **key)
    images, rows, step = patches.cuda(), torch.arange(600).cuda(), torch.tensor(3).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = augment(images, AUGMENTATIONS["simclr"], step=step, rows=rows, **key)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same = ((out.cpu() - expected).abs().flatten(1).amax(1) < 1e-3).float().mean()
    assert same > 0.99  # a crop side at the edge of rounding may fall on either side


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_draws_new_numbers_at_every_replay(patches):
    images, rows = patches.cuda(), torch.arange(600).cuda()
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    key = {"seed": 0, "step": step, "view": 0, "rows": rows}
    with torch.cuda.stream(torch.cuda.Stream()):
        augment(images, AUGMENTATIONS["paper"], **key)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augment(images, AUGMENTATIONS["paper"], **key)
    for number in (1, 2):
        step.fill_(number)
        graph.replay()
        assert torch.allclose(out, augment(images, AUGMENTATIONS["paper"], **key), atol=1e-5)
