"""DeepLIFT with two baselines, averaged."""

import torch
from torch import Tensor

from tokenlight.methods import _path
from tokenlight.methods._path import PathMethod, PathScores
from tokenlight.plugin import PassCounts, Tape, UnsupportedModel
from tokenlight.trace.rescale import RescaledModules, applied_rescale_rule


class DeepLiftShap(PathMethod):
    r"""Difference from a baseline times DeepLIFT's multiplier, averaged over two baselines.

    .. math:: s_i = \tfrac12 \sum_{h'} \sum_k m_{i,k}(h, h')\,(h_{i,k} - h'_{i,k})

    :math:`m` is the gradient of :math:`y` at :math:`h = h^0`, ``token hidden``, in which an
    activation's derivative is its slope :math:`\Delta\text{out}/\Delta\text{in}` between text and
    baseline. The first baseline has id 0 instead of every token, the second one padding instead of all
    but the special tokens. Equals Captum's LayerDeepLiftShap ("DeepLiftShap" of Thermostat).
    Differs from the paper: softmax, norms and products keep their gradient, so the scores do not sum
    to :math:`y(h) - y(h')`; ``extras["convergence"]`` has the gap in percent.

    Args:
        rescale: Which activations get their slope: those of torch.nn, as Captum hooks them
            (``"modules"``), those of transformers (GELU …) as well, or none.
    """

    rescale: RescaledModules = "modules"
    baseline = "pad"  # of the second path; not an option
    cites = "lundberg2017unified"

    def count_passes(self, num_tokens: int) -> PassCounts:  # noqa: ARG002 - passes do not depend on the length
        # The text once, each baseline once, and text and baseline together for each path.
        return PassCounts(7, 4)

    def compute_path_scores(self, tape: Tape) -> PathScores:
        paths = [
            _path.compute_endpoints(tape, 0, special=True),
            _path.compute_endpoints(tape, "pad"),
        ]
        path_scores = [self._compute_scores_from_baseline(tape, path) for path in paths]
        scores = torch.stack(path_scores).mean(dim=0)
        target_gain = torch.stack([path.target_gain for path in paths]).mean(dim=0)
        gap_percent = _path.compute_gap_percent(scores, target_gain)
        num_passes = torch.full(target_gain.shape, len(paths), device=target_gain.device)
        return PathScores(scores, gap_percent, target_gain, num_passes)

    def _compute_scores_from_baseline(self, tape: Tape, path: _path.PathEndpoints) -> Tensor:
        """Return scores against one baseline, ``batch token``; each text shares a batch with its baseline."""
        runner = tape.recording.runner
        if not runner.batching.is_batch_invariant:
            raise UnsupportedModel(
                f"In {type(runner.model).__name__} a row depends on the other rows of its batch, but "
                f"{self.name} needs a text and its baseline in one batch. Use integrated_gradients, which "
                "runs them one by one.",
                code="batch-dependent-rows",
            )
        num_positions = tape.token_mask.shape[1]
        chunk_size = max(1, tape.recording.batch_tokens // (2 * num_positions))
        chunks = []
        for examples in torch.split(_path.make_example_indices(tape), chunk_size):
            text = path.text[examples]
            baseline = path.baseline[examples]
            pairs = torch.cat((text, baseline))
            with applied_rescale_rule(runner.model, self.rescale):
                _, gradient = tape.extra_passes.compute_gradient_at(
                    examples.repeat(2), pairs, site="embeddings"
                )
            text_gradient = gradient[: len(examples)]
            chunks.append((text_gradient * (text - baseline)).sum(dim=-1))
        scores = tape.embeddings.fold_to_tokens(torch.cat(chunks))
        return scores.masked_fill(~tape.token_mask, 0.0)
