"""Attention flow: the maximum flow of attention between each token and the read-out token."""

import numpy as np
import torch
from torch import Tensor

from tokenlight.errors import MissingExtra
from tokenlight.methods._perturbation import pad_scores
from tokenlight.plugin import Method, Site, Tape

# The solver needs integer capacities; a row of a map sums to this number.
CAPACITY_SCALE = 10**8
# Finding the flows takes as long as a pass over tokens³ / 64 tokens.
FLOW_COST_DIVISOR = 64


class AttentionFlow(Method):
    r"""Maximum flow from the read-out token to each input token.

    The graph has a node for every token and layer; the edge from token i above block l to token j
    below it has the capacity :math:`\hat A^l_{i,j}`, as in rollout. :math:`s_j` is the value of the
    maximum flow to input j, and :math:`s_r = 0`. It takes seconds for a sentence and minutes for a page.
    Abnar & Zuidema 2020.
    Differs from the paper: capacities are rounded to 1e-8; several read-out tokens share a source.
    """

    cites = "abnar2020quantifying"
    signed = False
    class_agnostic = True
    slow = True
    needs = frozenset({Site.ATTENTION, Site.READOUT})

    def count_further_tokens(self, num_tokens: int) -> int:
        """Return what finding the flows costs: after a pass over 128 tokens, about two seconds."""
        return num_tokens**3 // FLOW_COST_DIVISOR

    def __call__(self, tape: Tape) -> Tensor:
        maps = torch.stack([*tape.attention_maps.mean_attention()], dim=1).cpu().double()
        is_read = (tape.readout > 0).cpu()
        scores = []
        for example, row in enumerate(tape.rows):
            length = len(row)
            sources = is_read[example, :length].nonzero().flatten().tolist()
            flows = _compute_max_flows(maps[example, :, :length, :length].numpy(), sources)
            # The score of a single read-out token is zero, as in Tape.read_rows.
            has_single_readout = len(sources) == 1 and not tape.has_span_targets
            if has_single_readout or sources == [0]:
                flows[sources[0]] = 0.0
            scores.append(flows)
        return pad_scores(tape, scores)


def _compute_max_flows(maps: np.ndarray, sources: list[int]) -> np.ndarray:
    """Return the maximum flow from ``sources`` at the top to each input token.

    Args:
        maps: ``layer query key``.
        sources: The read-out tokens.
    """
    sparse = MissingExtra.import_or_raise("scipy.sparse", "baselines", "attention_flow")
    num_layers, num_tokens, _ = maps.shape
    # Token i above block l is node l * num_tokens + i. One more node leads to all read-out tokens.
    source = num_tokens * (num_layers + 1)
    steps = maps + np.eye(num_tokens)
    steps = steps / steps.sum(axis=-1, keepdims=True)
    layer, query, key = np.nonzero(steps > 0)
    map_starts = (layer + 1) * num_tokens + query
    map_ends = layer * num_tokens + key
    map_capacities = np.rint(steps[layer, query, key] * CAPACITY_SCALE)
    source_ends = np.array(sources) + num_layers * num_tokens

    starts = np.append(map_starts, np.full(len(sources), source))
    ends = np.append(map_ends, source_ends)
    capacities = np.append(map_capacities, np.full(len(sources), CAPACITY_SCALE))
    # SciPy before 1.15 finds no flow in a graph with 64-bit indices.
    edges = (starts.astype(np.int32), ends.astype(np.int32))
    graph = sparse.csr_array((capacities.astype(np.int32), edges), shape=(source + 1, source + 1))
    flows = np.zeros(num_tokens)
    for token in range(num_tokens):
        flows[token] = sparse.csgraph.maximum_flow(graph, source, token).flow_value
    return flows / CAPACITY_SCALE
