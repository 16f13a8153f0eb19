"""Head statistics: how often each head attends to a syntactic head, or to a fixed relative position."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenlight.attention_heads.mask import FORMAT, HeadMask
from tokenlight.attention_heads.parsing import Alignment, ParsedSentence, find_pairs
from tokenlight.data.tokens import ExplainMask, TokenRow, apply_explain_mask
from tokenlight.errors import BadInput
from tokenlight.inputs.encode import encode_text
from tokenlight.model.runner import ModelRunner
from tokenlight.trace.record import record
from tokenlight.trace.recording import Recording
from tokenlight.trace.sites import Site

RELATIONS = ("nsubj", "obj", "amod", "advmod")
SYNTACTIC_MARGIN = 0.1  # ξ_synt
POSITIONAL_SHARE = 0.8  # ξ_pos
Margin = float | Sequence[float]  # above the text's own shares, or a threshold for each relation
MIN_LISTED_SHARE = 0.01  # relative positions rarer than this are not written to the file


@dataclass(frozen=True, slots=True)
class StatisticsOptions:
    """How attention is counted.

    Attributes:
        relations: The syntactic relations to count.
        align: How words and tokens are paired.
        include_zero_offset: Whether a token that attends to itself counts as positional.
        exclude_special: Whether special tokens are left out as queries.
        explain_mask: Which special tokens are masked.
    """

    relations: tuple[str, ...] = RELATIONS
    align: Alignment = "offsets"
    include_zero_offset: bool = False
    exclude_special: bool = True
    explain_mask: ExplainMask = "none"

    @classmethod
    def from_alignment(
        cls, align: Alignment, runner: ModelRunner, tokenizer: Any, **overrides: Any
    ) -> "StatisticsOptions":
        """Return the options that belong to an alignment.

        The official code also counts offset 0 and special tokens and, except for questions, masks [SEP].

        Args:
            align: The alignment.
            runner: The model to run.
            tokenizer: Its tokenizer.
            **overrides: Options to set; None keeps that of the alignment.
        """
        options: dict[str, Any] = {}
        if align == "official":
            options = {"include_zero_offset": True, "exclude_special": False}
            if runner.head.task != "question-answering" and tokenizer.sep_token_id is not None:
                options["explain_mask"] = "sep"
        for name, value in overrides.items():
            if value is not None:
                options[name] = value
        return cls(**options, align=align)


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    r"""Counts over a parsed corpus (Mask-LRP, section 4).

    Attributes:
        options: How attention was counted.
        offsets: Relation → :math:`r` → how often a dependent stands :math:`r` words after its head
            (:math:`\lambda`).
        hits: ``relation layer head``, how often the strongest attention of a dependent's first token was
            on its syntactic head.
        num_tested: ``relation``, the number of dependents tested.
        positions: ``layer head offset``, how often the strongest attention of a query was :math:`i` tokens
            away; offsets from −``max_offset`` to ``max_offset``.
        num_queries: The number of queries.
        num_sentences: The number of sentences.
    """

    options: StatisticsOptions
    offsets: Mapping[str, Mapping[int, int]]
    hits: np.ndarray
    num_tested: np.ndarray
    positions: np.ndarray
    num_queries: int
    num_sentences: int = 0

    @property
    def max_offset(self) -> int:
        """The largest relative position counted."""
        return int(self.positions.shape[-1]) // 2

    @property
    def relation_shares(self) -> np.ndarray:
        r""":math:`\alpha_k`, ``relation layer head``."""
        return np.asarray(self.hits / np.maximum(self.num_tested, 1)[:, None, None])

    @property
    def position_shares(self) -> np.ndarray:
        r""":math:`\alpha_i`, ``layer head offset``; 0 at offset 0 unless it is included."""
        shares = self.positions / max(self.num_queries, 1)
        if not self.options.include_zero_offset:
            shares[..., self.max_offset] = 0.0
        return np.asarray(shares)

    def compute_offset_shares(self, relation: str) -> dict[int, float]:
        r"""Return :math:`\lambda_k`: position of the dependent minus that of its head, to its share."""
        counts = self.offsets.get(relation, {})
        total = sum(counts.values())
        return {offset: count / total for offset, count in sorted(counts.items())}

    def compute_thresholds(self, margin: Margin = SYNTACTIC_MARGIN) -> list[float]:
        r"""Return :math:`\max\lambda_k+\xi_{synt}` for each relation.

        Args:
            margin: :math:`\xi_{synt}`, or the thresholds themselves, one per relation.
        """
        if isinstance(margin, Sequence):
            return [float(threshold) for threshold in margin]
        thresholds = []
        for relation in self.options.relations:
            shares = self.compute_offset_shares(relation)
            thresholds.append(max(shares.values(), default=1.0) + margin)
        return thresholds

    def build_mask(
        self, margin: Margin = SYNTACTIC_MARGIN, share: float = POSITIONAL_SHARE
    ) -> HeadMask:
        r"""Build the mask of heads above their threshold of syntax, and above that of position.

        Args:
            margin: As in :meth:`compute_thresholds`.
            share: :math:`\xi_{pos}`.
        """
        # relation 1 1, to compare with relation layer head
        thresholds = np.array(self.compute_thresholds(margin))[:, None, None]
        syntactic = (self.relation_shares > thresholds).sum(axis=0)
        positional = (self.position_shares > share).sum(axis=-1)
        return HeadMask(syntactic, positional)

    def to_dict(
        self, margin: Margin = SYNTACTIC_MARGIN, share: float = POSITIONAL_SHARE
    ) -> dict[str, Any]:
        """Return the content of a heads file: the mask, then the shares it comes from, rounded."""
        has_own_thresholds = isinstance(margin, Sequence)
        return {
            "format": FORMAT,
            # The caller knows the names of the model and of the sources, and fills them in.
            "model": "",
            "sources": [],
            "sentences": self.num_sentences,
            "options": {
                name: getattr(self.options, name) for name in StatisticsOptions.__dataclass_fields__
            },
            "thresholds": {
                "syntactic_margin": None if has_own_thresholds else margin,
                "positional_share": share,
            },
            "mask": self.build_mask(margin, share).to_dict(),
            "relations": self._describe_relations(margin),
            "positions": self._describe_positions(),
        }

    def _describe_relations(self, margin: Margin) -> dict[str, Any]:
        thresholds = self.compute_thresholds(margin)
        relations = {}
        for index, relation in enumerate(self.options.relations):
            relations[relation] = {
                "dependents": sum(self.offsets.get(relation, {}).values()),
                "tested": int(self.num_tested[index]),
                "threshold": round(thresholds[index], 6),
                "offsets": _list_shares(self.compute_offset_shares(relation).items()),
                "heads": np.round(self.relation_shares[index], 6).tolist(),
            }
        return relations

    def _describe_positions(self) -> list[list[dict[str, float]]]:
        """Return, for each layer and head, the frequent offsets with their shares."""
        layers = []
        for layer_shares in self.position_shares:
            heads = []
            for head_shares in layer_shares:
                heads.append(_list_shares(enumerate(head_shares, -self.max_offset)))
            layers.append(heads)
        return layers


def _list_shares(shares: Iterable[tuple[int, float]]) -> dict[str, float]:
    """Return offset → share for the shares that are large enough to list."""
    listed = {}
    for offset, share in shares:
        if share >= MIN_LISTED_SHARE:
            listed[str(offset)] = round(float(share), 6)
    return listed


def compute_head_statistics(
    runner: ModelRunner,
    tokenizer: Any,
    sentences: Sequence[ParsedSentence],
    options: StatisticsOptions | None = None,
    *,
    batch_tokens: int = 4096,
    advance: Callable[[int], None] | None = None,
) -> HeadStatistics:
    """Count where the attention of a model goes over parsed sentences.

    Args:
        runner: The model to run.
        tokenizer: Its tokenizer.
        sentences: The parsed sentences; long ones are truncated to what the model reads.
        options: How attention is counted.
        batch_tokens: The most tokens that go through the model at once.
        advance: Called with the number of sentences after each batch.

    Raises:
        BadInput: There is no sentence.
    """
    options = options or StatisticsOptions()
    rows = _encode_sentences(runner, tokenizer, sentences, options)
    # Recorded attention must be that of the model, for each way in which it computes.
    for row in runner.batching.pick_probe_rows(rows):
        runner.verify(row, reads_attention=True)
    batches = runner.pack_rows(rows, batch_tokens)
    hits: Any = 0
    num_tested: Any = 0
    positions: Any = 0
    num_queries = 0
    max_offset = max(len(row) for row in rows) - 1
    for batch in batches:
        batch_rows = [rows[index] for index in batch]
        batch_sentences = [sentences[index] for index in batch]
        recording = record(runner, batch_rows, frozenset({Site.ATTENTION}))
        counts = _count_batch(recording, batch_sentences, options, max_offset)
        hits = hits + counts.hits
        num_tested = num_tested + counts.num_tested
        positions = positions + counts.positions
        num_queries += counts.num_queries
        if advance is not None:
            advance(len(batch))
    offsets = _count_word_offsets(sentences, options.relations)
    return HeadStatistics(
        options=options,
        offsets=offsets,
        hits=hits,
        num_tested=num_tested,
        positions=positions,
        num_queries=num_queries,
        num_sentences=len(sentences),
    )


def _encode_sentences(
    runner: ModelRunner,
    tokenizer: Any,
    sentences: Sequence[ParsedSentence],
    options: StatisticsOptions,
) -> list[TokenRow]:
    rows = []
    for sentence in sentences:
        row = encode_text(sentence.text, tokenizer, max_tokens=runner.max_tokens, long="truncate")
        rows.append(apply_explain_mask(row, options.explain_mask, tokenizer))
    if not rows:
        raise BadInput(
            "No sentence was given, so there is nothing to count. Give at least one.",
            code="no-sentence",
        )
    return rows


def _count_word_offsets(
    sentences: Sequence[ParsedSentence], relations: Sequence[str]
) -> dict[str, Counter[int]]:
    """Count, for each relation, how many words after its head a dependent stands."""
    offsets: dict[str, Counter[int]] = {relation: Counter() for relation in relations}
    for sentence in sentences:
        for position, word in enumerate(sentence.words):
            if word.relation in offsets and word.head is not None:
                offsets[word.relation][position - word.head] += 1
    return offsets


@dataclass(frozen=True, slots=True)
class _BatchCounts:
    """The counts of one batch, as HeadStatistics has them."""

    hits: np.ndarray
    num_tested: np.ndarray
    positions: np.ndarray
    num_queries: int


def _count_batch(
    recording: Recording,
    sentences: Sequence[ParsedSentence],
    options: StatisticsOptions,
    max_offset: int,
) -> _BatchCounts:
    """Count where the attention of one batch goes."""
    # layer batch head query: the key with the strongest attention
    attended_keys = torch.stack([maps.argmax(dim=-1) for maps in recording.attention]).cpu()
    query_mask = recording.token_mask.cpu().clone()  # batch query
    num_layers, _, num_heads, _ = attended_keys.shape
    relations = options.relations
    hits = torch.zeros(len(relations), num_layers, num_heads, dtype=torch.long)
    num_tested: Counter[str] = Counter()
    for example, (sentence, row) in enumerate(zip(sentences, recording.rows, strict=True)):
        if options.exclude_special:
            query_mask[example, : len(row)] &= ~torch.tensor(row.special_tokens_mask)
        for pair in find_pairs(sentence, row, relations, options.align):
            # Which heads attend, at the dependent's first token, to its syntactic head.
            keys = attended_keys[:, example, :, pair.dependent_position]
            is_hit = torch.isin(keys, torch.tensor([*pair.head_positions]))
            hits[relations.index(pair.relation)] += is_hit
            num_tested[pair.relation] += 1
    positions = []
    for layer_keys in attended_keys:
        positions.append(_count_offsets(layer_keys, query_mask, max_offset).sum(dim=0))
    return _BatchCounts(
        hits=hits.numpy(),
        num_tested=np.array([num_tested[relation] for relation in relations]),
        positions=torch.stack(positions).numpy(),
        num_queries=int(query_mask.sum()),
    )


def _count_offsets(attended_keys: Tensor, query_mask: Tensor, max_offset: int) -> Tensor:
    """Count key − query of one layer.

    Args:
        attended_keys: The strongest key of each query, ``batch head query``.
        query_mask: ``batch query``, true for queries that count.
        max_offset: The largest offset.

    Returns:
        The counts, ``batch head offset``.
    """
    device = attended_keys.device
    queries = torch.arange(attended_keys.shape[-1], device=device)
    offsets = attended_keys - queries + max_offset
    batch_size, num_heads, _ = offsets.shape
    counts = torch.zeros(batch_size, num_heads, 2 * max_offset + 1, dtype=torch.long, device=device)
    # Each query that counts adds one at its offset.
    weights = query_mask.to(counts)[:, None, :].expand_as(offsets)
    return counts.scatter_add_(2, offsets, weights)


def find_positional_heads(maps: Sequence[Tensor], token_mask: Tensor) -> Tensor:
    r"""Find heads that attend to one relative position (not 0) in most of a text's tokens.

    Args:
        maps: One attention map per layer, ``batch head query key``.
        token_mask: ``batch token``, false at padding.

    Returns:
        ``layer batch head``, 1 where the share exceeds :math:`\xi_{pos}`, each text by itself.
    """
    selected_by_layer = []
    for attention in maps:
        max_offset = attention.shape[-1] - 1
        counts = _count_offsets(attention.argmax(dim=-1), token_mask, max_offset)
        counts[..., max_offset] = 0  # A token that attends to itself is not positional.
        share = counts.amax(dim=-1) / token_mask.sum(dim=1, keepdim=True)
        selected_by_layer.append((share > POSITIONAL_SHARE).to(attention.dtype))
    return torch.stack(selected_by_layer)
