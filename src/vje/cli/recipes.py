"""``vje recipes``: what can be trained by name."""

from vje.errors import UserError
from vje.methods import method_names
from vje.recipes import method_about, recipe_about, recipe_names

WIDTH = 14


def run(arguments: list[str]) -> int:
    """Print the recipes."""
    if arguments and arguments[0] not in ("-h", "--help"):
        raise UserError(f"`vje recipes` takes no arguments, got {' '.join(arguments)}.")
    print(recipes_table())
    print("\nmethods, for any of them: vje train RECIPE --method NAME, or RECIPE-NAME, such as cifar10-simsiam\n")
    print("\n".join(f"  {name:<{WIDTH}}  {method_about(name)}" for name in method_names()))
    print("\nvje train RECIPE --help lists every setting; a .toml file of your own may `extends` any of these.")
    return 0


def recipes_table() -> str:
    """Each recipe with what it is for."""
    return "\n".join(f"  {name:<{WIDTH}}  {recipe_about(name)}" for name in recipe_names())
