"""The recipe robust_clusters: clusters instead of labels, stored with the run, and nothing else changed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pieces import StopAfter

from intnacl.data import load
from intnacl.errors import InputError
from intnacl.evaluation.features import extract
from intnacl.runs.card import model_card
from intnacl.runs.config import RunConfig, from_dict, loss_name, to_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.opened import Run, from_pretrained
from intnacl.runs.pseudo_labels import cluster, pseudo_labels
from intnacl.runs.resolve import resolve
from intnacl.runs.stages import train_and_measure
from intnacl.training.stop import Stop
from tiny_run import CPU, HERE, trained

CLUSTERS = 7
SHORT = {
    "finetune.clusters": CLUSTERS, "finetune.steps": 2, "finetune.head_epochs": 1, "train.epochs": 1,
    "train.batch_size": 360, "train.save_steps": 1, "train.ema": 0.5, "evaluation.eps": (0.05,),
    "evaluation.attacks": ("fgsm",), "evaluation.images": 24, "probe.solver": "lbfgs",
}  # fmt: skip


def config(run: Run | Path, **changes: object) -> RunConfig:
    folder = run.folder if isinstance(run, Run) else run
    settings = SHORT | {"finetune.encoder": str(folder)} | changes
    return resolve(settings, recipe="robust_clusters", device=CPU)


def test_clusters_depend_on_directions_and_the_seed_only():
    torch.manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(5, 20), dim=1)
    truth = torch.arange(200) % 5
    directions = centres[truth] + 0.05 * torch.randn(200, 20)
    found = cluster(directions * torch.logspace(-2, 2, 200)[:, None], 5, seed=0)
    for label in range(5):
        assert len(set(found[truth == label].tolist())) == 1
    assert len(set(found.tolist())) == 5
    noise = torch.randn(200, 20)
    assert torch.equal(cluster(noise, 9, seed=3), cluster(noise, 9, seed=3))
    assert not torch.equal(cluster(noise, 9, seed=3), cluster(noise, 9, seed=4))
    with pytest.raises(InputError, match=r"finetune.clusters=201 exceeds the 200 training images"):
        cluster(noise, 201, seed=0)


def test_a_stopped_run_equals_an_uninterrupted_one_and_reports_its_number_of_clusters(tmp_path):
    begun = trained(tmp_path)
    asked, once, often = config(begun), RunFolder(tmp_path / "once"), RunFolder(tmp_path / "often")
    assert train_and_measure(asked, once, HERE, Stop()) is None
    looks, reason = 0, "terminate"
    while reason is not None:
        looks += 1
        reason = train_and_measure(asked, often, HERE, StopAfter(looks))
    assert looks > 3
    for name in ("encoder", "pseudo_labels"):
        assert getattr(once, name).read_bytes() == getattr(often, name).read_bytes(), name
    assert once.encoder.read_bytes() != begun.folder.encoder.read_bytes()
    assert not once.head.exists()  # the layer for the clusters is not kept

    result = json.loads(once.result.read_bytes())
    clustering = result["protocol"]["pseudo_labels"]
    assert clustering.items() >= {"clusters": CLUSTERS, "seed": 0}.items()
    assert clustering["encoder_sha256"] == begun.encoder_sha256
    assert {row["protocol"] for row in (*result["attacks"], *result["probes"])} == {"slf"}
    assert "protocol" not in result["accuracy"]["digits"]
    assert loss_name(asked) == "finetune-7clusters"
    assert "pseudo-labels: 7 clusters" in once.page.read_text(encoding="utf-8")
    card = model_card(asked, result, "")
    assert "- Training without labels ended on pseudo-labels: 7 clusters." in card
    assert "An encoder trained by intnacl, without labels" in card
    before, after = ({name: value.clone() for name, value in from_pretrained(folder).state_dict().items()}
                     for folder in (begun.folder.path, once.path))  # fmt: skip
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert {"backbone.layers.0.weight"} < set(moved)


def test_no_label_is_used_and_features_of_another_encoder_may_be_clustered(tmp_path):
    begun = trained(tmp_path)
    train = load("digits", "train")
    assert train.labels is not None
    unlabelled = replace(train, labels=None)
    found = [
        pseudo_labels(config(begun), images, RunFolder(tmp_path / name), HERE)
        for name, images in (("labelled", train), ("unlabelled", unlabelled))
    ]
    assert torch.equal(found[0].labels, found[1].labels)
    torch.testing.assert_close(found[0].head, found[1].head, rtol=0, atol=0)
    with torch.no_grad():
        features_NF = extract(begun.encoder, train.images)
    assert torch.equal(found[0].labels, cluster(features_NF, CLUSTERS, seed=0))
    given = found[0].given_to(train)
    assert (len(given.classes), given.checksum) == (CLUSTERS, train.checksum)
    right = (features_NF @ found[0].head["weight"].T + found[0].head["bias"]).argmax(1) == given.labels
    assert 100 * float(right.float().mean()) == pytest.approx(found[0].clustering["head_accuracy"], abs=0.3)
    assert right.float().mean() > 1.5 / CLUSTERS

    other = pseudo_labels(
        config(begun, **{"finetune.clustered": str(_other(tmp_path))}), train, RunFolder(tmp_path / "o"), HERE
    )
    assert not torch.equal(other.labels, found[0].labels)
    assert other.clustering["encoder_sha256"] != begun.encoder_sha256


def _other(tmp_path: Path) -> Path:
    """Write the file of an encoder with other weights."""
    from intnacl.models.encoders import build_model
    from intnacl.models.weights import save_encoder

    wanted = resolve({}, device=CPU).encoder
    path = tmp_path / "other.safetensors"
    save_encoder(
        build_model(wanted, image_size=8, adversarial=False, seed=9).encoder, wanted, image_size=8, path=path
    )
    return path


def test_lost_damaged_or_foreign_pseudo_labels_are_refused(tmp_path):
    begun, folder = trained(tmp_path), RunFolder(tmp_path / "run-clusters")
    asked = config(begun)
    assert train_and_measure(asked, folder, HERE, StopAfter(1)) == "terminate"
    whole = folder.pseudo_labels.read_bytes()
    folder.pseudo_labels.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InputError, match=r"pseudo-labels.safetensors is damaged: its SHA-256 is not the one"):
        train_and_measure(asked, folder, HERE, Stop())
    folder.pseudo_labels.unlink()
    with pytest.raises(InputError, match=r"pseudo-labels.safetensors, with which .* was started, is missing"):
        train_and_measure(asked, folder, HERE, Stop())
    folder.pseudo_labels.write_bytes(whole)
    half = load("digits", "train").hold_out(700)[1]
    with pytest.raises(InputError, match="begun with other images than the data set has now"):
        pseudo_labels(asked, replace(half, whole_checksum=None), folder, HERE)


def test_the_recipe_takes_the_settings_of_measurements_from_the_run(tmp_path):
    begun = trained(tmp_path, seed=3, **{"encoder.norm": "joint", "evaluation.eps": (0.07,)})
    shared = resolve(
        {"finetune.encoder": str(begun.folder), "finetune.clusters": 100}, recipe="robust_clusters"
    )
    assert (shared.recipe, shared.objective, shared.seed) == (
        "robust_clusters_digits", "finetune", 3,
    )  # fmt: skip
    assert (shared.encoder.norm, shared.evaluation.eps) == ("joint", (0.07,))
    assert shared.evaluation == begun.config.evaluation
    assert from_dict(to_dict(shared)) == shared
    assert shared.finetune.encoder == str(begun.folder.path.absolute())
    assert shared.finetune.encoder_sha256 == begun.encoder_sha256
    cifar = resolve(
        {"finetune.encoder": str(begun.folder), "finetune.clusters": 100, "dataset": "cifar10"},
        recipe="robust_clusters",
    )
    assert (cifar.recipe, cifar.train.lr, cifar.train.epochs, cifar.train.batch_size) == (
        "robust_clusters", 0.1, 25, 512,
    )  # fmt: skip
    assert (cifar.finetune.eps, cifar.finetune.beta, cifar.augment.crop_padding) == (8 / 255, 6.0, 4)


def test_missing_and_contradictory_settings_are_named(tmp_path):
    begun = trained(tmp_path)
    with pytest.raises(InputError, match=r"finetune.encoder is not given: name the run"):
        resolve({"finetune.clusters": 10}, recipe="robust_clusters")
    with pytest.raises(InputError, match=r"finetune.clusters is not given: give the number of clusters"):
        resolve({"finetune.encoder": str(begun.folder)}, recipe="robust_clusters")
    with pytest.raises(InputError, match="preset='intcl' is a contrastive loss, which fine-tuning"):
        resolve(SHORT | {"finetune.encoder": str(begun.folder)}, recipe="robust_clusters", preset="intcl")
    with pytest.raises(InputError, match="is not a run folder"):
        resolve({"finetune.encoder": str(tmp_path / "no"), "finetune.clusters": 10}, recipe="robust_clusters")
    with pytest.raises(InputError, match=r"finetune.labels=0.1 is a share .*clusters=7 uses none"):
        config(begun, **{"finetune.labels": 0.1})
    with pytest.raises(InputError, match=r"finetune.clusters=1 must be 2 or more, or 0"):
        config(begun, **{"finetune.clusters": 1})
