"""The one error that a user's input can raise."""


class InputError(ValueError):
    """Input that cannot be used: what, got, expected, where, and what to do, in one line.

    The command line prints it and ends with exit code 2; nothing is written before it is raised.
    """

    def __init__(self, what: str, *, got: object, expected: str, where: object, do: str) -> None:
        self.what = what
        super().__init__(f"{what}: got {got}, expected {expected}, in {where}; {do}")
