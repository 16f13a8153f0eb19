"""Unwrap models that other libraries hold, and read the settings of sentence-transformers.

Known wrappers are ``transformers.pipeline`` and ``CrossEncoder`` and ``SentenceTransformer`` of
sentence-transformers. They are recognized by the names of their classes, so that no library need be
installed.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torch import nn
from transformers import PreTrainedModel

from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.model.head_detection import PlainForSequenceClassification
from tokenlight.model.runner import Pooling, Similarity
from tokenlight.models.embedded import resolve_path
from tokenlight.models.safety import add_offline_option, fetch_file, read_model_json

WRAPPER_CLASSES = ("Pipeline", "CrossEncoder", "SentenceTransformer")
KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")  # of a SentenceTransformer
# The names that sentence-transformers uses.
POOLING_BY_NAME: dict[str, Pooling] = {
    pooling.replace("last", "lasttoken"): pooling for pooling in get_args(Pooling)
}


class UnwrappedModel(NamedTuple):
    """A model without its wrapper.

    Attributes:
        model: The model of transformers.
        tokenizer: Its tokenizer, image processor or processor; None if inputs are token ids.
        pooling: How token vectors become one vector.
        similarity: How two vectors are compared.
    """

    model: Any
    tokenizer: Any
    pooling: Pooling
    similarity: Similarity


def unwrap_model(
    model: Any,
    tokenizer: Any,
    pooling: Pooling,
    similarity: Similarity,
    labels: Sequence[str] | None,
) -> UnwrappedModel:
    """Return the model inside a wrapper, and how it is to be used.

    Args:
        model: A model, a wrapper of one, or a plain module that reads token ids, which becomes a
            classifier.
        tokenizer: The tokenizer or processor that the user gave; by default the wrapper's.
        pooling: How token vectors become one vector, unless the wrapper says it.
        similarity: How two vectors are compared, unless the wrapper says it.
        labels: Names of the classes of a plain module.

    Raises:
        BadInput: ``labels`` were given for a transformers model.
        UnsupportedModel: The wrapper changes vectors in a way that is not known.
    """
    wrapper = _find_wrapper_class(model)
    if labels is not None and (wrapper or isinstance(model, PreTrainedModel)):
        raise BadInput(
            f"labels={list(labels)!r} name the classes of a plain torch module, but a transformers model "
            "has them in its config (id2label). Leave labels out.",
            code="labels-of-transformers-model",
        )
    if wrapper == "SentenceTransformer":
        return _unwrap_sentence_transformer(model, tokenizer, pooling)
    if wrapper is not None:
        reader = (
            tokenizer
            or getattr(model, "processor", None)
            or model.tokenizer
            or getattr(model, "image_processor", None)
        )
        return UnwrappedModel(model.model, reader, pooling, similarity)
    if _is_plain_module(model):
        model = PlainForSequenceClassification(model, labels)
    return UnwrappedModel(model, tokenizer, pooling, similarity)


def _find_wrapper_class(model: Any) -> str | None:
    """Return the name of the wrapper's class; None for a model that is not wrapped."""
    class_names = {base.__name__ for base in type(model).__mro__}
    for wrapper in WRAPPER_CLASSES:
        if wrapper in class_names:
            return wrapper
    return None


def _unwrap_sentence_transformer(model: Any, tokenizer: Any, pooling: Pooling) -> UnwrappedModel:
    name = type(model).__name__
    modules = {type(module).__name__: module for module in model}
    if "Pooling" in modules:
        pooling = _resolve_pooling(modules["Pooling"].get_config_dict(), name)
    similarity_name = getattr(model, "similarity_fn_name", None)
    similarity = _resolve_similarity(list(modules), similarity_name, name)
    return UnwrappedModel(model[0].auto_model, tokenizer or model.tokenizer, pooling, similarity)


def _is_plain_module(model: Any) -> bool:
    """Return whether a model is a torch module that neither transformers nor peft made."""
    if not isinstance(model, nn.Module):
        return False
    if isinstance(model, PreTrainedModel) or hasattr(model, "peft_config"):
        return False
    # torch.compile and DataParallel wrap a model as well; ModelRunner accepts or refuses these.
    inner = getattr(model, "_orig_mod", getattr(model, "module", None))
    return not isinstance(inner, PreTrainedModel)


