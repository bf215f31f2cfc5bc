"""The benchmark of other families: its figures from its rows; what it measures needs a GPU."""

from benchmarks.families import BASE, FUSED, PLAIN, figures_of


def test_figures_are_of_one_family_and_the_least_gain_is_its_own() -> None:
    def row(family: str, what: str, batch: int, ms: float) -> dict[str, object]:
        return {"what": f"forward + backward, {what}", "family": family, "batch": batch, "ms": ms}

    rows = [row("other", what, batch, 1.0) for what in (FUSED, BASE, PLAIN) for batch in (1, 4)]
    rows += [row("phi3", FUSED, 1, 20.0), row("phi3", BASE, 1, 16.0), row("phi3", PLAIN, 1, 200.0)]
    rows += [row("phi3", FUSED, 4, 80.0), row("phi3", BASE, 4, 64.0), row("phi3", PLAIN, 4, 440.0)]
    assert figures_of(rows, "phi3") == {
        "x_phi3_bs1": 10.0,
        "x_phi3_bs4": 5.5,
        "x_phi3": 5.5,
        "lora_tax_phi3_bs1": 0.25,
        "lora_tax_phi3_bs4": 0.25,
    }
