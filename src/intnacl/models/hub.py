"""Encoders on the Hugging Face Hub: model.safetensors, config.json and a model card, README.md.

These are the names that huggingface_hub's own `PyTorchModelHubMixin` reads and writes. `model.safetensors`
has the content of `encoder.safetensors` in a run's folder; a ResNet's weights have torchvision's names.
"""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from intnacl.errors import InputError, missing_extra
from intnacl.files import as_path, parse_json, read_file, write_file, write_json, write_text
from intnacl.models.encoders import SMALL, Encoder, timm_options
from intnacl.models.weights import ENCODER, MODEL, clean_state, encoder_file, encoder_header

CARD_MARK = "An encoder trained by intnacl"  # a README.md with these words was written here
LIBRARY = "intnacl"
FILES = (MODEL, ENCODER, "encoder.sha256", "config.json", "result.json", "README.md")  # to download


def save_pretrained(encoder: Encoder, folder: str | Path, *, place: str = ".") -> None:
    """Write an encoder's weights, configuration and model card to a folder.

    If the encoder has not changed since its run, the card has the run's figures, config.json has all of the
    run's settings, and result.json is written, too, without names of folders. A README.md that was not
    written here is kept. `place` is what the card's example loads the encoder from.
    """
    out = as_path("folder", folder)
    config, readme = out / "config.json", out / "README.md"
    saved_before = config.exists()
    if saved_before and not _is_ours(config):
        raise InputError(f"{out} has another kind of config.json, such as a run's: choose another folder.")
    header = encoder_header(encoder.config, encoder.image_size, encoder.trained_on)
    content = encoder_file(clean_state(encoder), header)
    found = None if encoder.record is None else encoder.record(encoder, place)
    card, result = found or (_plain_card(encoder, place), None)
    write_file(out / MODEL, content)
    facts = {"library_name": LIBRARY, "image_size": encoder.image_size, "feature_dim": encoder.feature_dim}
    facts |= {"encoder": header["encoder"], **_versions(), **_timm_facts(encoder)}
    write_json(config, facts if result is None else {**facts, "run": result["config"]})
    if result is not None:
        write_json(out / "result.json", result)
    elif saved_before:
        (out / "result.json").unlink(missing_ok=True)  # left by another encoder
    if not readme.exists() or CARD_MARK.encode() in read_file(readme):
        write_text(readme, card)


def push(
    encoder: Encoder,
    repo: str,
    *,
    message: str,
    private: bool | None,
    revision: str | None,
    token: str | None,
) -> str:
    """Upload what `save_pretrained` writes in one commit; return the commit's URL."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise missing_extra("huggingface_hub", "hub", "push_to_hub") from None
    if not is_repository(repo):
        raise InputError(f"repo={repo!r} is not the name of a repository: write 'organisation/name'.")
    with TemporaryDirectory() as folder:
        save_pretrained(encoder, folder, place=repo)
        try:
            api = HfApi(token=token)
            api.create_repo(repo_id=repo, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo, folder_path=folder, commit_message=message, revision=revision
            )
        except Exception as error:  # from the network, the Hub, or a missing login
            raise InputError(
                f"{repo!r} could not be uploaded to the Hugging Face Hub ({_reason(error)}). Log in with "
                "`hf auth login` and a token that may write there."
            ) from error
    return str(commit.commit_url)


def is_repository(name: str) -> bool:
    """True for "organisation/name", unless a folder "organisation" exists here and makes it a path."""
    named = re.fullmatch(r"(\w[\w.-]*)/\w[\w.-]*", name, re.ASCII)
    return named is not None and not Path(named[1]).exists()


def fetch(repo: str, revision: str | None = None) -> Path:
    """Return a folder with the files of an encoder's repository, downloaded if they are not cached yet."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        extra = missing_extra("huggingface_hub", "hub", "loading it from the Hugging Face Hub")
        raise InputError(f"{repo} does not exist here: give a finished run's folder; {extra}") from None
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(FILES)))
    except Exception as error:  # from the network, the Hub, or a name that it does not allow
        raise InputError(
            f"{repo} does not exist here: give a finished run's folder. Nor could a repository of this name "
            f"be read from the Hugging Face Hub ({_reason(error)})."
        ) from error


def usage(place: str, encoder: Encoder) -> str:
    """Return code that loads an encoder from a place and computes features."""
    side = encoder.image_size
    return "\n".join(
        [
            "import intnacl",
            "import torch",
            "",
            f'encoder = intnacl.from_pretrained("{place}")',
            *computing("encoder(pixels)", side, encoder.feature_dim),
        ]
    )


def computing(call: str, side: int, features: int) -> list[str]:
    """Return the lines that compute the features of some pixels."""
    return [
        f"pixels = torch.rand(2, 3, {side}, {side})  # your images: RGB in [0, 1]",
        "with torch.no_grad():",
        f"    features = {call}  # (2, {features})",
    ]


def _plain_card(encoder: Encoder, place: str) -> str:
    """Return the card of an encoder whose run is not known."""
    name = encoder.config.name.removeprefix("timm:")
    header = f"library_name: {LIBRARY}\npipeline_tag: image-feature-extraction\nlicense: unknown\n"
    header += f"tags:\n- {LIBRARY}\n- {name}\n"
    return (
        f"---\n{header}---\n\n# {name}\n\n{CARD_MARK}; its training and its accuracy are not recorded here. "
        f"[config.json](config.json) holds its architecture.\n\n## Use\n\n```python\n"
        f"{usage(place, encoder)}\n```\n"
    )


def _timm_facts(encoder: Encoder) -> dict[str, Any]:
    """Return what timm reads from config.json, if timm builds the same backbone from it.

    `timm.create_model("hf-hub:organisation/name")` then returns the backbone, which takes normalised pixels.
    """
    config, side = encoder.config, encoder.image_size
    if not config.name.startswith("timm:") or config.norm == "none":
        return {}
    options = timm_options(config, side)
    if side <= SMALL and not options:  # the stem was adapted
        return {}
    normalisation = {"mean": list(config.mean), "std": list(config.std)}
    return {
        "architecture": config.name.removeprefix("timm:"),
        "num_classes": 0,
        "model_args": options,
        "pretrained_cfg": {**normalisation, "input_size": [3, side, side], "num_classes": 0},
    }


def _is_ours(config: Path) -> bool:
    try:
        return bool(parse_json(read_file(config)).get("library_name") == LIBRARY)
    except (OSError, ValueError, AttributeError):
        return False


def _versions() -> dict[str, Any]:
    try:
        return {"library_version": version(LIBRARY)}
    except PackageNotFoundError:  # the package runs from a checkout without installation
        return {}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
