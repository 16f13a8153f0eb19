"""Matrix products in half precision with sums in float32, for rules that need float32 results.

A GPU multiplies matrices in half precision ten times as fast as in float32, and adds the products up in
float32 in any case. So a product of two half-precision matrices loses nothing, and a float32 matrix is first
split into two of half precision, whose sum holds 16 bits or more of it.
"""

import torch
from torch import Tensor

HALF_DTYPES = (torch.float16, torch.bfloat16)
# float16 has few exponents: each row is divided by its largest value first.
SCALED_DTYPES = (torch.float16,)


def supports_half_precision(first: Tensor, second: Tensor) -> bool:
    """Return whether two matrices are multiplied in half precision, with a result in float32."""
    is_half = first.dtype == second.dtype and first.dtype in HALF_DTYPES
    return is_half and first.is_cuda and first.dim() == second.dim() == 2


def multiply_half_precision(first: Tensor, second: Tensor) -> Tensor:
    """Multiply two matrices of half precision: the exact products, added up in float32."""
    if first.is_cuda:
        return torch.mm(first, second, out_dtype=torch.float32)
    return torch.mm(first.float(), second.float())


def split_into_half_precision(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Split a float32 matrix into two of half precision.

    Returns:
        ``2 × rows`` by columns: the rounded matrix above what rounding left; and the scale by which the
        product of each row must be multiplied, ``rows`` by 1, or None if the dtype needs none.
    """
    scales: Tensor | None = None
    if dtype in SCALED_DTYPES:
        largest = matrix.abs().amax(dim=1, keepdim=True)
        scales = torch.where(largest > 0, largest, 1.0)
        matrix = matrix / scales
    num_rows, num_columns = matrix.shape
    halves = matrix.new_empty(2 * num_rows, num_columns, dtype=dtype)
    rounded, rest = halves.chunk(2)
    rounded.copy_(matrix)
    rest.copy_(matrix - rounded)
    return halves, scales


def multiply_split_matrix(split: tuple[Tensor, Tensor | None], second: Tensor) -> Tensor:
    """Multiply the result of :func:`split_into_half_precision` by a matrix of half precision, in float32."""
    halves, scales = split
    above, below = multiply_half_precision(halves, second).chunk(2)
    product = above.add_(below)
    return product if scales is None else product.mul_(scales)
