// Golden files of DNA: JSON lists of cases of tokens and rows, of intervals, or of metrics of classification.
#pragma once
#include <string>

#include "based/models/golden.h"

namespace based {

// By its content: a .json file with `cases` of one of the three kinds. False for a file that cannot be read or parsed.
bool is_dna_golden(const std::string& path);

// Compares tokens and intervals exactly; metrics to 1e-12. `output_error` is the largest difference of a metric, and infinite if ids or
// positions differ; `worst` names that case and key. Keys that a case does not have are not compared. Throws Error as
// "<file>: cases[3]: 'key' <reason>" for a damaged file.
GoldenResult check_dna_golden(const std::string& path);

}  // namespace based
