// Random directions by which a product of features estimates e^(q·k) (Choromanski et al. 2021).
#pragma once
#include "based/mixers/projection.h"

namespace based {

// [rows, width], of length 1, orthogonal in blocks of `width` rows; `uniform`: in every direction alike, which LAPACK's choice of signs is
// not.
Tensor orthogonal_rows(int64_t rows, int64_t width, bool uniform);
// [rows, width], Gaussian each, orthogonal in blocks of `width` rows, so that an estimate by them varies less; or empty under
// SkipInitialisation.
Tensor orthogonal_gaussian_rows(int64_t rows, int64_t width);

}  // namespace based
