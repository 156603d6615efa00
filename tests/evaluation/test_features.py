"""Feature extraction: correct values, an unchanged encoder, and an error if it changes."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from digits_model import digits
from intnacl.errors import InputError
from intnacl.evaluation.features import changed, check_images, extract, frozen, snapshot
from mistakes import must_refuse, refused


class Counter(nn.Module):
    """Counts its calls in a buffer outside the state dict, so it is not frozen in any mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.flatten(1)


@pytest.mark.parametrize("mode", [nullcontext, partial(torch.autocast, "cpu")])
def test_features_are_computed_in_eval_mode_in_batches_of_nearly_equal_size(encoder, mode):
    images, sizes = digits()[0][:50], []
    expected = encoder(images / 255).detach()
    encoder.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    for batch_size in (50, 16, 512):
        with mode():
            features = extract(encoder.train(), images, batch_size=batch_size)
        torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-5)
        assert (features.dtype, features.requires_grad) == (torch.float32, False)
    assert sizes == [50, 13, 13, 12, 12, 50]
    nn.Linear(64, 2)(features).sum().backward()  # inference tensors could not be saved for this


@pytest.mark.parametrize("error", [False, True])
def test_modes_are_restored_one_by_one_even_after_an_error(encoder, error):
    encoder.train().body[1].eval()
    modes, before = [part.training for part in encoder.modules()], snapshot(encoder)
    with pytest.raises(KeyError) if error else nullcontext(), frozen(encoder):
        encoder({}["missing"] if error else digits()[0][:8] / 255)
    assert [part.training for part in encoder.modules()] == modes
    assert changed(before, encoder) == []


def test_weights_statistics_and_hidden_buffers_that_change_are_named(encoder):
    encoder.body[1].running_mean.fill_(torch.nan)  # an encoder that diverged is told by its features
    before = snapshot(encoder)
    assert changed(before, encoder) == []
    encoder.body[0].weight.data[0, 0, 0, 0] += 1e-6
    encoder.body[1].running_mean[3] = 0
    encoder.body[1].num_batches_tracked += 1
    names = ["body.0.weight", "body.1.running_mean", "body.1.num_batches_tracked"]
    assert changed(before, encoder) == names
    before = snapshot(hidden := Counter())
    hidden(torch.zeros(1, 3, 2, 2))
    assert changed(before, hidden) == ["calls"]


def test_buffers_that_are_added_removed_or_change_type_count_as_changed():
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


def test_an_encoder_that_changes_is_an_error(encoder):
    must_refuse(extract, Counter(), digits()[0][:8], "changed while they should be frozen")
    with pytest.raises(InputError, match=r"frozen \(body.1.running_mean\);"), frozen(encoder):
        encoder.body[1].running_mean += 1
    with pytest.raises(InputError, match=r"frozen \(body.0.weight and \d+ more\);"), frozen(encoder):
        encoder.double()


IMAGES, LABELS = digits()
PIXELS = r"torch\.uint8 \(N, 3, H, W\)"

test_bad_images_and_labels_are_refused = refused(
    lambda function, *arguments: function(*arguments),
    *((extract, nn.Flatten(), bad, PIXELS) for bad in (IMAGES / 255, IMAGES[0], IMAGES[:0])),
    (extract, nn.Identity(), IMAGES[:2], r"features \(N, F\)"),
    (partial(extract, batch_size=0), nn.Flatten(), IMAGES, "batch_size=0 must be a whole number from 1"),
    (check_images, IMAGES, LABELS[1:], "one per image"),
    (check_images, IMAGES, torch.full_like(LABELS, -1), "unlabelled"),
    (check_images, IMAGES, LABELS.byte(), r"labels are torch\.uint8 from 0.*labels\.long\(\)"),
)
