"""What a user can fix: every error says what was asked, what was found and what to do."""

__all__ = ["BundleError", "EngineError", "QuatrainError", "RequestError", "fix_reading"]


class QuatrainError(Exception):
    """A problem the user can fix. The command line prints it without a trace and exits 1.

    Args:
        asked: What the user (or the step on their behalf) wanted.
        found: What was there instead.
        fix: What to do about it.
    """

    def __init__(self, asked: str, found: str, fix: str) -> None:
        self.asked = asked
        self.found = found
        self.fix = fix
        super().__init__(f"asked: {asked}\nfound: {found}\nfix:   {fix}")


class BundleError(QuatrainError):
    """A bundle that is incomplete, altered, or not a bundle."""


class EngineError(QuatrainError):
    """An engine that does not fit this GPU, this TensorRT, or its manifest."""


class RequestError(QuatrainError, ValueError):
    """A prompt or a sampling parameter that cannot be served."""


def fix_reading(error: BaseException, fix: str) -> str:
    """What to do about a file that cannot be read: `fix`, unless all it takes is permission."""
    if isinstance(error, PermissionError):
        return "let the user who runs this read it, and enter the folders it is in (chmod, chown)"
    return fix
