"""Configs: every recipe loads, survives JSON, and every mistake is told with the name it was made under."""

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from vje.config import (
    AugmentConfig,
    Config,
    DataConfig,
    EncoderConfig,
    OptimizerConfig,
    RunConfig,
    VJEConfig,
    changed_fields,
    read_config,
    to_dict,
)
from vje.errors import UserError
from vje.fields import from_dict
from vje.recipes import load_recipe, recipe_about, recipe_names, unheeded
from vje.runs import finite

EXPECTED = (
    "cifar10 cifar10-ema cifar100 cifar100-ema stl10 stl10-ema tiny-imagenet imagenet100 imagenet1k folder digits"
)


def through_json(config):
    return read_config(json.loads(json.dumps(finite(to_dict(config)))), "config.json")


# Recipes


def test_the_recipes_are_there():
    assert set(EXPECTED.split()) <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_checks_and_survives_json(name):
    config = load_recipe(name)
    config.check()
    assert config.recipe == name
    assert recipe_about(name)
    assert through_json(config) == config


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith("-ema")])
def test_ema_recipes_differ_from_theirs_in_the_target_alone(name):
    changes = changed_fields(load_recipe(name.removesuffix("-ema")), load_recipe(name))
    assert changes.keys() - {"recipe"} <= {"target", "target_momentum", "ood_views"}
    assert changes["target"][:2] == ("stop-gradient", "ema")


def test_the_paper_s_setting():
    config = load_recipe("cifar10-ema")
    assert (config.encoder.encoder, config.encoder.small_images, config.data.size) == ("resnet18", True, 32)
    assert (config.optimizer.batch, config.optimizer.epochs, config.settings.target_momentum) == (256, 200, 0.99)
    assert (config.settings.nu, config.settings.beta, config.settings.samples) == (1.0, 1.0, 1)


@pytest.mark.parametrize("name", [name for name in recipe_names() if name not in ("digits", "folder")])
def test_the_stem_is_the_paper_s(name):
    """Section "Experimental setup": it is adapted to 32 px for CIFAR-10 and CIFAR-100, and for no other data."""
    for config in (load_recipe(name), load_recipe(name, method="simsiam")):
        assert config.encoder.small_images == (config.data.data in ("cifar10", "cifar100"))


def test_what_json_cannot_say_survives_it():
    config = replace(
        Config(),
        settings=VJEConfig(nu=math.inf, terms=("kl",)),
        data=DataConfig(labels=Path("a.csv"), resize=None, channels=1),
        augment=AugmentConfig(blur_kernel=5),
        encoder=EncoderConfig(init="runs/first"),
    )
    assert through_json(config) == config
    assert isinstance(through_json(config).data.data_dir, Path)


def test_a_recipe_of_one_s_own_may_extend_another(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('about = "mine"\nextends = "cifar10-ema"\n[optimizer]\nlr = 1\n[vje]\nnu = inf\n')
    config = load_recipe(str(file))
    base = load_recipe("cifar10-ema")
    expected = replace(base.optimizer, lr=1.0)
    assert (config.recipe, config.optimizer, config.settings.nu) == ("mine", expected, math.inf)
    assert type(config.optimizer.lr) is float
    assert (config.data, config.augment, config.settings.target) == (base.data, base.augment, "ema")
    assert recipe_about(str(file)) == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[optimizer]\nlearning_rate = 1\n", r"optimizer: unknown setting 'learning_rate'"),
        ("epochs = 1\n", r"recipe .*: unknown setting 'epochs'; it belongs below \[optimizer\]\."),
        ("[optimizer]\nepoch = 1\n", r"unknown setting 'epoch'; did you mean epochs\?"),
        ("[optimiser]\nlr = 1\n", r"unknown setting 'optimiser'; did you mean optimizer\?"),
        ("[optimizer]\nlr = 'fast'\n", "lr must be of type float, got 'fast'"),
        ("[optimizer\n", "is not valid TOML"),
        ("extends = 'cifar11'\n", r"there is no recipe 'cifar11'. Did you mean cifar10"),
        ("extends = 3\n", "extends must be text, got 3"),
        ("extends = ['digits']\n", r"extends must be text, got \['digits'\]"),
        ("method = ['byol']\nextends = 'digits'\n", r"method must be text, got \['byol'\]"),
        ("about = 3\n", "about must be text, got 3"),
        ("# \xff", "is not text in UTF-8"),
    ],
)
def test_mistakes_in_a_recipe_are_told_with_its_name(tmp_path, text, words):
    file = tmp_path / "mine.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=words):
        load_recipe(str(file))


def test_recipes_that_go_in_circles_are_refused(tmp_path):
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(f"extends = '{second}'\n")
    second.write_text(f"extends = '{first}'\n")
    with pytest.raises(UserError, match="extends itself"):
        load_recipe(str(first))


