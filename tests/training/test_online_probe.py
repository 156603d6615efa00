"""The online probe: what it learns, and that it affects nothing else."""

import pytest
import torch
from pieces import contrastive, labelled_images, run, state, trainer
from torch.nn.functional import cross_entropy

from intnacl.training.journal import records
from intnacl.training.online_probe import RATE, OnlineProbe


def test_the_probe_is_adam_on_the_cross_entropy_of_standardised_features():
    torch.manual_seed(0)
    probe, linear = OnlineProbe(5, 3), torch.nn.Linear(5, 3).double()
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    norm, adam = torch.nn.BatchNorm1d(5, affine=False).double(), torch.optim.Adam(linear.parameters(), RATE)
    for _ in range(20):
        features, labels = 3 + 2 * torch.randn(256, 5), torch.randint(3, (256,))
        logits = linear(norm(features.double()))
        right = 100 * (logits.argmax(1) == labels).float().mean().item()
        assert probe.learn(features, labels).item() == pytest.approx(right, abs=0.5)
        adam.zero_grad()
        cross_entropy(logits, labels).backward()
        adam.step()
    expected = torch.cat([linear.weight.T, linear.bias[None]]).float()
    torch.testing.assert_close(probe.theta_KC, expected, rtol=1e-3, atol=1e-5)
    logits = linear(norm.eval()(features.double())).float()  # torch's running variance divides by B − 1
    torch.testing.assert_close(probe(features), logits, rtol=1e-2, atol=1e-3)


def test_the_probe_learns_from_separable_features():
    torch.manual_seed(0)
    probe, centres = OnlineProbe(8, 4), torch.randn(4, 8)
    for _ in range(200):
        labels = torch.randint(4, (64,))
        accuracy = probe.learn(100 + centres[labels] + 0.1 * torch.randn(64, 8), labels)
    assert accuracy > 99
    features = 100 + centres + 0.1 * torch.randn(4, 8)
    assert probe(features).argmax(1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("settings", [{}, {"precision": "bf16", "accumulate": 2}], ids=["fp32", "bf16"])
def test_the_encoder_is_identical_with_and_without_the_probe(tmp_path, settings):
    runs = {
        name: trainer(tmp_path / name, contrastive(probed=classes), clip=1.0, **settings)
        for name, classes in (("with", 4), ("without", None))
    }
    for made in runs.values():
        assert run(made) is None
    torch.testing.assert_close(*map(state, runs.values()), rtol=0, atol=0)
    logs = {name: records(tmp_path / name / "log.jsonl") for name in runs}
    assert [row["loss"] for row in logs["with"]] == [row["loss"] for row in logs["without"]]
    assert all(0 <= row["probe_train"] <= 100 for row in logs["with"])
    assert not any("probe_train" in row for row in logs["without"])
    trained = runs["with"].objective
    assert trained.online_probe.updates == 2 * 4  # batches
    assert not any(p is q for p in trained.online_probe.parameters() for q in trained.model.parameters())


def test_without_labels_there_is_no_probe():
    objective = contrastive().train()
    terms = objective(labelled_images(8)[0], None, torch.arange(8), torch.tensor(0))
    assert "probe_train" not in terms
    assert objective.online_probe.updates == 0
