"""Attention flow: the most attention that can run from each token to the read-out."""

import numpy as np
import torch
from torch import Tensor

from tokenlight.errors import MissingExtra
from tokenlight.methods._method import Method, Site, Tape
from tokenlight.methods._presence import laid_out

UNITS = 10**8  # capacities are whole numbers for the solver; a row of a map sums to this many


class AttentionFlow(Method):
    r"""Maximum flow from the read-out token to each input token.

    The graph has a node for every token and layer; the edge from token i above block l to token j
    below it carries at most :math:`\hat A^l_{i,j}`, as in rollout. :math:`s_j` is the value of the
    maximum flow to input j, :math:`s_r = 0`: seconds for a sentence, minutes for a page. Abnar & Zuidema
    2020. Differs from the paper: capacities are rounded to 1e-8; several read-out tokens share a source.
    """

    cites = "abnar2020quantifying"
    signed = False
    class_agnostic = True
    slow = True
    needs = frozenset({Site.ATTENTION, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        maps = torch.stack([*tape.maps.mean_attention()], dim=1).cpu().double()
        read = (tape.readout > 0).cpu()
        scores = []
        for example, row in enumerate(tape.rows):
            n = len(row)
            sources = read[example, :n].nonzero().flatten().tolist()
            flow = _flows(maps[example, :, :n, :n].numpy(), sources)
            if sources == [0] or (len(sources) == 1 and not tape.spans):  # as Tape.read does
                flow[sources[0]] = 0.0
            scores.append(flow)
        return laid_out(tape, scores)


def _flows(maps: np.ndarray, sources: list[int]) -> np.ndarray:
    """Maximum flow from ``sources`` at the top to each input token; ``maps``: ``layer query key``."""
    sparse = MissingExtra.importing("scipy.sparse", "baselines", "attention_flow")
    layers, n, _ = maps.shape
    source = n * (layers + 1)  # node of token i above block l: l * n + i, inputs are 0 … n-1
    steps = maps + np.eye(n)
    steps = steps / steps.sum(axis=-1, keepdims=True)
    layer, query, key = np.nonzero(steps > 0)
    starts = np.append((layer + 1) * n + query, np.full(len(sources), source))
    ends = np.append(layer * n + key, np.array(sources) + layers * n)
    capacities = np.append(np.rint(steps[layer, query, key] * UNITS), np.full(len(sources), UNITS))
    # SciPy before 1.15 finds no flow in a graph whose places are 64 bits wide.
    edges = starts.astype(np.int32), ends.astype(np.int32)
    graph = sparse.csr_array((capacities.astype(np.int32), edges), shape=(source + 1, source + 1))
    flows = (sparse.csgraph.maximum_flow(graph, source, token) for token in range(n))
    return np.array([flow.flow_value for flow in flows]) / UNITS