def test_a_recipe_is_extended_from_beside_it(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "base.toml").write_text('extends = "digits"\noptimizer.lr = 0.5\n')
    (tmp_path / "deep" / "child.toml").write_text('extends = "../base.toml"\noptimizer.epochs = 7\n')
    monkeypatch.chdir("/")
    optimizer = load_recipe(str(tmp_path / "deep" / "child.toml")).optimizer
    assert (optimizer.lr, optimizer.epochs) == (0.5, 7)
    monkeypatch.chdir(tmp_path / "deep")
    assert load_recipe("child.toml").optimizer == optimizer
    Path("child.toml").write_text('extends = "base.toml"\n')
    with pytest.raises(UserError, match=f"there is no recipe file {tmp_path / 'deep' / 'base.toml'}"):
        load_recipe("child.toml")
    Path("child.toml").write_text('extends = "../deep/child.toml"\n')
    with pytest.raises(UserError, match="extends itself"):
        load_recipe("child.toml")


def test_what_a_file_says_and_a_run_does_not_do_is_told(tmp_path):
    file, child = tmp_path / "mine.toml", tmp_path / "child.toml"
    file.write_text('extends = "digits"\noptimizer.lr = 0.0011\noptimizer.epochs = 3\n')
    child.write_text('extends = "mine.toml"\naugment.flip = 0.25\nsimsiam.hidden = 64\n')
    assert unheeded("digits", load_recipe("digits", "simsiam")) == []
    assert unheeded(str(file), load_recipe(str(file))) == []
    for name in (file, child):
        config = load_recipe(str(name), "simsiam")
        assert (config.optimizer.lr, config.optimizer.epochs) == (0.03, 3)
        (line,) = unheeded(str(name), config)
        assert f"in place of those of {name}: optimizer.lr is 0.03, not 0.0011. To keep yours, say method" in line
    assert load_recipe(str(child), "simsiam").settings.hidden == 64
    chosen = replace(config, optimizer=replace(config.optimizer, lr=0.0011))  # by --lr
    assert unheeded(str(child), chosen) == []
    assert unheeded(str(child), load_recipe(str(child))) == [
        f"{child}: settings of simsiam do nothing, as the method is vje"
    ]
    file.write_text('extends = "digits"\nmethod = "simsiam"\noptimizer.lr = 0.0011\nvje.nu = 2.0\n')
    config = load_recipe(str(file), "simsiam")
    assert config.optimizer.lr == 0.0011
    assert unheeded(str(file), config) == [f"{file}: settings of vje do nothing, as the method is simsiam"]


@pytest.mark.parametrize("method", [None, "simsiam"])
def test_a_group_that_is_no_table_is_refused(tmp_path, method):
    file, child = tmp_path / "mine.toml", tmp_path / "child.toml"
    file.write_text('extends = "digits"\noptimizer = 3\n')
    child.write_text('extends = "mine.toml"\noptimizer.lr = 3\n')
    for name in (file, child):
        with pytest.raises(UserError, match="optimizer must be a table of settings, got 3"):
            load_recipe(str(name), method)


def test_unknown_recipes_get_the_nearest_name():
    with pytest.raises(UserError, match=r"there is no recipe 'cifar10ema'\. Did you mean cifar10-ema\?"):
        load_recipe("cifar10ema")
    with pytest.raises(UserError, match=r"there is no recipe file nowhere\.toml"):
        load_recipe("nowhere.toml")


# Types


@pytest.mark.parametrize(
    ("cls", "values", "words"),
    [
        (OptimizerConfig, {"epochs": 1.5}, "epochs must be of type int, got 1.5"),
        (OptimizerConfig, {"epochs": True}, "epochs must be of type int, got True"),
        (OptimizerConfig, {"lr": True}, "lr must be of type float, got True"),
        (OptimizerConfig, {"lr": None}, "lr must be of type float, got None"),
        (VJEConfig, {"isotropic": 1}, "isotropic must be of type bool, got 1"),
        (VJEConfig, {"target": "moving"}, "target must be one of stop-gradient, ema, got 'moving'"),
        (VJEConfig, {"terms": ["kl", "angular"]}, "terms must be one of directional, radial, kl, got 'angular'"),
        (DataConfig, {"channels": 2}, "channels must be one of 1, 3, got 2"),
        (DataConfig, {"data_dir": 3}, "data_dir must be of type Path, got 3"),
        (AugmentConfig, {"crop_area": [0.1]}, "crop_area must be a list of 2 values"),
        (AugmentConfig, {"crop_area": 0.5}, "crop_area must be a list of 2 values, got 0.5"),
        (VJEConfig, {"terms": 5}, "terms must be a list of values, got 5"),
        (Config, {"run": 3}, "run must be a table of settings, got 3"),
        (Config, {"run": {"nü": 1}}, "run: unknown setting 'nü'"),
    ],
)
def test_wrong_types_are_told_with_the_field(cls, values, words):
    with pytest.raises(UserError, match=f"^here: .*{words}"):
        from_dict(cls, values, "here")