def read_embedding_config(name: str, **hub_options: Any) -> tuple[Pooling, Similarity, int | None]:
    """Read how a model without a head makes one vector of a text.

    Args:
        name: A folder or a hub id.
        hub_options: Where the files of a hub id are.

    Returns:
        Pooling, similarity, and the most tokens that the model reads. Without any such file: the mean, the
        cosine and no limit.

    Raises:
        UnsupportedModel: The files ask for something that tokenlight does not do.
    """
    folder_or_id = resolve_path(name)
    if not Path(folder_or_id).is_dir():
        hub_options = add_offline_option(hub_options)
    module_paths: dict[str, str] = {}
    for module in _read_optional_json(folder_or_id, "modules.json", hub_options, list):
        module_class = str(module["type"]).rpartition(".")[2]
        module_paths[module_class] = module["path"]
    settings = _read_optional_json(folder_or_id, "sentence_bert_config.json", hub_options)
    if settings.get("do_lower_case"):
        raise UnsupportedModel(
            f"sentence_bert_config.json of {name} lower-cases texts, which tokenlight does not do. Set "
            "do_lower_case in the tokenizer instead.",
            code="sentence-lower-case",
        )
    pooling_file = f"{module_paths.get('Pooling', '1_Pooling')}/config.json"
    pooling_config = _read_optional_json(folder_or_id, pooling_file, hub_options)
    pooling: Pooling = _resolve_pooling(pooling_config, name) if pooling_config else "mean"
    library_config = _read_optional_json(
        folder_or_id, "config_sentence_transformers.json", hub_options
    )
    similarity_name = library_config.get("similarity_fn_name")
    similarity = _resolve_similarity(list(module_paths), similarity_name, name)
    return pooling, similarity, settings.get("max_seq_length")


def _read_optional_json(
    folder_or_id: str, file_name: str, hub_options: dict[str, Any], expected_type: type = dict
) -> Any:
    """Return the content of a JSON file of a model; empty if there is none."""
    path = fetch_file(folder_or_id, file_name, hub_options)
    return {} if path is None else read_model_json(path, expected_type)


def _resolve_similarity(modules: list[str], similarity_name: object, name: str) -> Similarity:
    """Return how two vectors are compared.

    Args:
        modules: Classes of the modules that compute a vector.
        similarity_name: The name that sentence-transformers uses; None for its default.
        name: The model, for messages.
    """
    for module in modules:
        if module not in KNOWN_MODULES:
            raise UnsupportedModel(
                f"{name} has a {module} module after its pooling, which tokenlight does not know. Give a "
                "model with only Transformer, Pooling and Normalize modules.",
                code="sentence-module-unknown",
            )
    if similarity_name not in (None, "cosine", "dot", "dot_score"):
        raise UnsupportedModel(
            f"{name} compares vectors by {similarity_name}, but tokenlight knows only the cosine and the "
            "dot product. Give a model that uses one of them.",
            code="sentence-similarity-unknown",
        )
    # The dot product of vectors of length one is their cosine.
    is_cosine = similarity_name in (None, "cosine") or "Normalize" in modules
    return "cosine" if is_cosine else "dot"


def _resolve_pooling(config: Mapping[str, Any], name: str) -> Pooling:
    """Return the one pooling that a configuration of sentence-transformers asks for."""
    # Since sentence-transformers 6, one field holds a name or a list of names.
    modes = config.get("pooling_mode", ())
    modes = [modes] if isinstance(modes, str) else list(modes)
    if not modes:
        # Before, there was one boolean field per mode, such as pooling_mode_mean_tokens.
        for field, value in sorted(config.items()):
            mode = field.removeprefix("pooling_mode_")
            if value is True and mode != "include_prompt":
                modes.append(re.sub("_tokens?$", "", mode))
    if len(modes) != 1 or modes[0] not in POOLING_BY_NAME:
        raise UnsupportedModel(
            f"{name} pools its tokens by {' and '.join(map(str, modes)) or 'nothing'}, but tokenlight knows "
            f"only {', '.join(POOLING_BY_NAME)}. Load the model yourself and give Explainer(…, pooling=…).",
            code="sentence-pooling-unknown",
        )
    return POOLING_BY_NAME[modes[0]]
