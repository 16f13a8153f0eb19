"""A plain torch module that classifies token ids, as a transformers model: black-box and gradient
methods need its logits and where its ids become vectors, and nothing else."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from tokenlight.capture.loan import lent
from tokenlight.errors import UnsupportedModel

TRIED = 16  # tokens of the row of zeros that is asked for the number of labels


class PlainForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """``module(input_ids)`` or ``module(input_ids=…, attention_mask=…)``, ``batch token`` → ``batch
    label``: a tensor, an object with ``logits``, or a tuple or mapping that begins with them.

    It holds the module itself, not a copy. What the module does with padding is found out before its
    first use, as for any model.
    """

    config_class = PretrainedConfig

    def __init__(self, module: nn.Module, labels: Sequence[str] | None = None) -> None:
        super().__init__(PretrainedConfig())
        self.module = module
        self.training = module.training
        found = [part for part in module.modules() if isinstance(part, nn.Embedding)]
        if not found:
            raise UnsupportedModel(
                f"{type(module).__name__} is not a transformers model, and it has no embedding layer "
                "(torch.nn.Embedding) through which it could read token ids; give a PreTrainedModel such as "
                "BertForSequenceClassification, or a module that reads ids."
            )
        self._embedded = [found[0]]  # in a list: it is the module's part, not one of ours
        parameters = inspect.signature(module.forward).parameters
        self._masked = "attention_mask" in parameters
        self._named = "input_ids" in parameters
        count = self._labels_of_a_trial(found[0])
        if labels is not None and len(labels) != count:
            raise UnsupportedModel(
                f"{type(module).__name__} gives {count} logits, but {len(labels)} labels were named."
            )
        self.config.id2label = dict(enumerate(labels or (f"LABEL_{i}" for i in range(count))))
        self.config.label2id = {name: i for i, name in self.config.id2label.items()}
        self.config.pad_token_id = found[0].padding_idx
        self.config._name_or_path = type(module).__name__

    def _labels_of_a_trial(self, embedding: nn.Embedding) -> int:
        ids = torch.zeros(1, TRIED, dtype=torch.long, device=embedding.weight.device)
        try:
            with torch.no_grad(), lent([*self.modules()], training=False):
                logits = self(ids, torch.ones_like(ids)).logits
        except (TypeError, ValueError, RuntimeError, LookupError) as refused:
            raise UnsupportedModel(
                f"{type(self.module).__name__} cannot be called with token ids alone ({refused}); give a "
                "module that takes (input_ids) or (input_ids, attention_mask), batch × token."
            ) from refused
        if logits.dim() != 2 or len(logits) != 1:
            raise UnsupportedModel(
                f"{type(self.module).__name__} gives {tuple(logits.shape)} for one text; a classifier "
                "gives batch × label."
            )
        return int(logits.shape[1])

    def get_input_embeddings(self) -> nn.Module:
        return self._embedded[0]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        mask = {"attention_mask": attention_mask} if self._masked else {}
        given = {"input_ids": input_ids, **mask} if self._named else mask
        said = self.module(*(() if self._named else (input_ids,)), **given)
        logits = getattr(said, "logits", said)
        if isinstance(logits, Mapping):
            logits = logits["logits"] if "logits" in logits else next(iter(logits.values()))
        elif isinstance(logits, Sequence):
            logits = logits[0]
        return SequenceClassifierOutput(logits=logits)
