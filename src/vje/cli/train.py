"""``vje train RECIPE``: train from scratch, or go on with a run. Mistakes are found before torch is imported."""

import os
import socket
import sys
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, make_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vje.claims import claimed, new_run
from vje.cli.recipes import recipes_table
from vje.cli.subject import own_data, own_labels
from vje.config import (
    AugmentConfig,
    Config,
    DataConfig,
    EncoderConfig,
    OptimizerConfig,
    RunConfig,
    changed_fields,
    stored_config,
)
from vje.data.registry import check_data
from vje.errors import UserError, command
from vje.methods import method_names
from vje.recipes import load_recipe, recipe_names, unheeded
from vje.runs import RunFolder

USAGE = """usage: vje train RECIPE [--method METHOD] [OPTIONS]
       vje train --resume RUN [OPTIONS]
       torchrun --nproc-per-node N -m vje train RECIPE [OPTIONS]

recipes:
{recipes}

methods: {methods}

vje train RECIPE --help lists every option with the recipe's defaults."""


@dataclass(frozen=True)
class Options:
    """Train an encoder."""

    out: Path | None = None
    """Run folder to write; the default is a new one under runs/."""
    extend: bool = False
    """On --resume: allow another --epochs, although the schedules then differ from either run's (not needed while
    --schedule-epochs stays the same)."""
    watch: bool = False
    """Serve a page with the curves and the map of the held-out images so far, to this machine only, while training."""
    watch_port: int = 0
    """Port of that page; 0 takes one that is free."""
    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    encoder: EncoderConfig = EncoderConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    run: RunConfig = RunConfig()


GROUPS = [f.name for f in fields(Config) if f.name not in ("recipe", "method", "settings")]


def run(arguments: list[str]) -> int:
    """Train; returns the exit status (130 after an interruption that can be resumed)."""
    recipe, resume, method, rest = _first_words(arguments)
    if recipe is None and resume is None:
        if not arguments or {"-h", "--help"} & set(arguments):
            print(USAGE.format(recipes=recipes_table(), methods=", ".join(method_names())))
            return 0
        late = next((word for word in rest if word in recipe_names()), None)
        hint = f" The recipe comes first: {command('vje', 'train', late, '...')}." if late else ""
        raise UserError(f"`vje train` needs a recipe, such as cifar10-ema (see `vje recipes`), or --resume RUN.{hint}")
    if resume is not None:
        if method is not None:
            raise UserError(f"--resume {resume} knows its method; leave --method out.")
        return _resume(Path(resume), recipe, rest)
    return _start(str(recipe), method, rest)


def _first_words(arguments: list[str]) -> tuple[str | None, str | None, str | None, list[str]]:
    """Recipe, --resume and --method decide the defaults of everything else, so they are read first."""
    found: dict[str, str] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--resume", "--method"):
            given = value if equals else next(words, None)
            if not given:
                raise UserError(f"{name} needs a value: a {'run folder' if name == '--resume' else 'method'}.")
            if found.setdefault(name[2:], given) != given:
                raise UserError(f"{name} was given twice, {found[name[2:]]} and {given}: give one.")
        elif not word.startswith("-") and not rest and "recipe" not in found:
            found["recipe"] = word
        else:
            rest.append(word)
    return found.get("recipe"), found.get("resume"), found.get("method"), rest


def _options(config: Config, rest: list[str], program: str) -> tuple[Options, Config]:
    """Every setting as an option; the method's own are a group by the method's name."""
    import tyro

    kind, group = type(config.settings), config.method.replace("-", "_")
    typed = make_dataclass("Options", [(group, kind, field(default=kind()))], bases=(Options,), frozen=True)
    typed.__doc__ = Options.__doc__
    defaults = typed(**{name: getattr(config, name) for name in GROUPS}, **{group: config.settings})
    options = tyro.cli(typed, default=defaults, args=rest, config=(tyro.conf.OmitArgPrefixes,), prog=program)
    changed = replace(config, settings=getattr(options, group), **{name: getattr(options, name) for name in GROUPS})
    changed.check()
    return options, changed


def _start(recipe: str, method: str | None, rest: list[str]) -> int:
    config = load_recipe(recipe, method)
    options, config = _options(config, rest, command("vje", "train", recipe if method is None else config.recipe))
    for line in unheeded(recipe, config) if _is_first() else ():
        warnings.warn(line, stacklevel=1)
    if not config.data.data:
        raise UserError(f"recipe {recipe} needs to know where the images are: --data PATH (a folder or an .npz file).")
    _check_surroundings(config)
    watch = _watch_port(options)
    out = options.out or Path("runs") / config.recipe
    with new_run(out, exact=options.out is not None) if _is_first() else nullcontext(RunFolder(out)) as folder:
        return _train(config, folder, resuming=False, watch=watch)


