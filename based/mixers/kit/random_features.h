// Random directions of features whose inner product estimates e^(q·k) (Choromanski et al. 2021).
#pragma once
#include "based/mixers/kit/projection.h"

namespace based {

// [rows, width]: rows of length 1, orthogonal within each block of `width` rows. `uniform` makes the directions uniformly distributed; the
// signs that LAPACK's QR chooses are not.
Tensor orthogonal_rows(int64_t rows, int64_t width, bool uniform);
// [rows, width]: rows with the lengths of Gaussian vectors, orthogonal within each block of `width` rows, which lowers the estimate's
// variance. Uninitialised under SkipInitialisation.
Tensor orthogonal_gaussian_rows(int64_t rows, int64_t width);

}  // namespace based
