"""The page of settings lists every setting with its present default and meaning."""

import runpy
from pathlib import Path

from intnacl.runs.config import SETTINGS
from intnacl.runs.resolve import resolve

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "settings.md").read_text(encoding="utf-8")


def test_every_setting_has_a_row():
    assert [name for name in SETTINGS if f"| `{name}` |" not in TEXT] == []


def test_the_page_is_up_to_date():
    assert runpy.run_path(str(DOCS / "draw_settings.py"))["page"]() == TEXT


def test_its_example_is_a_configuration(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(TEXT.split("```toml\n")[1].split("```")[0])
    config = resolve(file=file)
    assert (config.size, config.loss.num_positives, config.train.batch_size) == (64, 5, 128)
    assert config.augment.blur_p == 0.5