def _resume(path: Path, recipe: str | None, rest: list[str]) -> int:
    if recipe is not None:
        raise UserError(f"--resume {path} knows its recipe; leave {recipe!r} out.")
    folder = RunFolder.open(path)
    stored = stored_config(folder)
    options, config = _options(stored, rest, command("vje", "train", "--resume", path))
    if options.out is not None:
        raise UserError("--out cannot be given with --resume: a run goes on in its own folder.")
    _check_changes(stored, config, options.extend, done=folder.epochs_done())
    if config.data.data == stored.data.data:  # relative to where the run was started, which may not be here
        config = replace(config, data=replace(config.data, data=own_data(folder, stored.data.data)))
    if config.data.labels == stored.data.labels:
        config = replace(config, data=replace(config.data, labels=own_labels(folder, stored.data.labels)))
    _check_surroundings(config)
    watch = _watch_port(options)
    if folder.model_file.exists() and folder.epochs_done() >= config.optimizer.epochs:
        _say(f"{path} is finished ({stored.optimizer.epochs} epochs). Next: {command('vje', 'evaluate', path)}")
        return 0
    with claimed(folder) if _is_first() else nullcontext():
        return _train(config, folder, resuming=True, watch=watch)


def _is_first() -> bool:
    """Whether this is the process that writes, of those that torchrun may have started."""
    return int(os.environ.get("RANK", "0")) == 0


def _say(line: str) -> None:
    if _is_first():
        print(line)


def _check_surroundings(config: Config) -> None:
    """Find out what can be found out before anything is loaded or written."""
    if config.run.tensorboard and find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs TensorBoard: pip install 'vje[tensorboard]'.")
    check_data(config.data.data, config.data.data_dir, training=True)


def _check_changes(stored: Config, config: Config, extend: bool, done: int) -> None:
    """Refuse what would make the run's past untrue; ``done`` epochs are past."""
    for name, (old, new, free) in changed_fields(stored, config).items():
        option = "--" + name.replace("_", "-")
        if name in ("epochs", "schedule_epochs"):
            continue
        if name == "data":
            _say(f"{option} {old} -> {new}: these have to be the same images, which is checked.")
        elif name == "labels":  # those that are learned from are compared
            _say(f"{option} {old} -> {new}: k-NN is told by these from here on.")
        elif not free:
            raise UserError(
                f"{option} {old} -> {new} cannot be changed on resume: the steps taken so far depend on it. "
                "Start a new run instead."
            )
        elif name in ("device", "compile", "graph"):
            _say(f"{option} {old} -> {new}: results will not be bit-identical to an uninterrupted run.")
    _check_length(stored.optimizer, config.optimizer, extend, done)


def _check_length(old: OptimizerConfig, new: OptimizerConfig, extend: bool, done: int) -> None:
    """Refuse another length, unless the schedules stay as they are or it is meant."""
    option = f"--epochs {old.epochs} -> {new.epochs}"
    if new.span == old.span:
        if new.epochs < old.epochs and new.epochs <= done:
            raise UserError(f"{option} cannot be changed on resume: {done} epochs are done. Choose more.")
    elif not extend:
        what = (
            f"{option} cannot be changed"
            if new.epochs != old.epochs
            else f"--schedule-epochs {new.span} cannot be given"
        )
        raise UserError(
            f"{what} on resume: the learning rate follows a cosine over the whole run, and the epochs done so far were "
            f"those of a run of {old.span}. Add --extend to do it all the same, or start a new run."
        )
    elif new.epochs < old.epochs:
        raise UserError(
            f"--extend is for more epochs, and --epochs {new.epochs} is fewer than the run's {old.epochs}: start a new "
            "run."
        )
    elif new.epochs <= done:
        raise UserError(
            f"--schedule-epochs {new.span} would change nothing: all {done} epochs are done. Give more with --epochs."
        )
    else:
        _say(f"{option}: from here on the schedules are those of a run of {new.span} epochs.")


def _watch_port(options: Options) -> int | None:
    """Port of the live page, if one is wanted; a port that cannot be had is better known before training."""
    if not options.watch:
        if options.watch_port:
            raise UserError(f"--watch-port {options.watch_port} is the port of --watch, which was not given: add it.")
        return None
    if not 0 <= options.watch_port < 2**16:
        raise UserError(f"--watch-port must be between 0 and 65535, got {options.watch_port}.")
    if _is_first():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server itself does
            try:
                probe.bind(("127.0.0.1", options.watch_port))
            except OSError as error:
                raise UserError(
                    f"--watch-port {options.watch_port} cannot be used ({error.strerror}): choose another, or leave it "
                    "out for one that is free."
                ) from None
    return options.watch_port


def _train(config: Config, folder: RunFolder, resuming: bool, watch: int | None) -> int:
    from vje.cli.launch import train

    environment: dict[str, Any] = {"command": ["vje", *sys.argv[1:]]}
    return train(config, folder, resuming, environment, watch)
