"""Every operation against torchvision's on the same float image, sample by sample."""

import pytest
import torch

from intnacl.data.transforms import (
    Planes,
    blend,
    gaussian_matrix,
    grey,
    join,
    resize_matrix,
    rotate_hue,
    separable,
    solarise,
    to_grey,
)

F = pytest.importorskip("torchvision.transforms.v2.functional")

LEVEL = 1 / 255


def images(count, height=32, width=32):
    """Noise, smooth ramps, flat grey, pure colours and blacks: where hue and chroma are delicate."""
    x = torch.rand(count, 3, height, width)
    x[1::4] = torch.linspace(0, 1, width).expand(height, width) * torch.rand(len(x[1::4]), 3, 1, 1)
    x[2::4] = torch.randint(0, 2, x[2::4].shape).float()
    x[3::8] = torch.rand(len(x[3::8]), 1, 1, 1)
    return x


def difference(ours, theirs):
    return (ours - torch.stack(theirs)).abs().max().item()


def joined(planes):
    return torch.stack(planes, dim=1)


def boxes(height, width):
    """Corners, edges, single pixels, the whole image, and random boxes: top, left, height, width."""
    fixed = [(0, 0, height, width), (0, 0, 1, 1), (height - 1, width - 1, 1, 1), (height - 2, 0, 2, width)]
    tall, wide = torch.randint(1, height + 1, (40,)), torch.randint(1, width + 1, (40,))
    top, left = (torch.rand(40) * (height - tall + 1)).long(), (torch.rand(40) * (width - wide + 1)).long()
    return torch.cat((torch.tensor(fixed), torch.stack((top, left, tall, wide), dim=1)))


@pytest.mark.parametrize(("source", "size"), [((32, 32), (32, 32)), ((48, 33), (20, 32)), ((64, 64), (9, 7))])
def test_crop_and_resize(source, size):
    box = boxes(*source)
    x = images(len(box), *source)
    top, left, height, width = box.unbind(1)
    rows = resize_matrix(top, height, source[0], size[0])
    columns = resize_matrix(left, width, source[1], size[1])
    theirs = [F.resized_crop(p, *b, list(size), antialias=True) for p, b in zip(x, box.tolist(), strict=True)]
    assert difference(separable(x, rows, columns), theirs) < 1e-5


def test_a_crop_does_not_depend_on_pixels_outside_its_box():
    x = torch.full((1, 3, 8, 8), 1e6)
    x[:, :, 2:5, 3:7] = 0.5
    rows = resize_matrix(torch.tensor([2]), torch.tensor([3]), 8, 8)
    columns = resize_matrix(torch.tensor([3]), torch.tensor([4]), 8, 8)
    assert torch.allclose(separable(x, rows, columns), torch.tensor(0.5))


BLENDS = {
    "brightness": (F.adjust_brightness, lambda f: (f, 0 * f, 0 * f)),
    "contrast": (F.adjust_contrast, lambda f: (f, 0 * f, 1 - f)),
    "saturation": (F.adjust_saturation, lambda f: (f, 1 - f, 0 * f)),
}


@pytest.mark.parametrize("name", BLENDS)
def test_blends(name):
    theirs, weights = BLENDS[name]
    factor, x = torch.linspace(0, 1.8, 24), images(24)
    ours = joined(blend(Planes(*x.unbind(1)), *weights(factor)))
    assert difference(ours, [theirs(p, float(f)) for p, f in zip(x, factor, strict=True)]) < LEVEL
    nothing = (torch.ones(24), torch.zeros(24), torch.zeros(24))
    assert torch.equal(joined(blend(Planes(*x.unbind(1)), *nothing)), x)


def test_hue():
    turn, x = torch.linspace(-0.5, 0.5, 41), images(41)
    ours = joined(rotate_hue(Planes(*x.unbind(1)), turn))
    assert difference(ours, [F.adjust_hue(p, float(t)) for p, t in zip(x, turn, strict=True)]) < LEVEL
    for whole in (0.0, 1.0, -1.0):
        unturned = joined(rotate_hue(Planes(*x.unbind(1)), torch.full((41,), whole)))
        assert torch.allclose(unturned, x, atol=1e-5)


def test_greyscale_and_solarisation_of_the_chosen():
    x, chosen = images(8), torch.arange(8) % 3 == 0
    x[0, :, :5] = 0.5  # the threshold itself is inverted
    planes, pairs = Planes(*x.unbind(1)), list(zip(x, chosen, strict=True))
    greys = [F.rgb_to_grayscale(p, num_output_channels=3) if c else p for p, c in pairs]
    assert difference(joined(to_grey(planes, chosen)), greys) < LEVEL
    inverted = [F.solarize(p, 0.5) if c else p for p, c in pairs]
    assert difference(joined(solarise(planes, chosen, 0.5)), inverted) == 0


@pytest.mark.parametrize(("kernel", "size"), [(3, (32, 32)), (5, (3, 17)), (23, (40, 32))])
def test_gaussian_blur(kernel, size):
    sigma, x = torch.linspace(0.1, 2.0, 20), images(20, *size)
    ours = separable(x, gaussian_matrix(sigma, kernel, size[0]), gaussian_matrix(sigma, kernel, size[1]))
    theirs = [F.gaussian_blur(p, [kernel, kernel], [float(s)] * 2) for p, s in zip(x, sigma, strict=True)]
    assert difference(ours, theirs) < LEVEL


def test_join_clamps_and_is_channels_last():
    x = images(4) * 1.5 - 0.25
    out = join(Planes(*x.unbind(1)), torch.bfloat16)
    assert torch.equal(out, x.clamp(0, 1).bfloat16())
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_gradients_are_those_of_finite_differences_and_finite_also_at_grey_and_black():
    def coloured(x, turn, factor):
        return blend(rotate_hue(Planes(*x.unbind(1)), turn), factor, 0.5 * (1 - factor), 0.5 * (1 - factor))

    x = images(8, 6, 6)
    x[0] = 0
    x.requires_grad_()
    grey(coloured(x, torch.full((8,), 0.1), torch.full((8,), 0.7))).square().sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad[1:].abs().sum() > 0
    turn, factor = torch.tensor([[0.13, -0.07], [0.9, 0.8]], dtype=torch.float64)
    x = (torch.rand(2, 3, 2, 2, dtype=torch.float64) * 0.8 + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: joined(coloured(x, turn, factor)), x)
