"""The model card tells use, figures and protocol."""

import json
from pathlib import Path

from intnacl.runs.attack import plan, run_attacks
from intnacl.runs.card import model_card
from intnacl.runs.result import collect
from tiny_run import measured, trained


def test_it_holds_figures_and_protocol(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    result = collect(subject)
    card = model_card(subject.config, result, "use(me)")
    row = result["accuracy"]["digits"]
    assert f"| digits | {row['clean']:.2f} | {row['fgsm']:.2f} | {row['pgd']:.2f} |" in card
    assert "```python\nuse(me)\n```" in card
    protocol = card.split("```json\n")[1].split("\n```")[0]
    assert json.loads(protocol) == json.loads(json.dumps(result["protocol"]))
    assert "judged in float32 without TF32; those of many steps search in TF32" in card
    assert card.startswith("# small, simclr, digits\n")


def test_a_run_that_was_not_measured_says_so(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    assert "Not measured yet" in model_card(subject.config, collect(subject), "")


def test_an_attack_of_its_own_is_no_second_worst_case(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    before = model_card(subject.config, collect(subject), "").split("## Protocol")[0]
    run_attacks(subject, "digits", plan(["pgd"], 0.1, 64))
    assert model_card(subject.config, collect(subject), "").split("## Protocol")[0] == before
    assert before.count("| worst case | 0.1 |") == 1
