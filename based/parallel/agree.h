// A check at the start of a job that all ranks do the same work.
#pragma once
#include <string>

#include "based/parallel/collectives.h"

namespace based {

// Compares a value, usually a hash, of all ranks. Throws Error on every rank if they differ, naming `name` ("the data") and the ranks whose
// value is not the most frequent one; among equally frequent ones, that of the lowest rank counts. A collective operation.
void agree(Collectives& ranks, const std::string& name, const std::string& value);

}  // namespace based
