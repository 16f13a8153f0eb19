"""Simple gradient of AllenNLP Interpret."""

from torch import Tensor

from tokenlight.methods._path import WordGradientMethod
from tokenlight.plugin import Site, Tape


class Simple(WordGradientMethod):
    r"""Magnitude of the loss's gradient × token embedding, as a share of the text's.

    .. math:: s_i = \frac{|v_i|}{\sum_j |v_j|}, \quad
        v_i = \sum_k \frac{\partial \mathcal L}{\partial E_{i,k}}\, m_{i,k}

    :math:`E` is the token table's output, ``token hidden``, before positions and norm;
    :math:`\mathcal L` the cross-entropy of the target (of a contrast: between its two classes; of a
    span: start + end). Scores are not negative and sum to one.
    Differs from the AllenNLP code (``preset="official"``): since version 1.3 it multiplies every token
    by the embedding of the first. Differs from the paper (``preset="paper"``): its text has no product,
    which leaves only rounding noise if a model normalizes its embeddings, and is then an error.

    Args:
        multiply: The factor :math:`m`: ``"own"`` is :math:`E_i`, ``"first"`` :math:`E_0`, ``"none"`` one.
    """

    cites = "wallace2019allennlp"
    presets = {"official": {"multiply": "first"}, "paper": {"multiply": "none"}}
    needs = frozenset({Site.TOKEN_EMBEDDINGS, Site.GRAPH})

    def compute_loss_gradient(self, tape: Tape) -> Tensor:
        embeddings = tape.token_embeddings
        gradients = tape.extra_passes.take_recorded_gradients(embeddings.tensors, "loss")
        return embeddings.concatenate(gradients)
