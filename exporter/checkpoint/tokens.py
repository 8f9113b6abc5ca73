"""The tokenizer files of a checkpoint and its special tokens."""

from dataclasses import dataclass
from pathlib import Path

from quatrain.exporter.checkpoint.backbone import ARCHITECTURES, read_base_model_type
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.json_file import read_json_object

__all__ = ["TokenSettings", "read_token_settings"]

_TOKENIZER = "tokenizer.json"
_BESIDE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
# transformers' tokenizers of this name put BOS first unless told otherwise.
_ADDS_BOS = ("LlamaTokenizer", "LlamaTokenizerFast")


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """`tokenizer_files` is empty where there is no tokenizer.json."""

    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos_token: bool
    tokenizer_files: tuple[Path, ...]


def read_token_settings(folder: Path, config: Fields) -> TokenSettings:
    """Read what ends a text, what begins it, and which files turn it into tokens.

    Generation ends at any EOS token of config.json or generation_config.json: the latter often
    has the end of a chat turn, the former the end of a document.

    Raises:
        CheckpointError: One of the files is damaged or malformed.
    """
    generation = _read_if_there(folder / "generation_config.json")
    tokenizer = _read_if_there(folder / "tokenizer_config.json")
    eos = dict.fromkeys(config.integers("eos_token_id") + generation.integers("eos_token_id"))
    bos = config.integers("bos_token_id") or generation.integers("bos_token_id")
    default = ARCHITECTURES[read_base_model_type(config)]
    if not eos and not config.has_key("eos_token_id") and default.eos_token_id is not None:
        eos = dict.fromkeys([default.eos_token_id])
    if not bos and not config.has_key("bos_token_id") and default.bos_token_id is not None:
        bos = (default.bos_token_id,)
    files = [folder / name for name in (_TOKENIZER, *_BESIDE) if (folder / name).is_file()]
    return TokenSettings(
        eos_token_ids=tuple(eos),
        bos_token_id=bos[0] if bos else None,
        add_bos_token=tokenizer.flag(
            "add_bos_token", tokenizer.text("tokenizer_class", "") in _ADDS_BOS
        ),
        tokenizer_files=tuple(files) if (folder / _TOKENIZER).is_file() else (),
    )


def _read_if_there(path: Path) -> Fields:
    return Fields(read_json_object(path) if path.exists() else {}, str(path))
