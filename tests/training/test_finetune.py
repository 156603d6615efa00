"""Fine-tuning by TRADES: its loss and its attack against loops, and clean images alone where beta is 0."""

import copy

import pytest
import torch
from pieces import labelled_images
from torch.nn import functional

from intnacl.data.augmentations import AugmentConfig
from intnacl.evaluation.precision import exact_float32
from intnacl.models.encoders import EncoderConfig, build_model
from intnacl.training.finetune import Finetune, FinetuneConfig, divergent_view
from intnacl.training.ranks import Ranks
from intnacl.training.settings import TrainConfig
from intnacl.training.step import TrainStep

PLAIN = AugmentConfig(crop_scale=None, flip_p=0.0, jitter_p=0.0, grayscale_p=0.0)
ROWS, STEP = torch.arange(16), torch.tensor(3)


def objective(name="small", **changes):
    encoder = build_model(EncoderConfig(name=name), image_size=8, adversarial=False, seed=0).encoder
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


def test_the_attack_raises_the_divergence_inside_ball_and_box_without_changing_statistics():
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


def test_with_beta_zero_the_loss_is_cross_entropy_of_clean_images():
    made, (images, labels) = objective(beta=0), batch()
    terms = made(images, labels, ROWS, STEP)
    assert terms["robust"] == 0
    assert torch.allclose(
        terms["loss"], functional.cross_entropy(made.model(images / 255), labels), atol=1e-5
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("default")  # the compiler has its own
@pytest.mark.parametrize("name", ["small", "resnet18"])  # the second has kernels of our own
def test_one_captured_graph_equals_eager_updates(name):
    """Rounding may turn signs of the attack."""
    size, here, losses = 64, Ranks(0, 1, torch.device("cuda", 0)), []
    settings = {"optimizer": "sgd", "lr": 1e-3, "batch_size": size, "precision": "fp32", "ema": 0.9}
    for fast in (False, True):
        config = TrainConfig(**settings, compile=fast, cuda_graph=fast)
        made = TrainStep(objective(name), *labelled_images(4 * size), config, here)
        with exact_float32():
            mode = made.prepare(pytest.fail)
            terms = [made(made.rows[None] + size * (step % 4), step).clone() for step in range(8)]
        assert str(mode) == ("compiled + CUDA graph" if fast else "eager")
        assert int(made.average.updates) == 8
        losses.append(torch.stack(terms))
    torch.testing.assert_close(losses[0][:, 1:], losses[1][:, 1:], rtol=2e-2, atol=2e-2)
