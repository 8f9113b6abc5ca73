"""Reading a YAML mapping from a file that may be damaged."""

from pathlib import Path

from quatrain.exporter.errors import CheckpointError
from quatrain.runtime.errors import fix_reading

__all__ = ["read_yaml_mapping"]


def read_yaml_mapping(path: Path) -> dict[str, object]:
    """Read a YAML file of plain data that holds one mapping with string keys.

    Raises:
        CheckpointError: The file cannot be read, is no YAML, holds something else, or asks for
            an object to be built.
    """
    import yaml  # here, because few checkpoints have such a file

    fix = f"restore {path.name} from the training run"
    try:
        value = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"reading {path}", error.strerror or str(error), fix_reading(error, fix)
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckpointError(f"reading {path} as plain YAML", str(error), fix) from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise CheckpointError(
            f"reading {path} as YAML", f"a {type(value).__name__}, not named settings", fix
        )
    return value
