"""Warnings that accuracy under attack may overestimate robustness; `test_robustness` triggers them."""

from intnacl.attacks.sanity import accuracy_warnings


def test_rising_accuracy_and_weak_iteration_are_warned_about():
    def row(name, eps, accuracy, images=100):
        return {"name": name, "eps": eps, "accuracy": accuracy, "images": images}

    falling = [row("fgsm", 0.01, 50), row("fgsm", 0.02, 40), row("pgd", 0.01, 49), row("pgd", 0.02, 30)]
    assert accuracy_warnings(falling) == []
    (warning,) = accuracy_warnings([*falling, row("fgsm", 0.005, 30)])
    assert "fgsm: accuracy rises with eps, from 30.0 % at eps 0.005 to 50.0 % at eps 0.01" in warning
    (warning,) = accuracy_warnings([row("fgsm", 0.01, 50), row("pgd", 0.01, 55)])
    assert "pgd: 55.0 % at eps 0.01 is above FGSM's 50.0 %" in warning
    tuned = [row("fgsm", 0.01, 50), row("pgd", 0.01, 55), row("pgd_tuned", 0.01, 40)]
    assert accuracy_warnings(tuned) == [warning, "at eps 0.01, trust pgd_tuned, whose step size suits it."]
    assert accuracy_warnings([row("fgsm", 0.01, 50), row("pgd", 0.01, 55, images=10)]) == []
    assert accuracy_warnings([row("pgd", 0.01, 50.0), row("pgd", 0.02, 50.4)]) == []
    few = [row("pgd", eps, 90, images=10) for eps in (0.01, 0.02)]  # between the radii of the others
    (warning,) = accuracy_warnings([row("pgd", 0.01, 50), *few, row("pgd", 0.02, 60)])
    assert "pgd: accuracy rises with eps, from 50.0 % at eps 0.01 to 60.0 % at eps 0.02" in warning
    (warning,) = accuracy_warnings([row("fgsm", 0.01, 50), row("fgsm", 0.01, 9, 10), row("pgd", 0.01, 60)])
    assert "above FGSM's 50.0 %" in warning
