"""What makes two texts similar, for models of sentence embeddings.

The explained number is ``cos(e(A), e(B)) = ê(A) · ê(B)`` of the sentence embeddings (or their dot product).
The tokens of A are scored with ê(B) held fixed, those of B with ê(A) held fixed. For a gradient this is
exactly the gradient of the cosine, which is the sum of the two. A is segment 0 and B segment 1.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow, apply_explain_mask
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.explaining.batches import explain_batches
from tokenlight.explaining.differences import merge_attributions
from tokenlight.explaining.explain_options import ExplainOptions, TargetedRow
from tokenlight.explaining.input_rows import check_target_kind, get_model_class_name
from tokenlight.explaining.session import Session, prepare_row, verify_model_for_rows
from tokenlight.explaining.text_result import AttributionsByMethod
from tokenlight.hooks.instrument import instrumented
from tokenlight.inputs.encode import encode_text


def explain_similarity(
    session: Session, text: Any, target: Any, options: ExplainOptions
) -> AttributionsByMethod:
    """Explain a pair of texts: one Attribution per method, over the tokens of both.

    Args:
        session: A model without a head.
        text: The two texts.
        target: The target; only the similarity itself can be explained.
        options: The methods and other keywords.
    """
    if not isinstance(text, tuple) or len(text) != 2:
        raise UnsupportedModel(
            f"{get_model_class_name(session)} has no head, so a single input has no output to explain: "
            f"{session.runner.head.usage}.",
            code="similarity-needs-pair",
        )
    check_target_kind(session, target)
    # Encode each text by itself.
    rows = []
    for part in text:
        row = encode_text(part, session.tokenizer, max_tokens=session.max_tokens, long=options.long)
        rows.append(prepare_row(session, row, options))
    first_vector, second_vector = (
        _embed_text(session, apply_explain_mask(row, options.explain_mask, session.tokenizer))
        for row in rows
    )
    # Each text is scored against the embedding of the other.
    targeted_rows: list[TargetedRow] = []
    for row, other_vector in zip(rows, (second_vector, first_vector), strict=True):
        reference = tuple(map(float, other_vector))
        targeted_rows.append((replace(row, reference_embedding=reference), "predicted"))
    verify_model_for_rows(session, [row for row, _ in targeted_rows], options.methods)
    # One batch each: a text gets the same scores whatever it is compared with.
    batches = explain_batches(session, targeted_rows, [[0], [1]], options)
    (first_by_method,), (second_by_method,) = (attributions for _, attributions in batches)
    joined: AttributionsByMethod = []
    # Each method has one Attribution per text, since a similarity has one target.
    for (first,), (second,) in zip(first_by_method, second_by_method, strict=True):
        joined.append([_join_pair(first, second)])
    return joined


def _embed_text(session: Session, row: TokenRow) -> np.ndarray:
    """Return the sentence embedding of a row, of length one if the similarity is the cosine."""
    runner = session.runner
    # The reference is required by the inputs, but only the embedding itself is used here.
    row_with_reference = replace(row, reference_embedding=(0.0,))
    inputs = runner.build_inputs([row_with_reference])
    regime = runner.batching.find_regime(row)
    with instrumented(
        runner.model, attention="unchanged", gradients=False, pad_id=inputs.pad_id, regime=regime
    ):
        outputs = runner.forward(inputs.arguments)
        vector = runner.pool_embeddings(outputs, inputs.arguments)[0].cpu().double()
    length = 1.0
    if runner.similarity == "cosine":
        length = float(torch.linalg.vector_norm(vector))
    if not length > 0:
        raise BadInput(
            f"The embedding of {row.texts[0][:40]!r} is zero, so its cosine with another text is not "
            "defined. Give another text.",
            code="zero-embedding",
        )
    return (vector / length).numpy()


def _join_pair(first: Attribution, second: Attribution) -> Attribution:
    """Join the explanations of both texts into one."""
    # Measurements that hold for one of the texts only would mislead for the pair.
    shared_extras = {}
    for name, value in first.extras.items():
        if name in second.extras and value == second.extras[name]:
            shared_extras[name] = value
    num_first = len(first.row)
    # The joined row is for display: the model reads each text by itself.
    row = first.row.concatenate(
        second.row,
        token_type_ids=(0,) * num_first + (1,) * len(second.row),
        num_truncated=first.row.num_truncated + second.row.num_truncated,
        reference_embedding=None,
        segment_names=("first text", "second text"),
    )
    extras = {**shared_extras, "similarity": {"num_first_tokens": num_first}}
    return merge_attributions(first, second, num_shared=0, sign=1.0, row=row, extras=extras)
