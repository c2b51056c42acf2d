// Statements whose trials need layers of models, in addition to those of theory/.
#pragma once
#include <vector>

#include "theory/statement.h"

namespace based {

const std::vector<const theory::Statement*>& constructed_statements();
const std::vector<const theory::Statement*>& all_statements();  // theory::statements() in the paper's order, then these

}  // namespace based
