"""The adversarial column: what training's first step sees, or a trained encoder's."""

from pathlib import Path

import pytest
import torch

from intnacl.cli.previews import adversarial_columns, trained_encoder, untrained_model
from intnacl.data import load
from intnacl.data.augmentations import RECIPES
from intnacl.errors import InputError
from intnacl.plots.gallery import view_columns
from intnacl.runs.resolve import resolve
from intnacl.training.objectives import Contrastive
from tiny_run import trained


def images(count: int = 6) -> torch.Tensor:
    """Digits from all over the set."""
    digits = load("digits")
    return digits.images[digits.spread(count)]


def test_the_untrained_column_is_what_the_first_step_sees() -> None:
    config = resolve({"dataset": "digits", "augment": "paper", "seed": 3}, preset="adv")
    objective = Contrastive(
        config.loss, config.encoder, config.augment, config.adversary, image_size=8, seed=3
    )
    seen = []
    objective.parts.embed = lambda x: seen.append(x) or objective.model(x)
    objective(images(), None, torch.arange(6), torch.tensor(0))
    anchors = view_columns(images(), RECIPES["paper"], seed=3)["anchor"]
    columns = adversarial_columns(untrained_model("digits", 8, 3), anchors, config.adversary.eps)
    torch.testing.assert_close(columns["adversarial"], seen[0][-6:], rtol=0, atol=1e-6)


def test_the_change_is_shown_around_grey() -> None:
    anchors = images() / 255
    views, change = adversarial_columns(untrained_model("digits", 8, 0), anchors, 0.1).values()
    assert (views - anchors).abs().amax() == pytest.approx(0.1, abs=1e-6)
    torch.testing.assert_close(change, 0.5 + 5 * (views - anchors))
    assert set(change.round(decimals=3).unique().tolist()) <= {0.0, 0.5, 1.0}


def test_a_trained_encoder_makes_views_of_its_own(tmp_path: Path) -> None:
    folder = trained(tmp_path).folder
    anchors = images() / 255
    encoder = trained_encoder(folder, 8)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    views = adversarial_columns(encoder, anchors, 0.1)["adversarial"]
    assert (views != adversarial_columns(untrained_model("digits", 8, 0), anchors, 0.1)["adversarial"]).any()
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    with pytest.raises(InputError, match=r"was trained on 8×8 images, but these have side 32: .*--size 8"):
        trained_encoder(folder, 32)


def test_one_image_has_no_negatives() -> None:
    with pytest.raises(InputError, match="one image has no adversarial view"):
        adversarial_columns(untrained_model("digits", 8, 0), images(1) / 255, 0.1)
