"""The probe under the protocol of HCL (Robinson et al. 2021): augmented images, batch norm in train mode.

The encoder's weights are fixed, but each training batch is normalised by its own statistics and updates the
running ones, with which test images are then classified. This is more lenient than a frozen encoder, so its
figure may be compared with the probe's, but must not replace it.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from intnacl.data.streamed import Images
from intnacl.errors import InputError
from intnacl.evaluation.features import check_pair, eval_mode, extract, frozen
from intnacl.evaluation.probe import Classifier, EpochFigures, ProbeConfig, as_linear, epoch_figures

FORMAT = 1  # raise it when the same settings give other figures: stored ones are then measured again
HCL = ProbeConfig(epochs=100, batch_size=512, lr=1e-3, l2=1e-6)
Augment = Callable[[Tensor, int], Tensor]


class HclProbeFigures(EpochFigures):
    """Test accuracy with the statistics that training left, and with the encoder's own."""

    accuracy: float
    accuracy_restored: float
    classes: int


def evaluate(
    encoder: nn.Module,
    train: tuple[Images, Tensor],
    test: tuple[Images, Tensor],
    augment: Augment,
    config: ProbeConfig = HCL,
    *,
    device: torch.device | str = "cpu",
) -> tuple[Classifier, HclProbeFigures]:
    """Train a linear layer on augmented images with minibatch Adam, and return its classifier and figures.

    `augment(images, step)` maps uint8 (B, 3, H, W) on the device to pixels in [0, 1]. Accuracies use the
    running statistics that training leaves; afterwards the encoder's own are restored, and
    `accuracy_restored` is the accuracy of the returned classifier with those.
    """
    if config.solver != "adam" or config.normalize or config.standardize:
        raise InputError(
            "HCL's probe is Adam on unchanged features: leave solver, normalize and standardize unset."
        )
    check_pair(train, test)
    encoder.to(device)
    classes = int(max(train[1].max(), test[1].max())) + 1
    features = extract(encoder, test[0][:1], device=device).shape[1]
    generator = torch.Generator().manual_seed(config.seed)
    # torch's default initialisation, uniform in ±1/√F, but drawn from the generator.
    draws_CK = torch.empty(classes, features + 1)
    draws_CK.uniform_(-(features**-0.5), features**-0.5, generator=generator)
    linear = as_linear(draws_CK[:, :-1], draws_CK[:, -1].clone()).to(device)
    optimizer = torch.optim.Adam(linear.parameters(), lr=config.lr, weight_decay=config.l2)
    batch_size = min(config.batch_size, len(train[0]))
    steps = len(train[0]) // batch_size
    norms = [part for part in encoder.modules() if isinstance(part, _BatchNorm)]
    statistics = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    accuracies = []
    with frozen(encoder):
        try:
            for epoch in range(config.epochs):
                batches = torch.split(torch.randperm(len(train[0]), generator=generator), batch_size)[:steps]
                for step, rows in enumerate(batches, start=epoch * steps):
                    rows = rows.to(train[0].device)
                    with torch.no_grad(), eval_mode(encoder):  # dropout and the like stay off
                        for norm in norms:
                            norm.train()
                        features_BF = encoder(augment(train[0][rows].to(device), step)).float()
                    loss = functional.cross_entropy(linear(features_BF), train[1][rows].to(device))
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                accuracies.append(_accuracy(encoder, linear, test, device))
        finally:
            for name, buffer in encoder.named_buffers():
                buffer.copy_(statistics[name])
    figures: HclProbeFigures = {
        "accuracy": accuracies[-1],
        "accuracy_restored": _accuracy(encoder, linear, test, device),
        "classes": classes,
        **epoch_figures(accuracies),
    }
    return Classifier(encoder, linear.requires_grad_(False)).eval(), figures


def _accuracy(
    encoder: nn.Module, linear: nn.Linear, test: tuple[Images, Tensor], device: torch.device | str
) -> float:
    with torch.no_grad():
        predicted_T = linear(extract(encoder, test[0], device=device)).argmax(dim=1)
    return 100 * int((predicted_T == test[1].to(device)).sum()) / len(test[1])
