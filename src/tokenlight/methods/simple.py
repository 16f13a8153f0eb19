"""Simple gradient of AllenNLP Interpret."""

from torch import Tensor

from tokenlight.methods._path import Site, Tape, WordGradientMethod


class Simple(WordGradientMethod):
    r"""Magnitude of the loss's gradient × token embedding, as a share of the text's.

    .. math:: s_i = \frac{|v_i|}{\sum_j |v_j|}, \quad
        v_i = \sum_k \frac{\partial \mathcal L}{\partial E_{i,k}}\, m_{i,k}

    :math:`E` is the token table's output, ``token hidden``, before positions and norm;
    :math:`\mathcal L` the cross-entropy of the target (of a contrast: between its two classes; of a
    span: start + end). ``multiply``: :math:`m` is ``own`` :math:`E_i`, ``first`` :math:`E_0`, or
    ``none``: one. Non-negative, sums to one.
    Differs from the AllenNLP code (``preset="official"``): since version 1.3 it multiplies every token
    by the embedding of the first; from the paper (``preset="paper"``): its text has no product, which
    leaves rounding noise where a model norms its embeddings, and is then refused.
    """

    cites = "wallace2019allennlp"
    presets = {"official": {"multiply": "first"}, "paper": {"multiply": "none"}}
    needs = frozenset({Site.WORDS, Site.GRAPH})

    def gradient(self, tape: Tape) -> Tensor:
        return tape.words.joined(tape.rerun.slopes(tape.words.tensors, "loss"))
