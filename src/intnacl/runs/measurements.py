"""The measurements of an encoder: one file each below RUN/parts, made once for the same settings.

A file's name ends in a digest of the settings, which include the encoder's checksum: measurements with other
settings, or of another encoder, have files of their own and are never confused.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch

from intnacl.attacks.named import AttackSettings
from intnacl.data.augmentations import AUGMENTATIONS, AugmentConfig
from intnacl.data.datasets import is_at_path
from intnacl.errors import InputError, InputWarning
from intnacl.evaluation.adversarial_probe import AlfConfig
from intnacl.evaluation.probe import ProbeConfig
from intnacl.files import lock, make_folder, parse_json, read_file, write_json
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder, digest, file_name
from intnacl.runs.heads import ProbeProtocol, head_sha256
from intnacl.runs.images import RunImages
from intnacl.runs.measurement import (
    Figures,
    Kind,
    Measurement,
    Settings,
    current_format,
    environment,
    has_figures,
    plain,
)


class Measurements:
    """The measurements on an encoder, and the settings of the classifiers that its configuration asks for."""

    def __init__(
        self, folder: RunFolder, encoder_sha256: str, config: RunConfig, *, image_size: int = 32
    ) -> None:
        self.folder, self.encoder_sha256 = folder, encoder_sha256
        self.config, self.image_size = config, image_size
        self._warned: set[Path] = set()

    # ---- settings --------------------------------------------------------------------------------------

    def probe_settings(self, dataset: str, config: ProbeConfig | None = None) -> Settings:
        """Return what a probe's figures depend on; by default for the run's own probe."""
        return {
            "dataset": dataset,
            "encoder": self.encoder_sha256,
            "probe": asdict(config or self.config.probe),
        }

    def alf_settings(self, dataset: str, config: AlfConfig | None = None) -> Settings:
        """Return what an adversarial probe's figures depend on; by default for the run's own."""
        views = benchmark_views(self.config, self.image_size)
        settings = {"alf": asdict(config or self.config.alf), "augment": asdict(views)}
        return {"dataset": dataset, "encoder": self.encoder_sha256, **settings}  # type: ignore[typeddict-item]

    def own_protocol(self, dataset: str) -> ProbeProtocol:
        """Return the protocol of the run's own classifier on a data set."""
        labelled = self.config.objective == "finetune" and not self.config.finetune.clusters
        if not labelled or dataset != self.config.dataset:
            return "slf"
        return "aff" if self.config.finetune.beta else "sff"

    def classifier_settings(self, dataset: str, protocol: ProbeProtocol | None = None) -> Settings:
        """Return what the classifier depends on that `Run.classifier` returns."""
        protocol = protocol or self.own_protocol(dataset)
        if protocol == "alf":
            return self.alf_settings(dataset)
        if protocol == "slf":
            return self.probe_settings(dataset)
        if self.own_protocol(dataset) != protocol:
            command = {"aff": f"probe {self.folder} --protocol aff", "sff": f"finetune {self.folder}"}
            raise InputError(
                f"{self.folder} has no fine-tuned classifier on {dataset!r}: `intnacl {command[protocol]}` "
                "fine-tunes its encoder, in a run folder of its own."
            )
        head = head_sha256(self.folder.head)
        found: Settings = {"dataset": dataset, "encoder": self.encoder_sha256, "head": head}
        return found if protocol == "aff" else {**found, "protocol": protocol}

    def frozen_probe_settings(self, dataset: str) -> Settings:
        """Return what the probe on the encoder before fine-tuning depends on."""
        begun = self.config.finetune
        return {
            **self.probe_settings(dataset),
            "begun": str(begun.encoder_sha256),
            "labels": begun.labels,
            "seed": self.config.seed,
        }

    def knn_settings(self, dataset: str, k: int | None, weights: str = "exp") -> Settings:
        """Return what a kNN accuracy depends on; k is None for a number that suits the data set."""
        settings: Settings = {"dataset": dataset, "encoder": self.encoder_sha256, "k": k}
        return settings if weights == "exp" else {**settings, "weights": weights}

    def attack_settings(
        self, dataset: str, attack: AttackSettings, protocol: ProbeProtocol | None = None
    ) -> Settings:
        """Return what accuracy under an attack depends on; by default for the run's own classifier."""
        return {**self.classifier_settings(dataset, protocol), "attacks": [attack]}

    # ---- files -----------------------------------------------------------------------------------------

    def path(self, kind: Kind, settings: Settings) -> Path:
        """Return RUN/parts/KIND-DATASET-DIGEST.json."""
        name = f"{kind}-{file_name(settings['dataset'])}-{digest(settings)}.json"
        return self.folder.measurements / name

    def find(self, kind: Kind, settings: Settings) -> Measurement | None:
        """Return the measurement with these settings, complete or not, if there is one."""
        found = self._read(self.path(kind, settings))
        if found is None and kind == "attack":  # earlier versions kept several attacks in one file
            wanted = plain(settings)
            for other in self.all("attack"):
                same = {**other.settings, "attacks": wanted["attacks"]} == wanted
                if same and wanted["attacks"][0] in other.settings["attacks"]:
                    return other
        return found

    def all(self, kind: Kind) -> Iterator[Measurement]:
        """Yield the complete measurements of a kind on this encoder, the oldest first."""
        paths = [path for path in self.folder.measurements.glob(f"{kind}-*.json") if path.is_file()]
        for path in sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name)):
            found = self._read(path)
            if found and found.is_complete and found.settings["encoder"] == self.encoder_sha256:
                yield found

    def save(self, found: Measurement) -> None:
        """Write or replace a measurement's file."""
        content = {key: value for key, value in vars(found).items() if value is not None}
        write_json(self.path(found.kind, found.settings), {**content, "checksum": _checksum(content)})

    def measure(
        self,
        kind: Kind,
        settings: Settings,
        images: RunImages,
        device: torch.device,
        work: Callable[[], Figures],
        *,
        is_usable: Callable[[], bool] = lambda: True,
    ) -> Measurement:
        """Return the current measurement with these settings; make it if missing or not `is_usable()`."""
        found = self.current(kind, settings, images)
        if found is not None and is_usable():
            return found
        with self.locked([self.path(kind, settings).stem]):
            found = self.current(kind, settings, images)  # another process may have made it meanwhile
            if found is None or not is_usable():
                begun = time.monotonic()
                figures = work()
                found = Measurement(
                    kind=kind,
                    settings=plain(settings),
                    figures=figures,
                    time_s=round(time.monotonic() - begun, 3),
                    environment=environment(device),
                    format=current_format(kind, settings),
                )
                self.save(found)
            return found

    @contextmanager
    def locked(self, names: Iterable[str]) -> Iterator[None]:
        """Keep other processes from writing the files of these names; wait for one that is writing."""
        self.folder.check_writable()
        make_folder(self.folder.measurements)
        with ExitStack() as stack:
            for path in [self.folder.measurements / f".{name}.lock" for name in sorted(set(names))]:
                if stack.enter_context(lock(path, timeout=0)) == "busy":
                    text = f"another process is measuring the same in {self.folder}: waiting for it."
                    warnings.warn(text, InputWarning, stacklevel=4)
                    stack.enter_context(lock(path))
                stack.callback(path.unlink, missing_ok=True)
            yield

    def _read(self, path: Path) -> Measurement | None:
        """Return the measurement of a file; None if it is missing or damaged, and must be made again."""
        try:
            content = parse_json(read_file(path))
            checksum = content.pop("checksum", None)  # earlier versions wrote none
            if checksum not in (None, _checksum(content)):
                raise ValueError
            if "surroundings" in content:  # the key in earlier versions
                content["environment"] = content.pop("surroundings")
            found = Measurement(**content)
            if self.path(found.kind, found.settings) != path or not has_figures(found):
                raise ValueError
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            if path not in self._warned:
                self._warned.add(path)
                text = f"{path} is damaged: it is ignored and measured again."
                warnings.warn(text, InputWarning, stacklevel=2)
            return None

    # ---- validity --------------------------------------------------------------------------------------

    def current(self, kind: Kind, settings: Settings, images: RunImages) -> Measurement | None:
        """Return the measurement with these settings, complete or not, if it is still valid."""
        found = self.find(kind, settings)
        return found if found is not None and self.is_current(found, images) else None

    def is_current(self, found: Measurement, images: RunImages) -> bool:
        """Return True if the evaluator of today would give the same figures for the images of today.

        Images at a path may have changed. A named data set is not even loaded: its measurements must be on
        the images of its probe.
        """
        if found.format != current_format(found.kind, found.settings):
            return False
        if "checksums" not in found.figures:  # as in earlier versions
            return True
        if is_at_path(found.dataset):
            return found.figures["checksums"] == images.checksums(found.dataset)
        return self.is_on_probed_images(found)

    def is_on_probed_images(self, found: Measurement) -> bool:
        """Return True unless the run's own probe on the data set saw other images than this measurement."""
        own = self.find("probe", self.classifier_settings(found.dataset))
        if own is None or "checksums" not in found.figures:
            return True
        return found.figures["checksums"] == own.figures["checksums"]


def _checksum(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def benchmark_views(config: RunConfig, image_size: int) -> AugmentConfig:
    """Return the crops and flips of the RobustSSL benchmark; their padding is an eighth of the image's side.

    There are no flips if the run has none, as for digits.
    """
    views, padding = AUGMENTATIONS["pad_crop_flip"], max(1, image_size // 8)
    return replace(views, crop_padding=padding, flip_p=min(views.flip_p, config.augment.flip_p))
