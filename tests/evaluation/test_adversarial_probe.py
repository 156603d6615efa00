"""ALF: the layer of a frozen encoder trained on attacked images, compared with a loop."""

import pytest
import torch
from torch.nn import functional

from intnacl.data import draws
from intnacl.data.batches import batch_indices
from intnacl.errors import InputError
from intnacl.evaluation.adversarial_probe import START, AlfConfig, evaluate
from intnacl.evaluation.features import changed, snapshot

CONFIG = AlfConfig(epochs=5, batch_size=100, lr=0.5, eps=0.05, steps=3, step_size=0.02, seed=4)


def darken(images, step):
    return images.float() / 255 * (1 - 0.1 * (step % 2))


def by_a_loop(encoder, images, labels, config):
    """The layer's weight and bias, image by image and with gradients written out."""
    encoder.eval()
    width = encoder(images[:1] / 255).shape[1]
    weight, bias = torch.zeros(10, width), torch.zeros(10)
    velocity = torch.zeros(10, width), torch.zeros(10)
    batches = len(images) // config.batch_size
    for step in range(config.epochs * batches):
        epoch = step / (config.epochs * batches)
        rate = config.lr * (1 if epoch < 0.6 else 0.1 if epoch < 0.8 else 0.01)
        rows = batch_indices(config.seed, step, len(images), config.batch_size)
        x = darken(images[rows], step)
        noise = draws.uniform(config.seed, step, START, torch.arange(len(rows)), x[0].numel()).view_as(x)
        moved = x + config.eps * (2 * noise - 1)
        for _ in range(config.steps):
            moved = moved.detach().requires_grad_()
            loss = functional.cross_entropy(encoder(moved) @ weight.T + bias, labels[rows])
            sign = torch.autograd.grad(loss, moved)[0].sign()
            moved = moved.detach() + config.step_size * sign
            moved = torch.minimum(torch.maximum(moved, x - config.eps), x + config.eps).clamp(0, 1)
        features = encoder(moved).detach()
        error = (features @ weight.T + bias).softmax(1) - functional.one_hot(labels[rows], 10)
        gradients = error.T @ features / len(rows), error.mean(0)
        for value, speed, gradient in zip((weight, bias), velocity, gradients, strict=True):
            speed.mul_(config.momentum).add_(gradient + config.weight_decay * value)
            value.sub_(rate * speed)
    return weight, bias


def test_the_layer_equals_a_loop_and_the_encoder_does_not_change(encoder, data):
    (images, labels), _ = data
    train = images[:300], labels[:300]
    before = snapshot(encoder)
    classifier, figures = evaluate(encoder, train, data[1], darken, CONFIG)
    assert changed(before, encoder) == []
    weight, bias = by_a_loop(encoder, *train, CONFIG)
    assert torch.allclose(classifier.linear.weight, weight, atol=2e-3)
    assert torch.allclose(classifier.linear.bias, bias, atol=2e-3)
    correct = (classifier(data[1][0] / 255).argmax(1) == data[1][1]).float().mean()
    assert figures["accuracy"] == pytest.approx(100 * float(correct), abs=0.3)
    assert figures["classes"] == 10


def test_the_defaults_are_the_benchmarks_and_a_layer_that_diverges_is_refused(encoder, data):
    usual = AlfConfig()
    assert (usual.epochs, usual.batch_size, usual.lr, usual.weight_decay) == (25, 512, 0.01, 2e-4)
    assert (usual.eps, usual.steps, usual.step_size) == (8 / 255, 10, 2 / 255)
    with pytest.raises(InputError, match=r"alf\.eps=2 must be a share"):
        AlfConfig(eps=2)
    with pytest.raises(InputError, match=r"diverged at lr=1e\+30: lower alf\.lr"):
        evaluate(encoder, *data, darken, AlfConfig(epochs=2, lr=1e30, weight_decay=1e30, eps=0))
