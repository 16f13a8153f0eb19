"""Head statistics: how often each head looks at a syntactic head, or at a fixed relative position."""

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.live import LiveModel
from tokenlight.capture.packing import packs
from tokenlight.capture.recording import record
from tokenlight.capture.tape import Recording, Site
from tokenlight.data.tokens import ExplainMask, explain_masked
from tokenlight.errors import BadInput
from tokenlight.heads.mask import FORMAT, HeadMask
from tokenlight.heads.sentence import Align, ParsedSentence, pairs
from tokenlight.inputs.encode import encode

RELATIONS = ("nsubj", "obj", "amod", "advmod")
SYNTACTIC_MARGIN = 0.1  # ξ_synt
POSITIONAL_SHARE = 0.8  # ξ_pos
Margin = float | Sequence[float]  # above the text's own shares, or a threshold for each relation
SHOWN_SHARE = 0.01  # relative positions rarer than this are left out of the file


@dataclass(frozen=True, slots=True)
class Reading:
    """How attention is read; special tokens ask nothing unless told to."""

    relations: tuple[str, ...] = RELATIONS
    align: Align = "offsets"
    include_zero_offset: bool = False
    exclude_special: bool = True
    explain_mask: ExplainMask = "none"

    @classmethod
    def named(cls, align: Align, live: LiveModel, tokenizer: Any, **given: Any) -> "Reading":
        """All that goes with an alignment; of ``given`` what is not None wins. The official code also
        counts offset 0 and special tokens and, but for questions, masks [SEP]."""
        official: dict[str, Any] = {"include_zero_offset": True, "exclude_special": False}
        if live.head.kind != "span" and tokenizer.sep_token_id is not None:
            official["explain_mask"] = "sep"
        said = {name: value for name, value in given.items() if value is not None}
        return cls(**(official if align == "official" else {}) | said, align=align)


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    r"""Counts over a parsed corpus.

    ``offsets``: relation → :math:`r` → how often a dependent stands :math:`r` words behind its head
    (:math:`\lambda`). ``hits``: ``relation layer head``, how often a head's highest attention of a
    dependent's first piece fell on its syntactic head, of ``tested`` (``relation``) dependents.
    ``positions``: ``layer head offset``, how often a query's highest attention fell :math:`i` pieces
    away, offsets −``reach`` … ``reach``, of ``queries``. Mask-LRP, section 4.
    """

    reading: Reading
    offsets: Mapping[str, Mapping[int, int]]
    hits: np.ndarray
    tested: np.ndarray
    positions: np.ndarray
    queries: int
    sentences: int = 0

    @property
    def reach(self) -> int:
        """The largest relative position counted."""
        return int(self.positions.shape[-1]) // 2

    @property
    def relation_shares(self) -> np.ndarray:
        r""":math:`\alpha_k`, ``relation layer head``."""
        return np.asarray(self.hits / np.maximum(self.tested, 1)[:, None, None])

    @property
    def position_shares(self) -> np.ndarray:
        r""":math:`\alpha_i`, ``layer head offset``; offset 0 is left out unless asked for."""
        shares = self.positions / max(self.queries, 1)
        if not self.reading.include_zero_offset:
            shares[..., self.reach] = 0.0
        return np.asarray(shares)

    def offset_shares(self, relation: str) -> dict[int, float]:
        r""":math:`\lambda_k`: relative position of dependent minus head, to its share."""
        counts = self.offsets.get(relation, {})
        total = sum(counts.values())
        return {offset: count / total for offset, count in sorted(counts.items())}

    def thresholds(self, margin: Margin = SYNTACTIC_MARGIN) -> list[float]:
        r""":math:`\max\lambda_k+\xi_{synt}` of each relation; several numbers are taken as they are."""
        if isinstance(margin, Sequence):
            return [float(one) for one in margin]
        shares = map(self.offset_shares, self.reading.relations)
        return [max(own.values(), default=1.0) + margin for own in shares]

    def mask(self, margin: Margin = SYNTACTIC_MARGIN, share: float = POSITIONAL_SHARE) -> HeadMask:
        r"""Heads above the :meth:`thresholds` of ``margin`` and above :math:`\xi_{pos}`."""
        thresholds = np.array(self.thresholds(margin))[:, None, None]
        syntactic = (self.relation_shares > thresholds).sum(axis=0)
        return HeadMask(syntactic, (self.position_shares > share).sum(axis=-1))

    def to_dict(
        self, margin: Margin = SYNTACTIC_MARGIN, share: float = POSITIONAL_SHARE
    ) -> dict[str, Any]:
        """The heads file's content: masks first, then the shares they come from, rounded."""
        relations, thresholds = {}, self.thresholds(margin)
        reach, shares, typed = self.reach, self.position_shares, isinstance(margin, Sequence)
        for number, relation in enumerate(self.reading.relations):
            relations[relation] = {
                "dependents": sum(self.offsets.get(relation, {}).values()),
                "tested": int(self.tested[number]),
                "threshold": round(thresholds[number], 6),
                "offsets": _shown(self.offset_shares(relation).items()),
                "heads": np.round(self.relation_shares[number], 6).tolist(),
            }
        return {
            "format": FORMAT,
            "model": "",  # this and the sources are known to who loaded them
            "sources": [],
            "sentences": self.sentences,
            "reading": {name: getattr(self.reading, name) for name in Reading.__dataclass_fields__},
            "thresholds": {
                "syntactic_margin": None if typed else margin,
                "positional_share": share,
            },
            "mask": self.mask(margin, share).to_dict(),
            "relations": relations,
            "positions": [[_shown(enumerate(one, -reach)) for one in layer] for layer in shares],
        }