def test_whole_numbers_pass_for_floats_and_lists_for_tuples():
    config = from_dict(AugmentConfig, {"crop_area": [1, 1], "flip": 0}, "here")
    assert config.crop_area == (1.0, 1.0)
    assert [type(x) for x in (*config.crop_area, config.flip)] == [float] * 3
    assert from_dict(DataConfig, {"labels": None, "resize": 40}, "here") == DataConfig(resize=40)


# Checks


@pytest.mark.parametrize(
    ("group", "field", "value", "option"),
    [
        ("optimizer", "epochs", 0, "--epochs must be at least 1, got 0"),
        ("optimizer", "batch", 1, "--batch must be at least 2"),
        ("optimizer", "lr", 0.0, "--lr must be positive"),
        ("optimizer", "lr", math.nan, "--lr must be positive, and finite, got nan"),
        ("optimizer", "lr", math.inf, "--lr must be positive, and finite, got inf"),
        ("optimizer", "warmup_epochs", -1.0, "--warmup-epochs"),
        ("optimizer", "accumulate", 3, "--accumulate must be a divisor of --batch 256, got 3"),
        ("optimizer", "sgd_momentum", 1.0, "--sgd-momentum"),
        ("optimizer", "weight_decay", -1e-4, "--weight-decay"),
        ("optimizer", "weight_decay", math.inf, "--weight-decay must be 0 or more, and finite"),
        ("optimizer", "lars_trust", math.inf, "--lars-trust must be positive, and finite"),
        ("optimizer", "clip_norm", -1.0, "--clip-norm"),
        ("augment", "blur", (1.0, 1.1), "--blur and --solarize must be probabilities"),
        ("settings", "nu", 0.0, "--nu must be positive"),
        ("settings", "beta", math.inf, "--beta must be 0 or more"),
        ("settings", "samples", -1, "--samples"),
        ("settings", "terms", (), "--terms"),
        ("settings", "target_momentum", 1.5, "--target-momentum must be between 0 and 1"),
        ("settings", "ratio", 0.0, "--ratio"),
        ("settings", "ratio", math.inf, "--ratio must be positive, and finite"),
        ("data", "size", 2, "--size"),
        ("data", "held_out", 1.0, "--held-out"),
        ("data", "workers", -1, "--workers"),
        ("data", "resize", 31, "--resize must be SIZE"),
        ("augment", "crop_area", (0.5, 0.4), "--crop-area"),
        ("augment", "crop_area", (0.0, 1.0), "--crop-area"),
        ("augment", "crop_ratio", (2.0, 1.0), "--crop-ratio"),
        ("augment", "crop_ratio", (0.75, math.inf), "--crop-ratio"),
        ("augment", "blur_kernel", 4, "--blur-kernel must be positive and odd, got 4"),
        ("augment", "blur_kernel", -3, "--blur-kernel must be positive and odd, got -3"),
        ("augment", "blur_sigma", (2.0, 1.0), "--blur-sigma must be two numbers, 0 < low <= high"),
        ("augment", "blur_sigma", (math.nan, 2.0), "--blur-sigma"),
        ("augment", "brightness", -1.0, "--brightness must be 0 or more, and finite, got -1.0"),
        ("augment", "contrast", math.nan, "--contrast"),
        ("augment", "saturation", math.inf, "--saturation"),
        ("augment", "hue", 0.6, "--hue must be between 0 and 0.5"),
        ("run", "seed", 2**32, "--seed"),
        ("run", "knn_every", -1, "--knn-every"),
        ("run", "checkpoint_epochs", 0, "--checkpoint-epochs"),
        ("run", "checkpoint_seconds", math.nan, "--checkpoint-seconds must be 0 or more"),
    ],
)
def test_values_that_cannot_work_are_refused_by_their_option(group, field, value, option):
    config = replace(Config(), **{group: replace(getattr(Config(), group), **{field: value})})
    with pytest.raises(UserError, match=option):
        config.check()


# Resuming


def test_changes_are_found_and_judged():
    old = Config()
    new = replace(
        old,
        recipe="mine",
        data=replace(old.data, workers=2, size=64),
        optimizer=replace(old.optimizer, lr=0.1),
        run=replace(old.run, device="cpu", knn_every=3),
    )
    assert changed_fields(old, new) == {
        "recipe": ("cifar10", "mine", False),
        "size": (32, 64, False),
        "workers": (8, 2, True),
        "lr": (0.05, 0.1, False),
        "device": ("auto", "cpu", True),
        "knn_every": (10, 3, True),
    }
    assert changed_fields(new, new) == {}
    infinite = replace(old, settings=VJEConfig(nu=math.inf))
    assert changed_fields(infinite, through_json(infinite)) == {}


