"""Which tokens of two texts made them alike: the cosine (or dot product) of their sentence embeddings.

``cos(e(A), e(B)) = ê(A) · ê(B)``. The tokens of A are scored with ê(B) held fixed, those of B with
ê(A) held fixed: for a gradient this is exactly the gradient of the cosine, since it is the sum of
the two. Both stand in one Attribution, A as segment 0 and B as segment 1.
"""

import dataclasses
from typing import Any

import numpy as np
import torch

from tokenlight.capture.rewired import rewired
from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.explaining.batch import explain_rows
from tokenlight.explaining.jobs import check_target, name_of
from tokenlight.explaining.options import How
from tokenlight.explaining.session import Session
from tokenlight.inputs.encode import encode


def explain_likeness(session: Session, text: Any, target: Any, how: How) -> list[Attribution]:
    """One Attribution a method, over the tokens of both texts."""
    head = session.live.head
    if not isinstance(text, tuple) or len(text) != 2:
        raise UnsupportedModel(
            f"{name_of(session)} has no head, so one input alone has no output to explain: "
            f"{head.does}, or load a model fine-tuned with a head."
        )
    check_target(session, target)
    tokenizer, limit = session.tokenizer, session.max_tokens
    rows = [
        session.prepared(encode(part, tokenizer, limit=limit, long=how.long), how) for part in text
    ]
    vectors = _vectors(session, [session.masked(row, how) for row in rows])
    anchored = [
        dataclasses.replace(row, anchor=tuple(map(float, vector)))
        for row, vector in zip(rows, reversed(vectors), strict=True)
    ]
    session.verify(anchored[0], how)
    # Each alone: a text gives the same scores whatever it is compared beside.
    first, second = (explain_rows(session, [row], ["predicted"], how)[0] for row in anchored)
    return [_both(a, b) for a, b in zip(first, second, strict=True)]


def _vectors(session: Session, rows: list[TokenRow]) -> list[np.ndarray]:
    """The sentence embedding of each row, of length one for a cosine."""
    live = session.live
    found = []
    for row in rows:
        nothing = dataclasses.replace(row, anchor=(0.0,))  # only the vector itself is read
        arguments, _, filler = live.inputs([nothing])
        with rewired(live.model, attention="own", gradients=False, filler=filler):
            vector = live.pooled(live.call(arguments), arguments)[0].cpu().double()
        length = float(torch.linalg.vector_norm(vector)) if live.similarity == "cosine" else 1.0
        if not length > 0:
            raise BadInput(f"the embedding of {row.texts[0][:40]!r} is zero; it is like nothing.")
        found.append((vector / length).numpy())
    return found


def _both(first: Attribution, second: Attribution) -> Attribution:
    """The two halves side by side; layers that differ in number never do, it is one model."""
    layers = None
    if first.layers is not None and second.layers is not None:
        layers = np.concatenate([first.layers, second.layers], axis=1)
    shared = {k: v for k, v in first.extras.items() if k in second.extras and v == second.extras[k]}
    return dataclasses.replace(
        first,
        row=first.row.joined(
            second.row,  # for reading; no model ever read them so
            token_types=(0,) * len(first.row) + (1,) * len(second.row),
            cut=first.row.cut + second.row.cut,
            anchor=None,
            names=("first text", "second text"),
        ),
        scores=np.concatenate([first.scores, second.scores]),
        layers=layers,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
        extras={**shared, "likeness": {"border": len(first.row)}},
    )
