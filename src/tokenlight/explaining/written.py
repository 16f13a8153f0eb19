"""The tokens of a continuation, each explained from those before it: one forward for all of them.

No token of a causal model sees those behind it, so the logits of a whole text are those of each of its
beginnings, and so are gradients at its embeddings. A row for every token would cost a forward each.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tokenlight.capture.recording import record
from tokenlight.capture.tape import Site, Sites
from tokenlight.capture.turns import pause
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import NextToken
from tokenlight.explaining.batch import BatchColumns, shared_by
from tokenlight.explaining.options import How, Job
from tokenlight.explaining.scores import queued_by
from tokenlight.explaining.session import Session
from tokenlight.methods._method import Method

# What methods may read for their scores to be the same; attention received, for one, is a mean over all.
ALIKE = frozenset({Site.EMBEDDED, Site.EMBEDDED_GRADIENT, Site.RELEVANCE_GRADIENT})


def share_a_forward(session: Session, asked: Sequence[Job], how: How) -> bool:
    """Whether these are beginnings of one text, and every method reads what beginnings have in common. What
    stands behind a token is padding to it: a model that is not proof against that gets a row for each."""
    if len(asked) < 2:
        return False
    whole = asked[-1][0]
    begun = all(isinstance(target, NextToken) and row.texts == whole.texts for row, target in asked)
    alike = all(map(reads_alike, how.methods))
    plain = whole.image is None and how.explain_mask == "none"
    if not (begun and alike and plain):
        return False
    session.verify(whole, how)
    return session.live.padding_proof


def reads_alike(method: Method) -> bool:
    """Whether its scores come from the one recorded pass, and from what beginnings have in common."""
    return bool(method.needs) and method.sites <= ALIKE and method.cost(1).forwards == 1


def explain_written(session: Session, jobs: Sequence[Job], how: How) -> list[Attribution]:
    """Method by method an Attribution for each token: by one forward, and one backward a token, one by one:
    batched (``is_grads_batched``) they were no faster."""
    rows, targets = zip(*jobs, strict=True)
    whole, head = rows[-1], session.live.head
    places = replace(whole, asked=tuple(len(row) - 1 for row in rows))
    sites: Sites = frozenset().union(*(method.sites for method in how.methods))
    recording = record(session.live, [places], sites, budget=how.batch_tokens)
    logits = list(recording.read[0])
    resolved = [head.resolve(*one)[0] for one in zip(targets, logits, rows, strict=True)]
    found = []
    for number, target in enumerate(resolved):
        terms = tuple(((number, *place), weight) for place, weight in target.terms)
        last = number == len(rows) - 1
        tape = recording.tape([replace(target, terms=terms)], last=last)
        found.append([one.arrived([whole])[0][0] for one in queued_by(how.methods, tape)])
        for check in tape.checks:
            check(tape.targets)
        pause()
    seen = session, rows, logits, logits, recording.sunk
    made = []
    for i, method in enumerate(how.methods):
        shared = shared_by(session, how, i, [method.note(tape)])
        sums = np.array([own[i] for own in found])
        columns = BatchColumns(*seen, shared, resolved, sums, None, None)
        made += [Attribution.later(partial(columns.fields, place)) for place in range(len(rows))]
    return made
