"""Any folder with config.json, a fast tokenizer and model.safetensors is a model.

The one made here is tiny and random: it shows the way in, not a meaning.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from tokenlight import Explainer

special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
words = [*special, "please", "reset", "my", "pass", "##word", "invoice", "is", "wrong", "."]
labels = {0: "account", 1: "billing"}
config = BertConfig(
    vocab_size=len(words),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    initializer_range=0.5,
    id2label=labels,
    label2id={name: index for index, name in labels.items()},
)

with TemporaryDirectory() as folder:
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)
    vocabulary = {word: index for index, word in enumerate(words)}
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    print("files:", ", ".join(sorted(path.name for path in Path(folder).iterdir())))

    explainer = Explainer.from_pretrained(folder)  # or Explainer(model, tokenizer)
    attribution = explainer.explain("please reset my password .", target="billing")

print(f"labels {explainer.labels}, predicted {attribution.prediction.label}")
for word, score in attribution.words():
    print(f"{word:>10} {score:+.3f}")
