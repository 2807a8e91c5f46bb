import runpy
from pathlib import Path

import pytest
import torch

import vje
import vje.networks.encoders

ROOT = Path(__file__).parents[1]


def test_minimal_example_trains_embeds_and_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "minimal.py"))
    monkeypatch.setattr(vje, "build_encoder", lambda *_, **__: vje.networks.encoders.build_encoder("resnet8"))
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (32, 3, 8, 8), dtype=torch.uint8, generator=generator)
    model = example["make_model"](images)
    before = [p.detach().clone() for p in model.encoder.parameters()]
    example["train"](model, images, epochs=2, batch=16)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.encoder.parameters(), strict=True))
    assert example["embed"](model, images).shape == (32, 256)
    assert torch.isfinite(model.score(images)["nll"]).all()
    again = vje.load(model.save(tmp_path / "minimal.safetensors"))
    assert torch.equal(again.score(images)["nll"], model.score(images)["nll"])


def test_minimal_example_is_one_page() -> None:
    assert len((ROOT / "examples" / "minimal.py").read_text().splitlines()) < 120
