"""Our loss in pytorch-metric-learning's trainer: `python examples/metric_learning_trainer.py`."""

import argparse

import torch
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import nn
from torch.utils.data import TensorDataset

from intnacl import IntNaClLoss
from intnacl.data import load
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.multiview import MultiViewDataset, MultiViewTransform


class TwoViews(nn.Module):
    """A two-view loss for trainers that pass the embeddings of one batch: here all x0, then all x1."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
        return self.loss(*embeddings.chunk(2))


def both_views(batch):
    (x0, x1), labels = batch
    return torch.cat([x0, x1]), labels.repeat(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    digits = load("digits", "train")
    gentle = MultiViewTransform(AugmentConfig(crop_scale=(0.3, 1.0), flip_p=0.0, strength=0.5))
    views = MultiViewDataset(TensorDataset(digits.images, digits.labels), gentle)
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 256), nn.BatchNorm1d(256), nn.ReLU())
    models = {"trunk": trunk, "embedder": nn.Linear(256, 64)}
    optimizers = {f"{name}_optimizer": torch.optim.Adam(m.parameters(), 1e-3) for name, m in models.items()}
    losses = []

    def end_of_epoch(trainer):
        print(f"epoch {trainer.epoch}, loss {sum(losses) / len(losses):.4f}", flush=True)
        losses.clear()
        views.set_epoch(trainer.epoch)

    trainer = MetricLossOnly(
        models, optimizers, batch_size=128, dataset=views, data_and_label_getter=both_views,
        loss_funcs={"metric_loss": TwoViews(IntNaClLoss.preset("hardneg"))},
        dataloader_num_workers=0, end_of_epoch_hook=end_of_epoch,
        end_of_iteration_hook=lambda trainer: losses.append(trainer.losses["total_loss"].item()),
    )  # fmt: skip
    trainer.train(num_epochs=epochs)


if __name__ == "__main__":
    main()
