"""From the arrays of a batch to the fields of its Attributions."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers

from tokenlight.data.attribution import METHOD_CLASS, METHOD_CODE, to_read_only_array
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.explaining.session import Session, list_row_notes
from tokenlight.methods.base import Method, compute_code_digest, get_class_path
from tokenlight.perturb.variants import ReplacementIds
from tokenlight.registry import find_registered_name
from tokenlight.version import VERSION

VISION_TOWER_NOTE = (
    "the scores are of patches as the language model receives them; "
    "its vision tower is not explained"
)
ATTENTION_SINK_NOTE = (
    "each row of attention sums to less than one: "
    "the rest goes to an attention sink, not to a token"
)


class AttributionFields:
    """The results of a batch for one method and one target per row.

    It exists before its values do: :meth:`fill` adds them when the device has computed them, and a lazy
    Attribution reads its fields from here when it is first used.
    """

    def __init__(
        self,
        session: Session,
        rows: Sequence[TokenRow],
        has_attention_sink: bool,
        targets: Sequence[ResolvedTarget],
        shared_fields: dict[str, Any],
    ) -> None:
        self.session = session
        self.rows = rows
        self.targets = targets
        self.shared_fields = shared_fields
        self.sink_notes = (ATTENTION_SINK_NOTE,) if has_attention_sink else ()
        # Set by fill(), when the device has computed them.
        self.logits: Sequence[np.ndarray]
        self.predicting_logits: Sequence[np.ndarray]
        self.scores: np.ndarray
        self.layer_scores: np.ndarray | None
        self.extras: Sequence[dict[str, Any]] | None

    def fill(
        self,
        *,
        logits: Sequence[np.ndarray],
        predicting_logits: Sequence[np.ndarray],
        scores: np.ndarray,
        layer_scores: np.ndarray | None,
        extras: Sequence[dict[str, Any]] | None,
    ) -> None:
        """Add the values of the batch.

        Args:
            logits: Those of each row as it was explained.
            predicting_logits: Those of each row without an explain mask, which give the prediction.
            scores: Of shape ``batch token``.
            layer_scores: The terms of the scores, ``batch layer token``, if the method has them.
            extras: Further measurements of each row, JSON values by name.
        """
        self.logits = logits
        self.predicting_logits = predicting_logits
        self.scores = scores
        self.layer_scores = layer_scores
        self.extras = extras

    def build_fields(self, index: int) -> dict[str, Any]:
        """Build the fields of the Attribution of one row."""
        row = self.rows[index]
        shared_fields = self.shared_fields
        logits = self.logits[index]
        if logits.ndim == 2:
            # Two per token, start and end or chosen and others: saved flat, one kind after the other.
            logits = logits.T.ravel()
        layers = None
        if self.layer_scores is not None:
            layers = to_read_only_array(self.layer_scores[index, :, : len(row)])
        # What the method measured of this row, besides what holds for the whole batch.
        extras = dict(shared_fields["extras"])
        if self.extras:
            extras.update(self.extras[index])
        # The one measurement that is a field of its own.
        standard_errors = extras.pop("standard_errors", None)
        if standard_errors is not None:
            standard_errors = to_read_only_array(standard_errors)
        return {
            **shared_fields,
            "row": row,
            "prediction": self.session.runner.head.predict(self.predicting_logits[index], row),
            "logits": to_read_only_array(logits),
            # A copy for each Attribution: a user may write into it.
            "options": dict(shared_fields["options"]),
            "versions": dict(get_library_versions()),
            "notes": (
                *shared_fields["notes"],
                *list_row_notes(self.session, row),
                *self.sink_notes,
            ),
            "target": self.targets[index],
            "scores": to_read_only_array(self.scores[index, : len(row)]),
            "layers": layers,
            "steps": (),
            "extras": extras,
            "standard_errors": standard_errors,
        }


def build_shared_fields(
    session: Session, options: ExplainOptions, method_index: int, notes: Sequence[str | None]
) -> dict[str, Any]:
    """Build the fields that all explanations of a batch by one method have in common.

    Args:
        session: The model, for its name and its notes.
        options: The keywords that are recorded with each explanation.
        method_index: Which of the methods the fields are for.
        notes: Notes on the whole batch, such as that blocks were recomputed.
    """
    method = options.methods[method_index]
    all_notes: list[str | None] = []
    if options.default_method_reason is not None:
        default_name, reason = options.default_method_reason
        if default_name == method.name:
            all_notes.append(reason)
    # The notes of the method itself come after the reason why it was chosen.
    all_notes += notes
    if session.runner.vision_inputs is not None and method.needs:
        all_notes.append(VISION_TOWER_NOTE)
    # Some models have no padding token; the note says which token stands for it.
    if getattr(method, "baseline", None) == "pad":
        replacements = ReplacementIds.from_model(session.runner, session.tokenizer)
        all_notes.append(replacements.describe_stand_in("pad"))
    all_notes += session.facts.notes
    return {
        "method": method.name,
        "model": session.name,
        "seed": options.seed,
        "options": method.options,
        "notes": tuple(note for note in all_notes if note),
        "extras": _describe_class(method),
    }


def _describe_class(method: Method) -> dict[str, str]:
    """Name the class of a method that is not registered; the name of a registered one says enough."""
    if find_registered_name(type(method)) is not None:
        return {}
    return {
        METHOD_CLASS: get_class_path(type(method)),
        METHOD_CODE: compute_code_digest(type(method)),
    }


@cache
def get_library_versions() -> dict[str, str]:
    """Return the versions of the libraries that compute explanations."""
    return {
        "tokenlight": VERSION,
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
    }