def _shown(shares: Iterable[tuple[int, float]]) -> dict[str, float]:
    return {str(at): round(float(value), 6) for at, value in shares if value >= SHOWN_SHARE}


def head_statistics(
    live: LiveModel,
    tokenizer: Any,
    sentences: Sequence[ParsedSentence],
    reading: Reading | None = None,
    *,
    batch_tokens: int = 4096,
    advance: Callable[[int], None] | None = None,
) -> HeadStatistics:
    """Read the attention of ``live`` over parsed ``sentences``; ``advance`` is told of each batch."""
    reading = reading or Reading()
    texts = [sentence.text for sentence in sentences]
    read = [encode(text, tokenizer, limit=live.max_tokens, long="truncate") for text in texts]
    rows = [explain_masked(row, reading.explain_mask, tokenizer) for row in read]
    if not rows:
        raise BadInput("no sentence was given, so there is nothing to count.")
    live.verify(rows[0], maps=True)
    lengths = [len(row) for row in rows]
    counts: Any = (0, 0, 0, 0)
    for pack in packs(lengths, batch_tokens, padding_proof=live.padding_proof):
        recording = record(live, [rows[i] for i in pack], frozenset({Site.ATTENTION}))
        found = _counted(recording, [sentences[i] for i in pack], reading, max(lengths) - 1)
        counts = tuple(map(operator.add, counts, found))
        if advance is not None:
            advance(len(pack))
    offsets: dict[str, Counter[int]] = {relation: Counter() for relation in reading.relations}
    for sentence in sentences:
        for position, word in enumerate(sentence.words):
            if word.relation in offsets and word.head is not None:
                offsets[word.relation][position - word.head] += 1
    hits, tested, positions, queries = counts
    return HeadStatistics(reading, offsets, hits, tested, positions, queries, len(sentences))


def _counted(
    recording: Recording, sentences: Sequence[ParsedSentence], reading: Reading, reach: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Hits, tested, positions and queries of one batch, as HeadStatistics has them."""
    looked_at = torch.stack([maps.argmax(dim=-1) for maps in recording.attention]).cpu()
    asks = recording.real.cpu().clone()  # batch query
    found = []
    for example, (sentence, row) in enumerate(zip(sentences, recording.rows, strict=True)):
        if reading.exclude_special:
            asks[example, : len(row)] &= ~torch.tensor(row.special)
        own = pairs(sentence, row, reading.relations, reading.align)
        found += [(example, pair) for pair in own]
    # Whether each head looks, at each dependent's first piece, at its syntactic head.
    hits = torch.zeros(len(reading.relations), *looked_at.shape[::2], dtype=torch.long)
    for example, pair in found:
        right = torch.isin(looked_at[:, example, :, pair.query], torch.tensor([*pair.keys]))
        hits[reading.relations.index(pair.relation)] += right
    tested = Counter(pair.relation for _, pair in found)
    positions = torch.stack([_relative(keys, asks, reach).sum(dim=0) for keys in looked_at])
    asked = np.array([tested[name] for name in reading.relations])
    return hits.numpy(), asked, positions.numpy(), int(asks.sum())


def _relative(looked_at: Tensor, asks: Tensor, reach: int) -> Tensor:
    """Counts of key − query, ``batch head offset``, of one layer's keys (``batch head query``)."""
    offset = looked_at - torch.arange(looked_at.shape[-1], device=looked_at.device) + reach
    counts = torch.zeros(*offset.shape[:2], 2 * reach + 1, dtype=torch.long, device=offset.device)
    return counts.scatter_add_(2, offset, asks.to(counts)[:, None, :].expand_as(offset))


def own_positional_heads(maps: Sequence[Tensor], real: Tensor) -> Tensor:
    r"""Heads that look at one relative position (not 0) in more than :math:`\xi_{pos}` of a text's own
    tokens: ``layer batch head`` of 0 and 1, each text by itself."""
    chosen = []
    for attention in maps:
        reach = attention.shape[-1] - 1
        counts = _relative(attention.argmax(dim=-1), real, reach)
        counts[..., reach] = 0
        share = counts.amax(dim=-1) / real.sum(dim=1, keepdim=True)
        chosen.append((share > POSITIONAL_SHARE).to(attention.dtype))
    return torch.stack(chosen)
