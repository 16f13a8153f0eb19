"""``method="auto"``: one of the most faithful methods measured for this kind of input, and why.

Only ``default.json``, written by ``benchmarks/default_method.py``, decides, never the clock or the text.
A model that the method does not support gets integrated gradients, which need only a gradient.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight.data.notes import AUTO_NOTE, FALLBACK_NOTE
from tokenlight.data.target import TargetLike, TokenTarget
from tokenlight.data.tokens import Question, TokenRow
from tokenlight.errors import TokenlightError
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.explaining.input_rows import encode_input
from tokenlight.explaining.method_support import supports_method
from tokenlight.explaining.session import Session
from tokenlight.files.tables import Example
from tokenlight.inputs.picture import Picture
from tokenlight.methods.base import Method

AUTO_METHOD = "auto"
KIND_DESCRIPTIONS = {
    "text": "a text",
    "pair": "a pair of texts",
    "span": "an answer in a context",
    "mask": "a masked word",
    "next": "the next token",
    "cosine": "the similarity of two texts",
    "image": "an image",
}
# The metric by which methods were compared; AOPC for the kinds that are not listed.
KIND_METRICS = {"image": "insertion − deletion", "cosine": "drop in the cosine"}
KIND_OF_TASK = {
    "question-answering": "span",
    "text-generation": "next",
    "fill-mask": "mask",
    "sentence-similarity": "cosine",
    "image-classification": "image",
}
NUM_RECOMMENDED = 5
SAMPLE_SENTENCE = "The plot is thin, yet the cast makes it a joy to watch."
SAMPLE_QUESTION = "Who makes it a joy to watch?"


def is_auto(method: Any) -> bool:
    """Return whether ``method`` asks for the default: ``"auto"``, or the pair ``("auto", {})``."""
    return isinstance(method, str | tuple) and method in (AUTO_METHOD, (AUTO_METHOD, {}))


@cache
def load_measured_results(name: str = "default.json") -> dict[str, Any]:
    """Load measured results: ``kinds`` (method, texts, means) and the ``fallback`` method."""
    path = Path(__file__).with_name(name)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def detect_input_kind(session: Session, example: Any) -> str:
    """Return the kind of an input as the table of defaults names it."""
    head = session.runner.head
    # Most tasks read one kind of input; classifiers read texts and pairs.
    if head.task in KIND_OF_TASK:
        return KIND_OF_TASK[head.task]
    text = getattr(example, "text", example)
    return "pair" if isinstance(text, tuple) else "text"


def list_candidate_methods(kind: str, session: Session | None = None) -> tuple[str, ...]:
    """Return the default methods for a kind of input, the preferred one first."""
    table = load_measured_results()
    preferred = table["kinds"][kind]["method"]
    fallback = table["fallback"]
    # Relevance methods have no rules for a decoder that reads an encoder.
    if session is not None and session.runner.model.config.is_encoder_decoder:
        return (fallback,)
    return tuple(dict.fromkeys((preferred, fallback)))


def choose_default_method(session: Session, kind: str, example: Any) -> str:
    """Return the first candidate for this kind of input that the model supports.

    The choice is made once per kind of input.

    Args:
        session: The model, its tokenizer and its limits.
        kind: The kind of input, from :func:`detect_input_kind`.
        example: An input of this kind; the model is asked on a short row like it.

    Returns:
        The name of the method.
    """
    if kind in session.facts.default_methods:
        return session.facts.default_methods[kind]
    # The last candidate is not asked for: it raises its own error if it is not supported.
    *preferred_names, last_name = list_candidate_methods(kind, session)
    row = encode_probe_row(session, example)
    if row is None:
        return (*preferred_names, last_name)[0]
    chosen_name = last_name
    for name in preferred_names:
        method = Method.build_for_model(name, {}, seed=0, model=session.runner.model)
        if supports_method(session, method, row):
            chosen_name = name
            break
    session.facts.default_methods[kind] = chosen_name
    return chosen_name


def encode_probe_row(session: Session, example: Any) -> TokenRow | None:
    """Return the row of an input of any length, to ask what the model supports.

    None if the input itself is refused, which the call proper reports, whatever the method.
    """
    text = example.text if isinstance(example, Example) else example
    try:
        return encode_input(session, text, _probe_options(session))
    except TokenlightError:
        return None


def _probe_options(session: Session) -> ExplainOptions:
    """Return options under which an input of any length is encoded."""
    return ExplainOptions(
        methods=(),
        explain_mask="none",
        token_types="tokenizer",
        long="truncate",
        seed=0,
        batch_tokens=session.runner.default_batch_tokens,
        progress=False,
    )


def describe_choice(kind: str, method: str, *, is_fallback: bool) -> str:
    """Say in one line why this method was chosen."""
    means = load_measured_results()["kinds"][kind]["means"]
    if is_fallback:
        preferred = list_candidate_methods(kind)[0]
        return f"{FALLBACK_NOTE}{method}, since {preferred} does not support this model"
    # Methods that measure nearly alike may give way to a cheaper one.
    highest = max(means.values())
    ties = [name for name, mean in means.items() if mean == highest and name != method]
    rank = "the most" if means[method] == highest else "among the most"
    if ties and means[method] == highest:
        rank = f"tied with {' and '.join(ties)} for the most"
    return (
        f"{AUTO_NOTE}{method}, {rank} faithful of {len(means) - 1} methods measured for "
        f"{KIND_DESCRIPTIONS[kind]} ({KIND_METRICS.get(kind, 'AOPC')} {means[method]:.2f}; "
        f"random {means['random']:.2f})"
    )


def load_leaderboard() -> dict[str, Any]:
    """Load what ``benchmarks/leaderboard.py`` measured on texts: ``texts``, ``means`` (AOPC), ``ranks``."""
    return load_measured_results("leaderboard.json")


def recommend_methods() -> dict[str, float]:
    """Return the five methods that measured best on texts, the best first, with their mean AOPC."""
    leaderboard = load_leaderboard()
    means = leaderboard["means"]
    ranks = leaderboard["ranks"]
    names = sorted(means, key=lambda name: (ranks[name][0], -means[name]))
    # Random scores are the control of the comparison, not a recommendation.
    names.remove("random")
    return {name: means[name] for name in names[:NUM_RECOMMENDED]}


def make_sample_input(session: Session) -> tuple[Any, TargetLike]:
    """Return a short input of the kind this model reads, and a target for it.

    If the model refuses this input, it refuses every input.
    """
    head = session.runner.head
    if head.task == "question-answering":
        return Question(question=SAMPLE_QUESTION, context=SAMPLE_SENTENCE), "predicted"
    if head.task == "fill-mask":
        mask_token = getattr(session.tokenizer, "mask_token", None) or ""
        return SAMPLE_SENTENCE.replace("thin", mask_token), "predicted"
    if head.task == "token-classification":
        return SAMPLE_SENTENCE, TokenTarget("cast")
    if head.task == "image-classification" or session.runner.vision_inputs is not None:
        prompt = None if head.task == "image-classification" else SAMPLE_SENTENCE
        return Picture(_make_sample_image(), text=prompt), head.default_target
    if head.task == "sentence-similarity":
        return (SAMPLE_SENTENCE, SAMPLE_QUESTION), "predicted"
    return SAMPLE_SENTENCE, head.default_target


def _make_sample_image() -> np.ndarray:
    """Return an image of 64 × 64 pixels with diagonal color gradients."""
    ramp = np.arange(0, 128, 2)
    shades = np.add.outer(ramp, ramp)
    colors = np.stack([shades, 255 - shades, shades // 2], axis=2)
    return colors.astype("u1")
