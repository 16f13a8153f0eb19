"""Explanations made elsewhere (captum, shap, inseq, plain arrays) as Attributions.

What is measured and drawn is an Attribution; where its scores come from does not matter.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.capture.perturbation import stream_logits
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Head, TargetLike
from tokenlight.data.tokens import TokenRow, Tokens
from tokenlight.errors import BadInput
from tokenlight.explainer import Explainer


def from_arrays(  # noqa: PLR0913 - one keyword a recorded fact
    scores: Any,
    ids: Any,
    logits: Any,
    *,
    target: int | str | None = None,
    labels: Sequence[str] | None = None,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    special: Sequence[bool] | None = None,
    pieces: Sequence[str] | None = None,
    method: str = "elsewhere",
    model: str = "",
) -> Attribution:
    """One text's scores, token ids and class logits as an Attribution.

    ``scores``: one a token; with a hidden axis behind (captum's embedding attributions) it is summed.
    ``target``: the class the scores speak for, default the predicted one. ``special``: which tokens
    are [CLS], [SEP] and the like, never removed when faithfulness is measured.
    """
    rows = Tokens.from_ids(*map(_line, (ids, attention_mask, token_type_ids))).rows
    values = _array(logits)
    for name, count in (("ids", len(rows)), ("logits", values.size // max(1, values.shape[-1]))):
        if count != 1:
            raise BadInput(
                f"{name} have {count} rows, and an Attribution is of one text; give its row alone, and "
                "call this for each text."
            )
    values = values.reshape(-1)
    if target == "all":
        raise BadInput("target='all' is every class, and these scores speak for one; name it.")
    names = tuple(labels) if labels is not None else tuple(f"LABEL_{i}" for i in range(len(values)))
    if len(names) != len(values):
        raise BadInput(f"{len(names)} labels were given for {len(values)} logits.")
    row = rows[0]
    for name, given in (("special", special), ("pieces", pieces)):
        if given is not None and len(given) != len(row):
            raise BadInput(f"{name} has {len(given)} entries for {len(row)} tokens.")
    if special is not None:
        row = replace(row, special=tuple(map(bool, special)))
    row = row if pieces is None else replace(row, pieces=tuple(pieces))
    # Tokens hidden at an end, unless they are special ones that an explanation pass masks.
    hidden = [not seen and not own for seen, own in zip(row.attention, row.special, strict=True)]
    if hidden[0] or hidden[-1]:
        raise BadInput(
            f"attention_mask hides {sum(hidden)} of {len(row)} tokens up to an end of the text: that is "
            "padding, which no explanation holds; cut it off ids, scores and mask. Special tokens that "
            "are masked on purpose are named by special=…"
        )
    head = Head("classification", names)
    asked = "predicted" if target is None else target
    return _made(head, row, scores, values, asked, method, model)


def adopted(
    explainer: Explainer,
    text: Any,
    scores: Any,
    *,
    target: TargetLike = "predicted",
    method: str = "elsewhere",
) -> Attribution:
    """Scores of a text made elsewhere, as an Attribution of this explainer's model.

    ``scores``: an array with one number a token, with or without special tokens; captum's
    ``token hidden`` attributions; a shap Explanation of one text; an inseq attribution.
    """
    found = explainer.explain(text, method="random", target=target, progress=False)
    if isinstance(found, list):
        raise BadInput("one text and one target make one explanation; adopt them one by one.")
    row, head, logits = found.row, explainer.live.head, found.logits
    if head.kind == "span":
        logits = next(iter(stream_logits(explainer.live, [row])))
    return _made(head, row, scores, logits, target, method, explainer.name)


def _made(  # noqa: PLR0913, PLR0917 - one argument a recorded fact
    head: Head,
    row: TokenRow,
    scores: Any,
    logits: np.ndarray,
    target: Any,
    method: str,
    model: str,
) -> Attribution:
    resolved = head.resolve(target, logits, row)
    return Attribution(
        row=row,
        scores=_scores(scores, row, resolved[0].index or 0),
        method=method,
        target=resolved[0],
        prediction=head.predict(logits, row),
        logits=logits.T.ravel() if logits.ndim == 2 else logits,
        model=model,
        notes=("made elsewhere",),
    )


def _scores(given: Any, row: TokenRow, index: int) -> np.ndarray:
    """One number a token, from what other libraries hand out."""
    shap = hasattr(given, "values") and hasattr(given, "base_values")
    if shap:
        given = given.values
    for name in ("source_attributions", "target_attributions"):  # an inseq sequence
        if getattr(given, name, None) is not None:
            given = getattr(given, name)
            break
    values = _array(given)
    while values.ndim > 1 and values.shape[0] == 1:
        values = values[0]
    if values.ndim == 2:  # shap has a column a class; captum a column a hidden feature
        values = values[:, index] if shap else values.sum(axis=1)
    if values.ndim == 1 and len(values) != len(row):
        plain = [i for i, special in enumerate(row.special) if not special]
        if len(values) == len(plain):
            filled = np.zeros(len(row))
            filled[plain] = values
            return filled
        raise BadInput(
            f"{len(values)} scores were given, but the text has {len(row)} tokens ({len(plain)} "
            f"without special ones): {' '.join(row.pieces[:12])} …; give one score a token."
        )
    return values


def _array(values: Any) -> np.ndarray:
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    return np.asarray(values, dtype=np.float64)


def _line(values: Any) -> Any:
    """A 1-D array as a table of one row; None is None."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return values if values is None else np.atleast_2d(np.asarray(values))
