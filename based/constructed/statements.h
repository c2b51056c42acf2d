// Statements that need the models' own layers to be tried, beside those of based/theory.
#pragma once
#include <vector>

#include "based/theory/statement.h"

namespace based {

const std::vector<const theory::Statement*>& constructed_statements();

}  // namespace based
