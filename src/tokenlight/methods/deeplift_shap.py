"""DeepLIFT with two baselines, averaged."""

import torch
from torch import Tensor

from tokenlight.capture.altered import Rescale, rescaled
from tokenlight.methods import _path
from tokenlight.methods._path import Cost, PathMethod, PathScores, Tape


class DeepLiftShap(PathMethod):
    r"""Difference from a baseline times DeepLIFT's multiplier, averaged over two baselines.

    .. math:: s_i = \tfrac12 \sum_{h'} \sum_k m_{i,k}(h, h')\,(h_{i,k} - h'_{i,k})

    :math:`m` is the gradient of :math:`y` at :math:`h = h^0`, ``token hidden``, in which an
    activation's derivative is its slope :math:`\Delta\text{out}/\Delta\text{in}` between text and
    baseline: id 0 in the place of every token, then padding in that of all but the special ones.
    ``rescale``: torch.nn's activations, as Captum hooks them (``modules``), those of transformers
    (GELU …), too, or none. Equals Captum's LayerDeepLiftShap ("DeepLiftShap" of Thermostat).
    Differs from the paper: softmax, norms and products keep their gradient, so the scores do not sum
    to :math:`y(h) - y(h')`; ``extras["convergence"]`` tells by how many percent.
    """

    rescale: Rescale = "modules"
    cites = "lundberg2017unified"

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(7, 4)  # the text; each baseline; text and baseline in pairs, twice

    def scored(self, tape: Tape) -> PathScores:
        paths = [_path.ends(tape, 0, special=True), _path.ends(tape, "pad")]
        scores = torch.stack([self._from(tape, path) for path in paths]).mean(dim=0)
        rise = torch.stack([path.rise for path in paths]).mean(dim=0)
        passes = torch.full(rise.shape, len(paths), device=rise.device)
        return scores, _path.gap_percent(scores, rise), rise, passes

    def _from(self, tape: Tape, path: _path.Ends) -> Tensor:
        """Scores against one baseline, ``batch token``; texts and baselines go through in pairs."""
        size, found = max(1, tape.recording.budget // (2 * tape.real.shape[1])), []
        for examples in torch.split(_path.everyone(tape), size):
            text, baseline = path.text[examples], path.baseline[examples]
            both = torch.cat((text, baseline))
            with rescaled(tape.recording.live.model, self.rescale):
                _, gradient = tape.rerun.at_point(examples.repeat(2), both, at="hidden")
            found.append((gradient[: len(examples)] * (text - baseline)).sum(dim=-1))
        return tape.embedded.folded(torch.cat(found)).masked_fill(~tape.real, 0.0)
