"""Whether a model supports a method, asked on a short row before anything is explained."""

from tokenlight.data.tokens import TokenRow
from tokenlight.errors import TokenlightError, UnsupportedModel
from tokenlight.explaining.pending_scores import launch_scores
from tokenlight.explaining.session import Session, verify_model_for_rows
from tokenlight.methods.base import Method
from tokenlight.model.objective import trim_logits
from tokenlight.model.probe_rows import make_probe_row
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.record import record


def supports_method(session: Session, method: Method, row: TokenRow) -> bool:
    """Return whether ``method`` has rules for everything this model computes.

    The operations of a model are known only when they run, so the method scores one short row, made of
    the tokens of ``row`` and computed by the model in the same way as ``row`` itself.

    Args:
        session: The model, its tokenizer and its limits.
        method: The method to ask for.
        row: A row like those that will be explained, of any length.

    Returns:
        False if the model is refused; True also if the probe fails for another reason, which the
        explanation itself will report.
    """
    try:
        # First the checks that precede every explanation, such as recorded attention.
        verify_model_for_rows(session, [row], [method])
        _score_probe(session.runner, method, row)
    except UnsupportedModel:
        return False
    except TokenlightError:
        return True
    return True


def _score_probe(runner: ModelRunner, method: Method, row: TokenRow) -> None:
    """Score a short row like ``row`` for the model's own prediction; the scores are not used."""
    probe = make_probe_row(runner, row)
    if runner.batching.find_threshold_sides(row) != runner.batching.find_threshold_sides(probe):
        # The model computes texts of this length in another way than short ones.
        read_length = row.source_length or len(row)  # of the encoder, if there is one
        probe = make_probe_row(
            runner, row, runner.batching.find_shortest_length_on_sides_of(read_length)
        )
    recording = record(runner, [probe], method.recorded_sites)
    (logits,) = trim_logits(runner.head, recording.finite_logits, [probe])
    target = runner.head.resolve(runner.head.default_target, logits, probe)[0]
    tape = recording.make_tape([target], release_graph=True)
    # Some errors show only when the values arrive.
    for pending in launch_scores([method], tape):
        pending.fetch([probe])
    tape.run_deferred_checks()
