"""``vje profile``: the paper's tab:compute, as JSON and as a table, without a GPU."""

import json
import subprocess
import sys

import pytest

from vje.cli.profile import Options, method_config, print_table
from vje.methods import method_names

# method: head, trainable and total parameters (M), encoder passes, forward and step GFLOPs an image
PAPER = {
    "vje": (3.4, 26.9, 26.9, 2, 16.4, 49.1),
    "vje-ema": (3.4, 26.9, 50.4, 4, 32.7, 65.4),
    "simsiam": (14.7, 38.2, 38.2, 2, 16.4, 49.2),
    "byol": (11.6, 35.1, 68.0, 4, 32.8, 65.6),
    "vicreg": (151.0, 174.5, 174.5, 2, 17.2, 51.7),
}
FIELDS = (
    "head_params_m",
    "trainable_params_m",
    "total_params_m",
    "encoder_passes",
    "forward_gflops",
    "step_gflops",
)
SMALL = ("--encoder", "resnet8", "--size", "8", "--batch", "4", "--device", "cpu")


def test_the_papers_table(vje):
    status, out, err = vje("profile", "--json", "--device", "cpu")
    assert (status, err) == (0, "")
    rows = json.loads(out)
    assert [row["method"] for row in rows] == list(PAPER)
    for row in rows:
        assert tuple(row[name] for name in FIELDS) == PAPER[row["method"]], row["method"]
        assert set(row) == {"method", *FIELDS}


def test_every_method_can_be_counted(vje):
    names = [name for name in method_names() if name not in PAPER]
    status, out, _ = vje("profile", *names, *SMALL, "--batch", "8", "--json")
    assert status == 0
    rows = {row["method"]: row for row in json.loads(out)}
    assert set(rows) == set(names)
    for row in rows.values():
        assert row["encoder_passes"] in (1, 2, 4)
        assert row["trainable_params_m"] <= row["total_params_m"]


def test_scales():
    small, large = (method_config("simsiam", Options(size=size)) for size in (32, 224))
    assert (small.settings.layers, large.settings.layers) == (2, 3)
    assert (small.encoder.small_images, large.encoder.small_images) == (True, False)
    for size in (32, 224):
        targets = [method_config(name, Options(size=size)).settings.target for name in ("vje", "vje-ema")]
        assert targets == ["stop-gradient", "ema"]


def test_measurements(vje, capsys):
    words = ("--measure", "--windows", "1", "--steps", "1", "--precision", "bfloat16", "--json")
    status, out, _ = vje("profile", "vje", *SMALL, *words)
    assert status == 0
    (row,) = json.loads(out)  # SimSiam ran too, and was not asked for
    assert row["method"] == "vje"
    assert row["images_per_second"] > 0 and row["relative_throughput"] > 0
    assert row["peak_memory_gb"] is None  # which is a GPU's
    for memory in (None, 41.4):
        print_table([row | {"peak_memory_gb": memory}], Options(encoder="resnet8", size=8, batch=4))
        out = capsys.readouterr().out
        for words in ("resnet8 at 8 px, batch 4, float32", "images/s", "simsiam = 1", f"{row['images_per_second']:,}"):
            assert words in out
        assert ("41.4" in out) == ("memory" in out) == (memory is not None)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["simclear"], "there is no method 'simclear'"),
        (["byol-ema"], "there is no method 'byol-ema'"),
        (["--batch", "1"], "--batch must be at least 2, got 1"),
        (["--size", "2"], "--size must be at least 4, got 2"),
        (["--windows", "0"], "--windows must be at least 1, got 0"),
        (["moco", *SMALL], "moco divides a batch into 8 parts: --batch must be a multiple of that"),
        (["--encoder", "resnet51x", "--device", "cpu"], "resnet51x"),
    ],
)
def test_mistakes(words, answer, vje):
    status, out, err = vje("profile", *words)
    assert (status, out) == (2, "")
    assert answer in err
    assert err.startswith("vje: ")


def test_help_is_quick(cli_env):
    ask = "import sys, vje.cli.main as m\ntry: m.main(['profile', '-h'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=cli_env(), check=True)
    assert "--encoder" in done.stdout
    assert done.stdout.strip().endswith("False")


@pytest.mark.parametrize(("size", "classes"), [(32, 10), (224, 1000)])
def test_a_classifier_has_the_classes_of_the_data_at_that_size(vje, size, classes):
    answer = vje("profile", "supervised", "--encoder", "resnet50", "--size", size, "--batch", 2, "--json")
    (row,) = json.loads(answer.out)
    assert row["head_params_m"] == round((2048 + 1) * classes / 1e6, 1)
