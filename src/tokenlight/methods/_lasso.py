"""LASSO by coordinate descent, for many weightings of the same examples at once."""

import numpy as np

from tokenlight.errors import NotFinite

SWEEPS = 10_000
STILL = 1e-9  # of the largest coefficient: a sweep that moves none by more ends the descent


def lasso(table: np.ndarray, values: np.ndarray, weights: np.ndarray, alpha: float) -> np.ndarray:
    r"""Coefficients, ``fit feature``, one fit for each row of ``weights`` (``fit example``; rows sum to
    one).

    .. math:: \min_{\beta,\beta_0} \tfrac12 \sum_m w_m (y_m - \beta_0 - \beta^\top \tilde z_m)^2 +
        \alpha \lVert\beta\rVert_1

    :math:`\tilde z`: ``table`` (``example feature``), each column standardised under the weights; the
    coefficients are those of the columns as they are. A column that never changes has none.
    Coordinates are visited in order until they stand still (Friedman et al. 2010).
    """
    means, targets = weights @ table, weights @ values
    moments = np.einsum("fm,mi,mj->fij", weights, table, table, optimize=True)
    moments -= means[:, :, None] * means[:, None, :]
    slopes = weights * values @ table - means * targets[:, None]
    spread = np.sqrt(np.maximum(np.einsum("fii->fi", moments), 0))
    moves = spread > 1e-9
    scale = np.where(moves, spread, 1.0)
    moments = moments / (scale[:, :, None] * scale[:, None, :])
    left = np.where(moves, slopes / scale, 0.0)
    found = np.zeros_like(left)
    for _ in range(SWEEPS):
        largest = 0.0
        for feature in range(table.shape[1]):
            wanted = left[:, feature] + found[:, feature] * moves[:, feature]
            shrunk = np.sign(wanted) * np.maximum(np.abs(wanted) - alpha, 0) * moves[:, feature]
            change = shrunk - found[:, feature]
            found[:, feature] = shrunk
            left -= moments[:, feature] * change[:, None]
            largest = max(largest, float(np.abs(change).max()))
        if largest <= STILL * max(float(np.abs(found).max()), alpha):
            return found / scale
    raise NotFinite(f"the regression did not settle in {SWEEPS} sweeps; take more samples.")