def test_only_what_cannot_change_the_past_is_free():
    free = {
        f.name
        for group in (DataConfig, AugmentConfig, EncoderConfig, VJEConfig, OptimizerConfig, RunConfig)
        for f in dataclasses.fields(group)
        if f.metadata.get("resume")
    }
    devices = {"device", "compile", "graph"}
    records = {"knn_every", "checkpoint_epochs", "checkpoint_seconds", "tensorboard", "ood_views"}
    assert free == {"data_dir", "workers"} | records | devices


def test_options_have_one_meaning_each():
    """Groups are flat on the command line, so a name may occur in one of them only."""
    groups = (DataConfig, AugmentConfig, EncoderConfig, VJEConfig, OptimizerConfig, RunConfig)
    names = [f.name for group in groups for f in dataclasses.fields(group)]
    assert len(names) == len(set(names))


# Methods


def test_mistakes_in_a_method_s_table_are_told():
    with pytest.raises(UserError, match="vje must be a table of settings, got 3"):
        read_config({"vje": 3}, "example")
    with pytest.raises(UserError, match="vje: unknown setting 'nü'"):
        read_config({"vje": {"nü": 1}}, "example")
    with pytest.raises(UserError, match=r"there is no table settings; that of the method is called \[simsiam\]"):
        read_config({"method": "simsiam", "settings": {"hidden": 3}}, "example")
    with pytest.raises(UserError, match=r"there is no table vi_simsiam; that of the method is called \[vi-simsiam\]"):
        read_config({"method": "vi-simsiam", "vi_simsiam": {"hidden": 3}}, "example")
    with pytest.raises(UserError, match="there is no method 'vj'"):
        read_config({"method": "vj"}, "example")


def test_a_method_s_recipe_is_the_data_set_s_with_the_method_s_own_settings_on_top():
    base, config = load_recipe("cifar100"), load_recipe("cifar100-simsiam")
    assert (config.recipe, config.method, config.data) == ("cifar100-simsiam", "simsiam", base.data)
    assert config.encoder == base.encoder
    assert (config.settings.layers, config.settings.hidden) == (2, 2048)
    assert config.optimizer.lr != base.optimizer.lr
    assert load_recipe("cifar100-ema", method="simsiam").settings == config.settings
    assert load_recipe("imagenet1k-simsiam").settings.layers == 3


def test_changing_the_method_starts_from_the_data_set_s_recipe():
    assert load_recipe("cifar10-simsiam", method="vje") == load_recipe("cifar10")
    assert "SimSiam" in recipe_about("cifar10-simsiam")


def test_a_recipe_of_one_s_own_may_choose_a_method(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "cifar10"\nmethod = "simsiam"\n[simsiam]\nhidden = 64\n[optimizer]\nepochs = 3\n')
    config = load_recipe(str(file))
    assert (config.method, config.settings.hidden, config.settings.layers) == ("simsiam", 64, 2)
    assert (config.optimizer.epochs, config.optimizer.lr) == (3, load_recipe("cifar10-simsiam").optimizer.lr)


def test_settings_of_a_method_are_its_constructor_s():
    found = {f.name: f.default for f in dataclasses.fields(load_recipe("digits-simsiam").settings)}
    assert found.keys() == {"hidden", "layers", "bottleneck", "fixed_predictor_rate", "batch_norm"}
    assert through_json(load_recipe("digits-simsiam")) == load_recipe("digits-simsiam")


@pytest.mark.parametrize("name", ["digits", "cifar10-ema"])
def test_vje_may_be_named_as_any_method(name):
    assert load_recipe(f"{name}-vje") == load_recipe(name, method="vje") == load_recipe(name)


def test_a_mistake_in_a_method_s_recipe_names_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr("vje.recipes._folder", lambda: tmp_path)
    (tmp_path / "methods").mkdir()
    (tmp_path / "digits.toml").write_text('about = "digits"\nscale = "digits"\n')
    (tmp_path / "methods" / "vi-simsiam.toml").write_text("[digits.vi-simsiam]\nhiden = 64\n")
    with pytest.raises(UserError, match=r"digits with methods/vi-simsiam.toml on top: vi-simsiam: unknown .*hidden\?"):
        load_recipe("digits", "vi-simsiam")
    (tmp_path / "methods" / "vi-simsiam.toml").rename(tmp_path / "methods" / "vi_simsiam.toml")
    with pytest.raises(UserError, match=r"vi_simsiam.toml has to be called vi-simsiam.toml, as the method is\."):
        load_recipe("digits", "vi-simsiam")
