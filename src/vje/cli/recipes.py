"""``vje recipes``: what can be trained by name."""

from vje.config import recipe_about, recipe_names
from vje.errors import UserError


def run(arguments: list[str]) -> int:
    """Print the recipes."""
    if arguments and arguments[0] not in ("-h", "--help"):
        raise UserError(f"`vje recipes` takes no arguments, got {' '.join(arguments)}.")
    print(recipes_table())
    print("\nvje train RECIPE --help lists every setting; a .toml file of your own may `extends` any of these.")
    return 0


def recipes_table() -> str:
    """Each recipe with what it is for."""
    names = recipe_names()
    width = max(map(len, names))
    return "\n".join(f"  {name:<{width}}  {recipe_about(name)}" for name in names)
