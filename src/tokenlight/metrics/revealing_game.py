"""Revealing game: accuracy as the most important tokens are shown."""

from tokenlight.metrics.hiding_game import HidingGame


class RevealingGame(HidingGame):
    r"""Area under the accuracy curve while the top-ranked tokens are revealed.

    .. math:: \mathrm{AUC} = \int_0^1 \Pr\bigl[\arg\max_c p(c\mid \mathrm{top}_f) = y\bigr]\,df

    Starts with every token that is not special hidden ([MASK], attention 0) and shows the
    round(f·m) highest-ranked. Grid and options are those of hiding_game. Higher is better. Hou &
    Castañón 2023. Differs from the paper: as hiding_game does.
    """

    better = "higher"
    shows = True
