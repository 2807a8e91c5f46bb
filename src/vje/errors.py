"""Mistakes that are the user's to mend."""


class UserError(Exception):
    """What was wrong, the offending value, and what to do: the command line prints it without a traceback."""
