"""Feature extraction: right values, encoder untouched, and an error where it was not."""

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from torch import nn

from digits_model import digits, trained_model
from intnacl.errors import InputError
from intnacl.evaluation.features import changed, check_images, extract, frozen, pixels, snapshot


@pytest.fixture
def encoder() -> nn.Module:
    return deepcopy(trained_model()[0])


class Counter(nn.Module):
    """Counts its calls in a buffer that no state dict shows: not frozen, whatever its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.flatten(1)


def test_features_are_the_encoders_in_eval_mode(encoder):
    images = digits()[0][:50]
    expected = encoder(images / 255)
    for batch_size, mode in ((7, nullcontext()), (50, nullcontext()), (512, torch.autocast("cpu"))):
        with mode:
            features = extract(encoder.train(), images, batch_size=batch_size)
        torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-5)
        assert features.dtype == torch.float32
        assert not features.requires_grad


def test_features_can_be_trained_on(encoder):
    features = extract(encoder, digits()[0][:8])
    nn.Linear(64, 2)(features).sum().backward()  # inference tensors could not be saved for this


def test_modes_are_restored_one_by_one(encoder):
    encoder.train()
    encoder.body[1].eval()
    modes = [part.training for part in encoder.modules()]
    before = snapshot(encoder)
    extract(encoder, digits()[0][:8])
    assert [part.training for part in encoder.modules()] == modes
    assert changed(before, encoder) == []


def test_weights_statistics_and_hidden_buffers_that_change_are_named(encoder):
    before = snapshot(encoder)
    encoder.body[0].weight.data[0, 0, 0, 0] += 1e-6
    encoder.body[1].running_mean[3] += 1e-6
    encoder.body[1].num_batches_tracked += 1
    assert changed(before, encoder) == [
        "body.0.weight", "body.1.running_mean", "body.1.num_batches_tracked",
    ]  # fmt: skip
    hidden = Counter()
    before = snapshot(hidden)
    hidden(torch.zeros(1, 3, 2, 2))
    assert changed(before, hidden) == ["calls"]


def test_buffers_that_come_go_or_change_their_kind_have_changed():
    module = nn.Module()
    for name in ("kept", "gone"):
        module.register_buffer(name, torch.zeros(2))
    before = snapshot(module)
    del module.gone
    module.register_buffer("new", torch.zeros(2))
    assert changed(before, module) == ["gone", "new"]
    for other in (torch.zeros(2, dtype=torch.float64), torch.zeros(3), torch.zeros(2, device="meta")):
        module.kept = other
        assert "kept" in changed(before, module)


def test_nan_that_stays_has_not_changed(encoder):
    """An encoder that diverged is told by its features, not taken for one that writes to itself."""
    encoder.body[1].running_mean.fill_(torch.nan)
    before = snapshot(encoder)
    assert changed(before, encoder) == []
    encoder.body[1].running_mean[0] = 0
    assert changed(before, encoder) == ["body.1.running_mean"]


def test_batches_are_of_one_size_or_nearly(encoder):
    sizes = []
    encoder.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    images = digits()[0][:50]
    whole = extract(encoder, images, batch_size=50)
    parts = extract(encoder, images, batch_size=16)
    assert sizes == [50, 13, 13, 12, 12]
    assert torch.allclose(parts, whole, atol=1e-5)
    with pytest.raises(InputError, match="batch_size=0 must be a whole number from 1"):
        extract(encoder, images, batch_size=0)


def test_an_encoder_that_moves_is_an_error(encoder):
    with pytest.raises(InputError, match="changed while they should be frozen"):
        extract(Counter(), digits()[0][:8])
    with pytest.raises(InputError, match=r"frozen \(body.1.running_mean\);"), frozen(encoder):
        encoder.body[1].running_mean += 1
    with pytest.raises(InputError, match=r"frozen \(body.0.weight and \d+ more\);"), frozen(encoder):
        encoder.double()


def test_an_error_inside_is_not_hidden(encoder):
    encoder.train()
    with pytest.raises(KeyError), frozen(encoder):
        raise KeyError
    assert encoder.training


def test_bad_images_and_labels_are_errors(encoder):
    images, labels = digits()
    for bad in (images / 255, images[0], images[:0]):
        with pytest.raises(InputError, match=r"torch\.uint8 \(N, 3, H, W\)"):
            extract(encoder, bad)
    for wrong, message in (
        (labels[1:], "one per image"),
        (torch.full_like(labels, -1), "unlabelled"),
        (labels.to(torch.uint8), r"labels are torch\.uint8 from 0.*labels\.long\(\)"),
    ):
        with pytest.raises(InputError, match=message):
            check_images(images, wrong)
    with pytest.raises(InputError, match=r"features \(N, F\)"):
        extract(nn.Identity(), images[:2])


def test_pixels_are_in_the_unit_box():
    found = pixels(torch.tensor([0, 51, 255], dtype=torch.uint8), "cpu")
    assert torch.equal(found, torch.tensor([0, 0.2, 1]))
