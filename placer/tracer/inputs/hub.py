"""The configuration of a model by its name on the Hugging Face Hub, from its local cache or else from the Hub."""

from __future__ import annotations

import re

from pydantic import JsonValue

from placer.errors import UsageError
from placer.io.files import parsed_json, read_text
from placer.io.model_config import require_sense

# `organisation/model`; of the old ones without an organisation only files and folders are told apart.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = (".json", ".yaml", ".yml", ".py")


def is_hub_name(text: str) -> bool:
    """Whether `text` reads as the name of a model on the Hub."""
    return _NAME.fullmatch(text) is not None and not text.lower().endswith(_FILES)


def hub_config(name: str) -> JsonValue:
    """The config.json of the model `name`: that of the local cache where it is there, else of the Hub.

    Raises UsageError where there is none, where it is gated, and where neither can be asked.
    """
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, "config.json")
    path = cached if isinstance(cached, str) else _fetched(name)
    content = parsed_json(read_text(path, "the model"), f"the model {name}")
    require_sense(content, f"the model {name}")
    return content


def _fetched(name: str) -> str:
    """Where the Hub's config.json of `name` lies once it is in the cache."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

    try:
        return hf_hub_download(name, "config.json")
    except GatedRepoError:
        raise UsageError(
            f"the model {name} is gated on the Hub: accept its terms there and log in (hf auth login), or give the "
            "path of its config.json"
        ) from None
    except RepositoryNotFoundError:
        raise UsageError(
            f"there is no folder {name} here, and no model of that name on the Hub that this login may see; correct "
            "the name, or give the path of a config.json"
        ) from None
    except Exception as error:  # what a network says is of many kinds
        if isinstance(error, EntryNotFoundError) and not isinstance(error, FileNotFoundError):
            raise UsageError(f"the model {name} has no config.json on the Hub; give one") from None
        raise UsageError(
            f"there is no folder {name} here, the Hub cannot be asked ({type(error).__name__}), and its cache on this "
            f"machine has no config.json of {name}; where there is a network: hf download {name} config.json; or give "
            "the path of a config.json"
        ) from error
