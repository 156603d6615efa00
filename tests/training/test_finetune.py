"""Fine-tuning by TRADES: its loss and its attack against loops, and clean images alone where beta is 0."""

import copy

import torch
from torch.nn import functional

from intnacl.data.augmentations import AugmentConfig
from intnacl.models.encoders import EncoderConfig, build_model
from intnacl.training.finetune import Finetune, FinetuneConfig, divergent_view

PLAIN = AugmentConfig(crop_scale=None, flip_p=0.0, jitter_p=0.0, grayscale_p=0.0)
ROWS, STEP = torch.arange(16), torch.tensor(3)


def objective(**changes):
    encoder = build_model(EncoderConfig(name="small"), image_size=8, adversarial=False, seed=0).encoder
    made = Finetune(FinetuneConfig(eps=0.1, step_size=0.03, steps=4, **changes), encoder, 10, PLAIN, seed=1)
    torch.manual_seed(0)
    torch.nn.init.normal_(made.head.weight)
    return made.train()


def batch():
    torch.manual_seed(1)
    return torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8), torch.randint(0, 10, (16,))


def test_the_loss_is_trades():
    made, (images, labels) = objective(), batch()
    plain = copy.deepcopy(made.model)
    attacked = made.attack(images / 255, ROWS, STEP)
    terms = made(images, labels, ROWS, STEP)
    with torch.no_grad():
        clean_z, attacked_z = plain.train()(images / 255), plain(attacked)
    robust = 0.0
    for z, other in zip(clean_z, attacked_z, strict=True):
        p, q = z.softmax(0), other.softmax(0)
        robust += float((p * (p / q).log()).sum()) / 16
    assert abs(terms["robust"].item() - robust) < 0.01  # rounding turns some gradients' signs
    wanted = float(functional.cross_entropy(clean_z, labels)) + 6 * robust
    assert abs(terms["loss"].item() - wanted) < 0.06
    # Clean and attacked images have moved the running statistics one after the other.
    for own, other in zip(made.model.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(own, other, atol=1e-3)


def test_the_attack_raises_the_divergence_inside_ball_and_box_and_moves_no_statistics():
    made, (images, _) = objective(), batch()
    x, before = images / 255, [buffer.clone() for buffer in made.model.buffers()]
    attacked = made.attack(x, ROWS, STEP)
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.buffers(), strict=True))
    assert made.model.training
    assert (attacked - x).abs().max() <= 0.1 + 1e-6
    assert 0 <= attacked.min() <= attacked.max() <= 1
    model = made.model.eval()

    def divergence(moved):
        p = model(x).softmax(1)
        return (p * (p.log() - model(moved).log_softmax(1))).sum(1)

    once = divergent_view(model, x, x + 1e-3 * torch.randn_like(x), 0.1, 0.03, 1)
    assert divergence(attacked).mean() > divergence(once).mean() > 1e-4
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_without_beta_it_is_cross_entropy_of_clean_images():
    made, (images, labels) = objective(beta=0), batch()
    terms = made(images, labels, ROWS, STEP)
    assert terms["robust"] == 0
    assert torch.allclose(
        terms["loss"], functional.cross_entropy(made.model(images / 255), labels), atol=1e-5
    )
