"""Revealing game: accuracy as the most important tokens are shown."""

from tokenlight.metrics.hiding_game import HidingGame


class RevealingGame(HidingGame):
    r"""Area under the accuracy curve while the top-ranked tokens are shown.

    .. math:: \mathrm{AUC} = \int_0^1 \Pr\bigl[\arg\max_c p(c\mid \mathrm{top}_f) = y\bigr]\,df

    All tokens that are not special start masked ([MASK], attention 0), and the round(f·m) highest-ranked are
    shown. Grid and options are those of hiding_game. Higher is better. Hou & Castañón 2023.
    Differs from the paper: as hiding_game does.
    """

    better = "higher"
    keeps_top = True
