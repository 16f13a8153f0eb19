"""A model with its tokenizer: limits, checks, and the rows and batches it reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

from tokenlight.data.notes import PAIR_NOTE
from tokenlight.data.tokens import TokenRow, apply_explain_mask
from tokenlight.errors import BadInput, UnsupportedModel, check_choice
from tokenlight.errors.arguments import checked
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.methods.base import Method
from tokenlight.model.runner import ModelRunner, Pooling, Similarity
from tokenlight.models.wrappers import unwrap_model
from tokenlight.trace.record import verify_model_for_sites
from tokenlight.trace.sites import EMBEDDING_SITES, join_sites

# Tokenizers without a limit report a number such as 1e30.
UNLIMITED_TOKENS = 1 << 30
# Embedded models that never saw two texts.
SINGLE_TEXT_MODELS = ("tokenlight/sentiment", "tokenlight/topics")
# Beginnings of words for how two texts relate, as in "entailment", "not_duplicate" or "paraphrase".
PAIR_LABEL_ROOTS = (
    "entail",
    "contradict",
    "duplicate",
    "paraphras",
    "equivalen",
    "relevan",
    "similar",
)


@dataclass(slots=True)
class ModelFacts:
    """What the packages of tokenlight know or have found out about one loaded model.

    Attributes:
        processor: The processor of a model that reads images and text, which holds the tokenizer.
        notes: Notes for every explanation, such as that the weights were dequantized.
        default_methods: Kind of input to the method that ``method="auto"`` chose for it.
        search_bounds: Bounds that the searches of metrics found on this model, by metric, text and target.
        batches_gradients: Whether one backward pass over a batch of gradients gives what single ones give;
            None until it was tried.
    """

    processor: Any = None
    notes: tuple[str, ...] = ()
    default_methods: dict[str, str] = field(default_factory=dict)
    search_bounds: dict[Any, Any] = field(default_factory=dict)
    batches_gradients: bool | None = None


class Session:
    """One loaded model with its tokenizer and limits, as the functions of this package take it.

    Explainer is the session that users meet.

    Attributes:
        runner: Every pass over the model goes through it. The packages of tokenlight use it; its methods
            are not promised to users.
        model: The model that is explained, as it was given.
        tokenizer: Its tokenizer or image processor; None if inputs are token ids.
        name: The name that results carry.
        facts: What is known of the model besides; as little promised to users.
    """

    @checked
    def __init__(  # noqa: PLR0913 - the keywords users set, each by name
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        name: str | None = None,
        pooling: Pooling = "mean",
        similarity: Similarity = "cosine",
        labels: Sequence[str] | None = None,
        cuda_graph_bytes: int | None = None,
    ) -> None:
        """Prepare a model for explanations.

        Args:
            model: A model of transformers; an object that holds one (a pipeline, a CrossEncoder, a
                SentenceTransformer); or a torch module that classifies token ids.
            tokenizer: Its tokenizer; the image processor of an image model, the processor of a model
                that reads images and text. None: inputs are token ids.
            name: The name that results carry; by default that of the model's config.
            pooling: How a model without head makes one embedding of a text.
            similarity: How two such embeddings are compared.
            labels: The names of the classes of a torch module.
            cuda_graph_bytes: GPU memory that captured passes may take; 0 captures none.

        Raises:
            BadInput: An argument is not valid.
            UnsupportedModel: The model has a head or a structure that cannot be explained correctly.
        """
        check_choice("pooling", pooling, get_args(Pooling))
        check_choice("similarity", similarity, get_args(Similarity))
        unwrapped = unwrap_model(model, tokenizer, pooling, similarity, labels)
        model, tokenizer, pooling, similarity = unwrapped
        self.facts = ModelFacts()
        if hasattr(tokenizer, "image_processor"):
            # A processor of images and text holds the tokenizer.
            self.facts.processor = tokenizer
            tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        if cuda_graph_bytes is not None and cuda_graph_bytes < 0:
            raise BadInput(
                f"cuda_graph_bytes={cuda_graph_bytes} is not valid: it is a number of bytes of at least 0. "
                "Give 0 to capture no CUDA graphs.",
                code="graph-bytes",
            )
        self.runner = ModelRunner(model, tokenizer, pooling, similarity, cuda_graph_bytes)
        self.model = model
        self.tokenizer = tokenizer
        config_name = str(getattr(self.runner.model.config, "_name_or_path", ""))
        self.name = name or config_name or type(self.runner.model).__name__

    @cached_property
    def max_tokens(self) -> int | None:
        """The longest text this model reads, special tokens included; None if there is no limit."""
        limits = []
        for limit in (self.runner.max_tokens, getattr(self.tokenizer, "model_max_length", None)):
            if limit is not None and 0 < limit < UNLIMITED_TOKENS:
                limits.append(limit)
        return min(limits, default=None)

    @cached_property
    def _num_token_types(self) -> int | None:
        """The number of token types the model has embeddings for; None if it reads none."""
        if "token_type_ids" not in self.runner.forward_parameters:
            return None
        config = self.runner.model.config.get_text_config()
        return int(getattr(config, "type_vocab_size", self.runner.vocab_size)) or None


def find_pad_id(session: Session) -> int | None:
    """Return the id of padding: the model's, else the tokenizer's."""
    if session.runner.pad_id is not None:
        return session.runner.pad_id
    return getattr(session.tokenizer, "pad_token_id", None)


def verify_model_for_rows(
    session: Session, rows: Sequence[TokenRow], methods: Sequence[Method]
) -> None:
    """Verify that the model computes what it should, before its first use by such methods.

    One row is used for each way in which the model computes texts of different lengths.

    Args:
        session: The model to verify.
        rows: Rows that will be explained; one is tried per way in which the model computes lengths.
        methods: The methods, for what they read of the model.

    Raises:
        UnsupportedModel: The recorded values would be wrong, or a method cannot read this model.
    """
    if session.runner.generates_from_source:
        _check_encoder_decoder_support(session, methods)
    sites = join_sites(method.recorded_sites for method in methods)
    verify_model_for_sites(session.runner, rows, sites)


def _check_encoder_decoder_support(session: Session, methods: Sequence[Method]) -> None:
    for method in methods:
        reads_layers = bool(method.needs - EMBEDDING_SITES)
        if reads_layers and not method.supports_encoder_decoder:
            raise UnsupportedModel(
                f"{method.name} does not support {type(session.runner.model).__name__}, which has an "
                "encoder and a decoder. Use integrated_gradients, attnlrp, attcat, gae or occlusion.",
                code="method-without-encoder-decoder",
            )


def prepare_row(session: Session, row: TokenRow, options: ExplainOptions) -> TokenRow:
    """Return the row as this model reads it under the options.

    Args:
        session: The model and its tokenizer.
        row: The row as it was encoded.
        options: How token types and special tokens are treated.

    Raises:
        BadInput: The explain mask hides every token, or the model has no embedding for one.
    """
    if options.token_types == "zeros" and row.token_type_ids is not None:
        row = replace(row, token_type_ids=(0,) * len(row))
    eos_ids = session.runner.eos_ids
    # An end token counts as special, even if it was written into the text.
    if eos_ids:
        special_tokens_mask = []
        for is_special, token_id in zip(row.special_tokens_mask, row.ids, strict=True):
            special_tokens_mask.append(is_special or token_id in eos_ids)
        row = replace(row, special_tokens_mask=tuple(special_tokens_mask))
    if not any(apply_explain_mask(row, options.explain_mask, session.tokenizer).attention_mask):
        raise BadInput(
            "Every token of the text is masked, so none is left to explain. Give a longer text, or "
            "another explain_mask.",
            code="all-tokens-masked",
        )
    check_ids_in_vocabulary(session, row)
    return row


def check_ids_in_vocabulary(session: Session, row: TokenRow) -> None:
    """Refuse token ids and token types that the model has no embedding for."""
    session.runner.check_ids(min(row.ids), max(row.ids))
    token_types = row.token_type_ids or (0,)
    lowest = min(token_types)
    highest = max(token_types)
    num_types = session._num_token_types
    if num_types is not None and not 0 <= lowest <= highest < num_types:
        raise BadInput(
            f"token_type_ids run from {lowest} to {highest}, but this model knows 0 to "
            f"{num_types - 1}. Use the tokenizer it was trained with, or token_types='zeros'.",
            code="unknown-token-type",
        )


def describe_pair_warning(session: Session) -> str | None:
    """Say that a model was trained on single texts, or that nobody can tell; None for a model of pairs.

    A classifier computes something for any two texts. Its weights do not show whether it learned from pairs;
    the names of its labels often do.
    """
    if session.name in SINGLE_TEXT_MODELS:
        return (
            f"{PAIR_NOTE}{session.name} was trained on single texts, so its answer to two says little. "
            "Give them to a model that was fine-tuned on pairs"
        )
    labels = [str(label).casefold() for label in session.runner.head.labels]
    names_relation = any(root in label for label in labels for root in PAIR_LABEL_ROOTS)
    if names_relation or len(labels) <= 1:
        return None
    return (
        f"{PAIR_NOTE}nothing shows whether this model was trained on pairs. If it reads single texts, its "
        "answer to two says little"
    )


def list_row_notes(session: Session, row: TokenRow) -> tuple[str, ...]:
    """Return notes on a text: what was cut off, what the model does not know."""
    notes = []
    if row.num_truncated:
        num_tokens = row.num_truncated + len(row)
        notes.append(f"{row.num_truncated} of {num_tokens} tokens were truncated (long='truncate')")
    if len(row.texts) == 2 and session.runner.head.task == "text-classification":
        pair_warning = describe_pair_warning(session)
        if pair_warning is not None:
            notes.append(pair_warning)
    num_unknown = row.ids.count(getattr(session.tokenizer, "unk_token_id", None))
    if num_unknown and row.texts:
        notes.append(f"{num_unknown} of {len(row)} tokens are not in the model's vocabulary")
    return tuple(notes)
