"""Pictures of Attributions: HTML, terminal, figures. Nothing here knows a model.

What is shown is decided once, as plain values, and drawn by three renderers (``terminal.py``, ``html.py``
with its templates, ``figures.py``). The words for it:

- **scene**: the whole content of a picture (``scene.py``): texts, their targets, and a ``MethodScene``
  for each explanation.
- **view**: one explanation by tokens or by words (``views.py``), as lines of marks.
- **mark**: consecutive characters with one score, which get one colour.
- **chip**: a special token such as [CLS], drawn as a small box since it is no word of the text.
- **bar**: the probability of a class or token, drawn as a length.
- **score table**: scores by token and layer, or by token and class (``score_tables.py``).
- **answer reader**: the answer of a language model, in which each word opens its explanation
  (``answer_reader.py``).
- **total score**: Σ|score| over a text, of which parts and special tokens have a share.
"""
