"""A run's features in a scikit-learn pipeline: `python examples/sklearn_pipeline.py RUN`."""

import argparse

import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import classification_report
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

import intnacl
from intnacl.data import load
from intnacl.evaluation.features import extract


class Features(TransformerMixin, BaseEstimator):
    """Features (N, F) of uint8 images (N, 3, H, W) by an encoder that is already trained."""

    def __init__(self, run):
        self.run = run

    def fit(self, X, y=None):
        self.encoder_ = intnacl.from_pretrained(self.run)
        return self

    def transform(self, X):
        return extract(self.encoder_, torch.as_tensor(X), batch_size=512, device="cpu").numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--dataset", default="digits")
    args = parser.parse_args()
    train, test = (load(args.dataset, split) for split in ("train", "test"))
    pipeline = make_pipeline(Features(args.run), Normalizer(), LogisticRegression(max_iter=1000))
    search = GridSearchCV(pipeline, {"logisticregression__C": [1.0, 10.0, 100.0]}, cv=3)
    search.fit(train.images.numpy(), train.labels.numpy())
    print(search.best_params_)
    predicted = search.predict(test.images.numpy())
    print(classification_report(test.labels.numpy(), predicted, target_names=test.classes))


if __name__ == "__main__":
    main()
