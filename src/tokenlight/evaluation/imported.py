"""Explanations made elsewhere (captum, shap, inseq, plain arrays) as Attributions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Head, TargetLike
from tokenlight.data.tokens import TokenRow, Tokens
from tokenlight.errors import BadInput
from tokenlight.explainer import Explainer

ELSEWHERE = ("made elsewhere",)


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
    known = (ids, attention_mask, token_type_ids)
    given = [None if one is None else np.atleast_2d(_array(one)) for one in known]
    row = _only("ids", Tokens.from_ids(*given).rows)
    values = _only("logits", np.atleast_2d(_array(logits))).reshape(-1).astype(float)
    if target == "all":
        raise BadInput("target='all' is every class, and these scores speak for one; name it.")
    lengths = {"labels": len(values), "special": len(row), "pieces": len(row)}
    for (name, wanted), listed in zip(lengths.items(), (labels, special, pieces), strict=True):
        if listed is not None and len(listed) != wanted:
            raise BadInput(f"{name} has {len(listed)} entries, and {wanted} are needed.")
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
    names = tuple(labels or (f"LABEL_{i}" for i in range(len(values))))
    head = Head("classification", names)
    resolved = head.resolve("predicted" if target is None else target, values, row)[0]
    return Attribution(
        row=row,
        scores=_scores(scores, row, resolved.index or 0),
        method=method,
        target=resolved,
        prediction=head.predict(values, row),
        logits=values,
        model=model,
        notes=ELSEWHERE,
    )


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
    values = _scores(scores, found.row, found.target.index or 0)
    own = {"method": method, "options": {}, "notes": ELSEWHERE}
    made: Attribution = replace(found, scores=values, **own)
    return made


def _only(name: str, rows: Any) -> Any:
    if len(rows) != 1:
        many = f"{name} have {len(rows)} rows, and an Attribution is of one text"
        raise BadInput(f"{many}; give its row alone, and call this for each text.")
    return rows[0]


def _scores(given: Any, row: TokenRow, index: int) -> np.ndarray:
    """One number a token, from what other libraries hand out."""
    shap = hasattr(given, "values") and hasattr(given, "base_values")
    if shap:
        given = given.values
    for name in ("source_attributions", "target_attributions"):  # an inseq sequence
        if getattr(given, name, None) is not None:
            given = getattr(given, name)
            break
    values = _array(given).astype(float)
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
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    return np.asarray(values)
