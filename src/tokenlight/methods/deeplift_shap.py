"""DeepLIFT with two baselines, averaged."""

import torch
from torch import Tensor

from tokenlight.capture.altered import Rescale, rescaled
from tokenlight.methods._method import Cost, Tape
from tokenlight.methods._path import Ends, PathMethod, PathScores, ends, gap_percent


class DeepLiftShap(PathMethod):
    r"""Difference from a baseline times DeepLIFT's multiplier, averaged over two baselines.

    .. math:: s_i = \tfrac12 \sum_{h'} \sum_k m_{i,k}(h, h')\,(h_{i,k} - h'_{i,k})

    :math:`m` is the gradient of :math:`y` at :math:`h = h^0`, ``token hidden``, in which an
    activation's derivative is its slope :math:`\Delta\text{out}/\Delta\text{in}` between text and
    baseline. Baselines: id 0 in the place of every token, and padding in that of all but the special
    ones. ``rescale``: ``modules`` are torch.nn's activations, as Captum hooks them; ``activations``
    those of transformers (GELU …), too; ``none`` is gradient × difference. Equals Captum's
    LayerDeepLiftShap ("DeepLiftShap" of Thermostat).
    Differs from the paper: softmax, norms and products keep their gradient, so the scores do not sum
    to :math:`y(h) - y(h')`; ``extras["convergence"]`` tells by how many percent.
    """

    rescale: Rescale = "modules"
    cites = "lundberg2017unified"

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(7, 4)  # the text; each baseline; text and baseline in pairs, twice

    def scored(self, tape: Tape) -> PathScores:
        paths = [ends(tape, 0, special=True), ends(tape, "pad")]
        scores = torch.stack([self._from(tape, path) for path in paths]).mean(dim=0)
        rise = torch.stack([path.rise for path in paths]).mean(dim=0)
        passes = torch.full(rise.shape, len(paths), device=rise.device)
        return scores, gap_percent(scores, rise), rise, passes

    def _from(self, tape: Tape, path: Ends) -> Tensor:
        """Scores against one baseline, ``batch token``; texts and baselines go through in pairs."""
        budget, width = tape.recording.budget, tape.real.shape[1]
        found = []
        everyone = torch.arange(len(tape.rows), device=path.rise.device)
        for examples in torch.split(everyone, max(1, budget // (2 * width))):
            with rescaled(tape.recording.live.model, self.rescale):
                both = torch.cat((path.text[examples], path.baseline[examples]))
                _, gradient = tape.rerun.at_point(examples.repeat(2), both, at="hidden")
            multiplier = gradient[: len(examples)]
            found.append((multiplier * path.difference[examples]).sum(dim=-1))
        return tape.embedded.folded(torch.cat(found)).masked_fill(~tape.real, 0.0)
