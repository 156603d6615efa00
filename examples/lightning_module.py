"""Our loss and our views in PyTorch Lightning: `python examples/lightning_module.py [--epochs 5]`."""

import argparse

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from intnacl import IntNaClLoss
from intnacl.data import load
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.multiview import MultiViewDataset, MultiViewTransform


class Contrastive(pl.LightningModule):
    def __init__(self, preset="hardneg", lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 256), nn.BatchNorm1d(256), nn.ReLU())
        self.head = nn.Linear(256, 64)
        self.criterion = IntNaClLoss.preset(preset)  # gather=True uses the negatives of all devices

    def forward(self, x):
        return self.head(self.encoder(x))

    def on_train_epoch_start(self):
        self.trainer.train_dataloader.dataset.set_epoch(self.current_epoch)

    def training_step(self, batch, batch_index):
        (x0, x1), _ = batch
        loss = self.criterion(self(x0), self(x1))
        self.log("loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}, loss {self.trainer.callback_metrics['loss']:.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    pl.seed_everything(0)
    digits = load("digits", "train")
    gentle = AugmentConfig(crop_scale=(0.3, 1.0), flip_p=0.0, strength=0.5)  # a mirrored 2 is not a digit
    views = MultiViewDataset(TensorDataset(digits.images, digits.labels), MultiViewTransform(gentle))
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader = DataLoader(views, batch_size=128, shuffle=True, drop_last=True, **workers)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    pl.Trainer(max_epochs=args.epochs, **quiet).fit(Contrastive(), loader)


if __name__ == "__main__":
    main()
